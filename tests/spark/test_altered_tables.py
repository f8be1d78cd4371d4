"""Tables that another tool alters while a pipeline runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from icestream.engine.run import RunChoices
from icestream.engine.runner import PipelineRunner
from icestream.errors import CheckpointLostError, SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import BatchWritten
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake


@dataclass
class Meddling:
    """Runs a pipeline of one batch a record; after the first, another tool alters its table."""

    lake: Lake
    statements: list[str]
    committed: list[int] = field(default_factory=list)

    def run(self, *records: dict[str, Any], **options: Any) -> None:
        source = ScriptedSource(decoder=JsonDecoder())
        source.append_values(json.dumps(record).encode() for record in records)
        plan = self.lake.plan(source, batching=Batching(1, 0.1, 1), **options)
        PipelineRunner(
            plan,
            spark=self.lake.spark,
            state_root=self.lake.state,
            emit=self.emit,
            choices=RunChoices(once=True),
            pipelines=[plan.name],
        ).run()

    def emit(self, event: object) -> None:
        if not isinstance(event, BatchWritten):
            return
        if not self.committed:
            for statement in self.statements:
                self.lake.sql(statement)
        self.committed.append(event.epoch)


def by_id(lake: Lake) -> list[dict[str, Any]]:
    return sorted(lake.rows(), key=lambda row: int(row["id"]))


def types(lake: Lake) -> dict[str, str]:
    schema = lake.catalog.client().load_table(("db", "events")).schema()
    return {column.name: str(column.field_type) for column in schema.fields}


def test_column_dropped_by_another_tool_returns_with_the_first_row_that_has_it(lake: Lake) -> None:
    Meddling(lake, ["ALTER TABLE lake.db.events DROP COLUMN note"]).run(
        {"id": 1, "note": "a"}, {"id": 2}, {"id": 3, "note": "c"}
    )

    assert [row["note"] for row in by_id(lake)] == [None, None, "c"]


def test_strict_table_refuses_a_column_dropped_by_another_tool(lake: Lake) -> None:
    meddling = Meddling(lake, ["ALTER TABLE lake.db.events DROP COLUMN note"])
    with pytest.raises(SchemaMismatchError) as caught:
        meddling.run({"id": 1, "note": "a"}, {"id": 2, "note": "b"}, schema_evolution="strict")

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the stream has columns that the table "
        "lacks: 'note' string\n  Use `schema_evolution: add_columns`, or alter the table."
    )
    assert meddling.committed == [0]


@pytest.mark.parametrize("evolution", ["add_columns", "full"])
def test_column_renamed_by_another_tool_stops_the_pipeline(lake: Lake, evolution: str) -> None:
    meddling = Meddling(lake, ["ALTER TABLE lake.db.events RENAME COLUMN note TO remark"])
    with pytest.raises(SchemaMismatchError) as caught:
        meddling.run(
            {"id": 1, "note": "a"}, {"id": 2}, {"id": 3, "note": "c"}, schema_evolution=evolution
        )

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: column 'note' of the table was renamed "
        "to 'remark' while the pipeline ran, and the stream still has 'note'\n"
        "  To continue in the renamed column, add the transform `rename: {note: remark}`. Without "
        "it, the next start adds 'note' as a separate column."
    )
    assert [row["remark"] for row in by_id(lake)] == ["a", None]


def test_column_added_by_another_tool_is_filled_in_its_own_type(lake: Lake) -> None:
    Meddling(lake, ["ALTER TABLE lake.db.events ADD COLUMN price decimal(9,2)"]).run(
        {"id": 1}, {"id": 2, "price": 1.5}, {"id": 3}
    )

    assert types(lake) == {"id": "long", "price": "decimal(9, 2)"}
    assert [str(row["price"]) for row in by_id(lake)] == ["None", "1.50", "None"]


def test_column_widened_by_another_tool_accepts_wide_values(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql("CREATE TABLE lake.db.events (id bigint, n int) USING iceberg")
    Meddling(lake, ["ALTER TABLE lake.db.events ALTER COLUMN n TYPE bigint"]).run(
        {"id": 1, "n": 1}, {"id": 2, "n": 1 << 40}
    )

    assert [row["n"] for row in by_id(lake)] == [1, 1 << 40]


def test_dropped_table_stops_the_pipeline(lake: Lake) -> None:
    meddling = Meddling(lake, ["DROP TABLE lake.db.events"])
    with pytest.raises(CheckpointLostError) as caught:
        meddling.run({"id": 1}, {"id": 2})

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the table was dropped while the "
        "pipeline was running\n"
        "  Nothing was written. Run the pipeline again: it lists the ways to continue."
    )


def test_recreated_table_stops_the_pipeline(lake: Lake) -> None:
    again = ["DROP TABLE lake.db.events", "CREATE TABLE lake.db.events (id bigint) USING iceberg"]
    meddling = Meddling(lake, again)
    with pytest.raises(CheckpointLostError) as caught:
        meddling.run({"id": 1}, {"id": 2})

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the table was dropped and another one "
        "was created under its name while the pipeline was running\n"
        "  Nothing was written. Run the pipeline again: it lists the ways to continue."
    )
    assert lake.rows() == []
