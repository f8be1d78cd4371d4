"""Fields with the names of Iceberg's metadata columns: Spark could not read a table with one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.fan_outs import ids, planned
from tests.fixtures.scripted_orders import mirror
from tests.fixtures.sink_batches import append

from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.schemas.column_names import RENAME_RESERVED, RESERVED
from icestream.testing.scripted import ScriptedChanges, ScriptedSource, change_block
from icestream.transforms.rename import RenameOptions, RenameTransform

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

WHY = "column '_pos' has the name of an Iceberg metadata column"
REASON = f"{WHY}; use a `rename` or `drop` transform"


def records(*values: bytes) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(values)
    return source


def test_record_with_a_reserved_field_is_a_dead_letter_and_the_others_are_written(
    lake: Lake,
) -> None:
    source = records(b'{"id": 1}')
    lake.run(lake.plan(source, on_error="dead_letter"))
    bad = b'{"id": 2, "_pos": 7, "__unsent": 1}'
    source.append_values([bad, b'{"id": 3, "_pos": null, "name": "c"}', b'{"id": 4}'])
    lake.run(lake.plan(source, on_error="dead_letter"))
    source.append_values([b'{"id": 5, "_pos": "x"}', b'{"id": 6}'])
    lake.run(lake.plan(source, on_error="dead_letter"))

    found = lake.sql("SELECT id, name FROM lake.db.events ORDER BY id")
    assert [tuple(row) for row in found] == [(1, None), (3, "c"), (4, None), (6, None)]
    letters = {row["raw"]: row["reason"] for row in lake.rows("dead")}
    assert letters == {bad: REASON, b'{"id": 5, "_pos": "x"}': REASON}


def test_first_records_with_a_reserved_field_are_dropped(lake: Lake) -> None:
    source = records(b'{"id": 1, "_Row_Id": 1}', b'{"id": 2}')
    lake.run(lake.plan(source, on_error="drop", commit_mode="upsert", key_fields=["id"]))

    assert [tuple(row) for row in lake.sql("SELECT * FROM lake.db.events")] == [(2,)]


def test_record_with_a_reserved_field_is_reported(lake: Lake) -> None:
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(records(b'{"id": 1}', b'{"id": 2, "_pos": 7}')))

    assert str(caught.value) == (
        f"pipeline 'events', batch 0: record scripted[1] can't be decoded: {REASON} "
        '(begins with \'{"id": 2, "_pos": 7}\')\n'
        "  Nothing of the batch was written. Fix the producer, or set `on_error: "
        "dead_letter` with a `dead_letter` table, or `on_error: drop`, on sink 'lake'."
    )


def test_reserved_field_is_written_under_another_name(lake: Lake) -> None:
    rename = RenameTransform(RenameOptions(columns={"_pos": "position"}))
    source = records(b'{"id": 1, "_pos": 7, "at": {"_pos": 8}}')
    lake.run(replace(lake.plan(source, on_error="drop"), transforms=(rename,)))

    # Inside a struct the name does no harm.
    found = lake.sql("SELECT id, position, at._pos FROM lake.db.events")
    assert [tuple(row) for row in found] == [(1, 7, 8)]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_table_with_a_reserved_column_is_not_created(lake: Lake, name: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        append(lake, lake.sink("t"), pa.table({"id": [1], name.upper(): [2]}))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.t: column {name.upper()!r} has the name of an "
        f"Iceberg metadata column\n  {RENAME_RESERVED}"
    )
    assert lake.catalog.find_table(("db", "t")) is None


def test_reserved_column_is_not_added(lake: Lake) -> None:
    append(lake, lake.sink("t"), pa.table({"id": [1]}))
    with pytest.raises(SchemaMismatchError) as caught:
        append(lake, lake.sink("t"), pa.table({"id": [1], "_pos": [2]}), 1)

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.t: {WHY}\n  {RENAME_RESERVED}"
    )


def test_record_whose_field_clashes_with_a_column_or_partition_is_a_dead_letter(lake: Lake) -> None:
    options: dict[str, Any] = {"on_error": "dead_letter", "partitioning": ["days(at)"]}
    source = records(b'{"id": 1, "at": "2024-05-01T00:00:00Z"}')
    lake.run(lake.plan(source, **options))
    source.append_values([b'{"ID": 2}', b'{"id": 3, "at_day": 1}', b'{"id": 4}'])
    lake.run(lake.plan(source, **options))

    found = lake.sql("SELECT id FROM lake.db.events ORDER BY id")
    assert [row.id for row in found] == [1, 4]
    assert sorted(row["reason"] for row in lake.rows("dead")) == [
        "column 'ID' differs from column 'id' only in case; use a `rename` or `drop` transform",
        "column 'at_day' has the name of a partition field of the table; use a `rename` or `drop` "
        "transform",
    ]


def test_record_with_a_reserved_field_is_dropped_before_it_is_routed(lake: Lake) -> None:
    source = records(b'{"id": 1, "kind": "a", "_file": "x"}', b'{"id": 2, "kind": "a"}')
    lake.run(replace(planned(lake, source), on_error="drop"))

    assert ids(lake, "a") == [2]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("_pos", WHY),
        ("__op", "column '__op' has a name that icestream reserves for its own columns"),
    ],
)
def test_mirror_refuses_a_reserved_column(lake: Lake, name: str, what: str) -> None:
    columns = {"id": pa.int64(), name: pa.string()}
    block = change_block("shop.orders", columns, [{"id": 1}], key=("id",), is_snapshot=True)
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(mirror(lake, ScriptedChanges([block])))

    assert (caught.value.what, caught.value.todo) == (what, RENAME_RESERVED)
