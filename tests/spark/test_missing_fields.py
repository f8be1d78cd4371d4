"""`missing_fields: keep`: a field that a record lacks keeps the table's value."""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.fixtures.fan_outs import planned
from tests.fixtures.scripted_orders import mirror, rows

from icestream.formats.json import JsonDecoder
from icestream.testing.scripted import ScriptedChanges, ScriptedSource, change_block
from icestream.transforms.filter import FilterOptions, FilterTransform
from icestream.transforms.rename import RenameOptions, RenameTransform

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

Record = dict[str, Any]
KEEP: dict[str, Any] = {
    "commit_mode": "upsert",
    "key_fields": ("id",),
    "op_field": "op",
    "missing_fields": "keep",
}
FIELDS = ("name", "qty", "at")


def records(*given: Record) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(encoded(*given))
    return source


def encoded(*given: Record) -> list[bytes]:
    return [json.dumps(record).encode() for record in given]


def plan(lake: Lake, source: ScriptedSource, **options: Any) -> PipelinePlan:
    return lake.plan(source, **{**KEEP, **options})


def table(lake: Lake, name: str = "events") -> dict[int, Record]:
    return {row.pop("id"): row for row in lake.rows(name)}


def test_absent_field_is_kept_and_null_field_is_set_to_null(lake: Lake) -> None:
    source = records({"id": 1, "name": "a", "qty": 1}, {"id": 2, "name": "b", "qty": 2})
    lake.run(plan(lake, source))
    source.append_values(encoded({"id": 1, "name": "A"}, {"id": 2, "qty": None}, {"id": 3}))
    lake.run(plan(lake, source))

    assert table(lake) == {
        1: {"name": "A", "qty": 1},
        2: {"name": "b", "qty": None},
        3: {"name": None, "qty": None},
    }


def test_absent_field_is_set_to_null_without_keep(lake: Lake) -> None:
    source = records({"id": 1, "name": "a", "qty": 1})
    lake.run(plan(lake, source, missing_fields="null"))
    source.append_values(encoded({"id": 1, "name": "A"}))
    lake.run(plan(lake, source, missing_fields="null"))

    assert table(lake) == {1: {"name": "A", "qty": None}}


def test_any_history_of_partial_changes_matches_a_dictionary(lake: Lake) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    every = dict.fromkeys(FIELDS, "x")
    source = records({"id": 0, **every})
    expected: dict[int, Record] = {0: every}
    lake.run(plan(lake, source))
    for _ in range(3):
        for number in range(30):
            key = draw.randrange(5)
            sent = {name: draw.choice([None, f"{number}"]) for name in draw.sample(FIELDS, 2)}
            if draw.random() < 0.15:
                source.append_values(encoded({"id": key, "op": "d"}))
                expected.pop(key, None)
                continue
            source.append_values(encoded({"id": key, **sent}))
            expected[key] = {**expected.get(key, dict.fromkeys(FIELDS)), **sent}
        lake.run(plan(lake, source))

        assert table(lake) == expected


def test_older_changes_supply_no_value_outdated_by_the_table_or_a_delete(lake: Lake) -> None:
    source = records(
        {"id": 1, "at": 5, "name": "new", "qty": 1}, {"id": 2, "at": 5, "name": "x", "qty": 1}
    )
    options = {"sequence_field": "at"}
    lake.run(plan(lake, source, **options))
    source.append_values(encoded({"id": 2, "at": 6, "op": "d"}))
    lake.run(plan(lake, source, **options))
    source.append_values(
        encoded(
            # Out of order: the table has a newer name of 1, and 2 was deleted in between.
            {"id": 1, "at": 4, "name": "old"},
            {"id": 1, "at": 7, "qty": 2},
            {"id": 2, "at": 4, "name": "old"},
            {"id": 2, "at": 7, "qty": 2},
            # In order, though they arrive the other way round.
            {"id": 3, "at": 9, "name": "b"},
            {"id": 3, "at": 8, "name": "a", "qty": 3},
        )
    )
    lake.run(plan(lake, source, **options))

    assert table(lake) == {
        1: {"at": 7, "name": "new", "qty": 2},
        2: {"at": 7, "name": None, "qty": 2},
        3: {"at": 9, "name": "b", "qty": 3},
    }


def test_absent_fields_are_kept_through_transforms(lake: Lake) -> None:
    steps = (
        RenameTransform(RenameOptions(columns={"name": "title"})),
        FilterTransform(FilterOptions(expr="id < 9")),
    )
    source = records({"id": 1, "name": "a", "qty": 1})
    lake.run(replace(plan(lake, source), transforms=steps))
    source.append_values(encoded({"id": 1, "qty": 2}, {"id": 9, "qty": 2}))
    lake.run(replace(plan(lake, source), transforms=steps))

    assert table(lake) == {1: {"title": "a", "qty": 2}}


def test_absent_fields_are_kept_in_each_table_of_a_fan_out(lake: Lake) -> None:
    source = records({"id": 1, "kind": "a", "name": "x"}, {"id": 1, "kind": "b", "qty": 1})
    lake.run(planned(lake, source, **KEEP))
    source.append_values(
        encoded({"id": 1, "kind": "a", "op": "u"}, {"id": 1, "kind": "b", "qty": None})
    )
    lake.run(planned(lake, source, **KEEP))

    assert table(lake, "a") == {1: {"kind": "a", "name": "x"}}
    assert table(lake, "b") == {1: {"kind": "b", "qty": None}}


def test_columns_missing_from_a_block_of_changes_are_kept(lake: Lake) -> None:
    whole = {"id": pa.int64(), "name": pa.string(), "qty": pa.int64()}
    partial = {"id": pa.int64(), "qty": pa.int64()}
    source = ScriptedChanges(
        [change_block("shop.orders", whole, [{"id": 1, "name": "a", "qty": 1}], is_whole=False)],
        [change_block("shop.orders", partial, [{"id": 1, "qty": 2, "op": "u"}], is_whole=False)],
    )
    lake.run(mirror(lake, source, missing_fields="keep"))

    assert rows(lake) == [{"id": 1, "name": "a", "qty": 2}]
