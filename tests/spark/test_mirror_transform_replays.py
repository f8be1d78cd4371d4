"""Transformed mirrors whose columns change, that crash, and that receive anything."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.power_cut import power_cut_at
from tests.fixtures.scripted_orders import (
    ORDERS,
    TableRules,
    mirror,
    of_orders,
    order,
    rows,
    snapshot,
    steps,
)

from icestream.errors import SchemaMismatchError
from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

HISTORIES = int(os.environ.get("ICESTREAM_HISTORIES", "2"))


def versioned(
    columns: dict[str, pa.DataType], ids: tuple[int, ...], version: int, *rows: Any
) -> Any:
    return change_block("shop.orders", columns, rows, ids=ids, version=version)


def test_new_column_of_the_source_becomes_a_column(lake: Lake) -> None:
    later = {**ORDERS, "amount": pa.int64()}
    source = ScriptedChanges(
        [versioned(ORDERS, (1, 2), 1, order(1, "a"))],
        [
            versioned(ORDERS, (1, 2), 1, order(2, "b")),
            versioned(later, (1, 2, 3), 2, order(3, "c", amount=3), order(4, "c", amount=40)),
        ],
    )
    given = steps(("compute", {"note": "upper(note)"}), ("filter", "id < 4"))

    lake.run(replace(mirror(lake, source), transforms=given))

    assert rows(lake) == [
        order(1, "A", amount=None),
        order(2, "B", amount=None),
        order(3, "C", amount=3),
    ]


def test_column_dropped_in_the_source_is_dropped_in_the_table(lake: Lake) -> None:
    wide = {**ORDERS, "amount": pa.int64()}
    source = ScriptedChanges(
        [versioned(wide, (1, 2, 3), 1, order(1, "a", amount=1))],
        [versioned(ORDERS, (1, 2), 2, order(2, "b"))],
    )

    lake.run(replace(mirror(lake, source), transforms=steps(("filter", "id < 9"))))

    assert rows(lake) == [order(1, "a"), order(2, "b")]


def test_column_renamed_in_the_source_keeps_its_values(lake: Lake) -> None:
    renamed = {"id": pa.int64(), "remark": pa.string()}
    source = ScriptedChanges(
        [versioned(ORDERS, (1, 2), 1, order(1, "a"))],
        [
            versioned(ORDERS, (1, 2), 1, order(3, "c")),
            versioned(renamed, (1, 2), 2, {"id": 2, "remark": "b"}),
        ],
    )

    lake.run(replace(mirror(lake, source), transforms=steps(("filter", "id < 9"))))

    assert rows(lake) == [
        {"id": 1, "remark": "a"},
        {"id": 2, "remark": "b"},
        {"id": 3, "remark": "c"},
    ]


def test_older_columns_that_arrive_later_are_read_as_the_newest(lake: Lake) -> None:
    renamed = {"id": pa.int64(), "remark": pa.string()}
    source = ScriptedChanges(
        [versioned(renamed, (1, 2), 2, {"id": 1, "remark": "a"})],
        [versioned(ORDERS, (1, 2), 1, order(2, "b"), order(3, "long"))],
    )

    lake.run(replace(mirror(lake, source), transforms=steps(("filter", "length(remark) < 3"))))

    assert rows(lake) == [{"id": 1, "remark": "a"}, {"id": 2, "remark": "b"}]


def test_transform_of_a_column_that_the_source_dropped_stops_the_pipeline(lake: Lake) -> None:
    source = ScriptedChanges(
        [versioned(ORDERS, (1, 2), 1, order(1, "a"))],
        [versioned({"id": pa.int64()}, (1,), 2, {"id": 2})],
    )
    plan = replace(mirror(lake, source), tables=(TableRules("*", steps(("drop", ["note"]))),))

    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(plan)

    assert str(caught.value) == (
        "pipeline 'events', table 'shop.orders': transform 'drop': the rows have no "
        "column 'note'\n  They have: id."
    )
    assert rows(lake) == [{"id": 1}]


def test_columns_of_incomplete_schemas_are_merged(lake: Lake) -> None:
    def of(columns: dict[str, pa.DataType], *given: dict[str, Any]) -> Any:
        return change_block("shop.orders", columns, given, is_whole=False)

    source = ScriptedChanges(
        [of(ORDERS, order(1, "a"), order(9, "b"))],
        # A tombstone or a delete may have nothing but the key.
        [of({"id": pa.int64()}, {"id": 1, "op": "d"})],
        [of({"id": pa.int64(), "note": pa.null(), "b": pa.int64()}, {"id": 2, "b": 5})],
    )
    given = steps(("rename", {"id": "number"}), ("compute", {"note": "coalesce(note, 'none')"}))

    lake.run(replace(mirror(lake, source), transforms=given))

    assert rows(lake) == [
        {"number": 2, "note": "none", "b": 5},
        {"number": 9, "note": "b", "b": None},
    ]


def test_restarted_pipeline_applies_deletes_of_a_table_whose_columns_it_has_not_seen(
    lake: Lake,
) -> None:
    first = of_orders(order(1, "a"), order(2, "b"), is_whole=False)
    source = ScriptedChanges([first])
    given = steps(("rename", {"id": "number"}), ("filter", "note < 'x'"))
    lake.run(replace(mirror(lake, source), transforms=given))
    source.script.append(
        [change_block("shop.orders", {"id": pa.int64()}, [{"id": 1, "op": "d"}], is_whole=False)]
    )

    lake.run(replace(mirror(lake, source), transforms=given))

    assert rows(lake) == [{"number": 2, "note": "b"}]


def two_tables(lake: Lake, source: ScriptedChanges) -> PipelinePlan:
    rules = TableRules("shop.orders", steps(("filter", "length(note) < 3")))
    return replace(mirror(lake, source), tables=(rules,))


@pytest.mark.parametrize("point", ["before-write", "before-commit", "after-table", "after-commit"])
def test_batch_that_crashes_is_applied_once(lake: Lake, point: str) -> None:
    tags = change_block("shop.tags", ORDERS, [order(1, "x")], key=())
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"), order(3, "long"))],
        [of_orders(order(1, "long", op="u"), order(3, "c", op="u")), tags],
    )
    times = 2 if point in ("before-write", "before-commit", "after-commit") else 1
    with power_cut_at(point, times):
        lake.run(two_tables(lake, source))

    lake.run(two_tables(lake, source))

    assert rows(lake) == [order(2, "b"), order(3, "c")]
    assert rows(lake, "shop.tags") == [order(1, "x")]


@pytest.mark.parametrize("_", range(HISTORIES))
def test_any_history_leaves_the_transformed_rows_of_the_source(lake: Lake, _: int) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311 - not for secrets
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    filters = ["id % 3 <> 0", "amount > 5", "note LIKE 'a%'", "amount > 3 AND id < 9", "false"]
    condition = draw.choice(filters)
    model: dict[int, dict[str, Any]] = {}
    columns = {"id": pa.int64(), "amount": pa.int64(), "note": pa.string()}
    batches: list[list[Any]] = []
    for number in range(6):
        blocks = []
        for _block in range(draw.randrange(1, 4)):
            changes = [_change(draw, model) for _change_number in range(draw.randrange(1, 12))]
            blocks.append(change_block("shop.orders", columns, changes))
        batches.append(blocks)
        if number == 2:
            batches.append([change_block("shop.orders", columns, [{"op": "t"}])])
            model.clear()
    given = steps(
        ("filter", condition),
        ("compute", {"note": "concat(note, '-', amount)"}),
        ("rename", {"id": "number"}),
    )

    lake.run(replace(mirror(lake, ScriptedChanges(*batches)), transforms=given))

    kept: Callable[[dict[str, Any]], bool] = {
        "id % 3 <> 0": lambda row: row["id"] % 3 != 0,
        "amount > 5": lambda row: row["amount"] > 5,
        "note LIKE 'a%'": lambda row: row["note"].startswith("a"),
        "amount > 3 AND id < 9": lambda row: row["amount"] > 3 and row["id"] < 9,
        "false": lambda _row: False,
    }[condition]
    expected = [
        {"number": row["id"], "amount": row["amount"], "note": f"{row['note']}-{row['amount']}"}
        for row in model.values()
        if kept(row)
    ]
    assert rows(lake) == sorted(expected, key=str), f"seed {seed}"


def _change(draw: random.Random, model: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Draw a change that the source could send, and apply it to the model."""
    key = draw.randrange(12)
    if key in model and draw.random() < 0.3:
        del model[key]
        return {"id": key, "op": "d"}
    op = "u" if key in model else "i"
    note = draw.choice("abc") + draw.choice("xyz")
    model[key] = {"id": key, "amount": draw.randrange(10), "note": note}
    return {**model[key], "op": op}
