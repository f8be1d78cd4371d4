"""Columns: inferred and remembered, growing with the stream, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts import registry
from icestream.errors import SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import BatchWritten
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake


def json_source(*values: dict[str, Any]) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    append(source, *values)
    return source


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> ScriptedSource:
    """Two records of a source whose options give the columns."""
    source = json_source({"id": 1, "other": "x"}, {"id": 2})
    monkeypatch.setattr(source, "schema", partial(pa.schema, [("id", pa.int64())]))
    return source


def append(source: ScriptedSource, *values: dict[str, Any]) -> None:
    source.append_values(json.dumps(value).encode() for value in values)


def types(lake: Lake, table: str = "events") -> dict[str, str]:
    schema = lake.catalog.client().load_table(("db", table)).schema()
    return {field.name: str(field.field_type) for field in schema.fields}


def by_id(lake: Lake) -> list[dict[str, Any]]:
    return sorted(lake.rows(), key=lambda row: int(row["id"]))


def test_field_that_appears_mid_stream_is_a_column_from_its_first_row(lake: Lake) -> None:
    """Four batches of one run; new fields in the second, at two depths, and in the third."""
    source = json_source(
        {"id": 0, "at": {"x": 1}},
        {"id": 1, "at": {"x": 2}},
        {"id": 2, "at": {"x": 3, "y": "deep"}, "new": 1.5},
        {"id": 3},
        {"id": 4, "items": [{"n": 1}], "new": 2},
        {"id": 5, "when": "2024-05-01T12:00:00Z"},
        {"id": 6},
        {"id": 7, "at": {"x": 4, "y": None}},
    )
    runner = lake.run(lake.plan(source, batching=Batching(1, 0.1, 2)))

    rows = by_id(lake)
    assert [row["at"] for row in rows] == [
        {"x": 1, "y": None},
        {"x": 2, "y": None},
        {"x": 3, "y": "deep"},
        None,
        None,
        None,
        None,
        {"x": 4, "y": None},
    ]
    assert [row["new"] for row in rows] == [None, None, 1.5, None, 2.0, None, None, None]
    assert [row["items"] or None for row in rows] == [None] * 4 + [[{"n": 1}]] + [None] * 3
    assert rows[5]["when"].isoformat() == "2024-05-01T12:00:00+00:00"
    assert [e.rows for e in lake.events if isinstance(e, BatchWritten)] == [2, 2, 2, 2]
    assert runner.progress.batches == 4, "no restart, and no batch beside the four"
    assert list(types(lake)) == ["id", "at", "new", "items", "when"]


def test_new_column_holds_the_values_of_all_tasks_of_a_batch(lake: Lake) -> None:
    """The second batch is read by two tasks: a bigint that no double holds, and a fraction."""
    source = json_source(
        {"id": 0}, {"id": 1}, {"id": 2, "new": 9007199254740993}, {"id": 3, "new": 0.5}
    )
    lake.run(lake.plan(source, batching=Batching(1, 0.1, 2)))

    assert [row["new"] for row in by_id(lake)] == [None, None, "9007199254740993", "0.5"]


def test_inferred_columns_are_stored_if_a_transform_renames_them(lake: Lake) -> None:
    """The second run's rows alone would be read as whole numbers."""
    from icestream.transforms.rename import RenameOptions, RenameTransform

    source = json_source({"id": 1, "price": 1.5, "note": "a"}, {"id": 2, "price": 2.5})
    rename = (RenameTransform(RenameOptions.model_validate({"price": "cost"})),)
    lake.run(replace(lake.plan(source), transforms=rename))
    kept = json.loads((lake.state / "pipelines/events/schema.json").read_text())
    append(source, {"id": 3, "price": 3}, {"id": 4})
    lake.run(replace(lake.plan(source), transforms=rename))

    assert kept["columns"] == {"id": "int64", "price": "double", "note": "string"}
    assert types(lake) == {"id": "long", "cost": "double", "note": "string"}
    assert [(row["id"], row["cost"]) for row in by_id(lake)] == [
        (1, 1.5),
        (2, 2.5),
        (3, 3.0),
        (4, None),
    ]


def test_table_columns_determine_how_values_are_parsed(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql(
        "CREATE TABLE lake.db.events (id bigint, price decimal(9,2), day date, at timestamp, "
        "raw string) USING iceberg TBLPROPERTIES ('format-version' = '2')"
    )
    lake.run(
        lake.plan(
            json_source(
                {
                    "id": 1,
                    "price": 1.10,
                    "day": "2024-02-29",
                    "at": "2024-02-29T12:00:00+02:00",
                    "raw": "007",
                }
            )
        )
    )

    [row] = lake.sql("SELECT id, string(price), string(day), string(at), raw FROM lake.db.events")
    assert tuple(row) == (1, "1.10", "2024-02-29", "2024-02-29 10:00:00", "007")


def test_strict_table_refuses_an_unknown_field(lake: Lake) -> None:
    source = json_source({"id": 1})
    lake.run(lake.plan(source, schema_evolution="strict"))
    append(source, {"id": 2}, {"id": 3, "age": 4, "at": {"x": 1}})
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(source, schema_evolution="strict"))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the stream has columns that the table "
        "lacks: 'age' int64, 'at' struct<x: int64>\n"
        "  Use `schema_evolution: add_columns`, or alter the table."
    )
    assert [row["id"] for row in lake.rows()] == [1]
    lake.run(lake.plan(source))
    assert [row["id"] for row in by_id(lake)] == [1, 2, 3]


def test_strict_table_accepts_rows_whose_new_field_a_transform_drops(lake: Lake) -> None:
    select = registry.find("transforms", "select")
    chosen = (select(select.options_type.model_validate(["id"])),)
    everything = (select(select.options_type.model_validate(["*"])),)
    source = json_source({"id": 1})
    plan = lake.plan(source, schema_evolution="strict")
    lake.run(replace(plan, transforms=chosen))
    append(source, {"id": 2, "new": "x"})
    lake.run(replace(plan, transforms=chosen))
    assert by_id(lake) == [{"id": 1}, {"id": 2}]

    append(source, {"id": 3, "new": "x"})
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(replace(plan, transforms=everything))
    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the stream has columns that the table "
        "lacks: 'new' string\n  Use `schema_evolution: add_columns`, or alter the table."
    )


def test_declared_schema_does_not_grow(lake: Lake, declared: ScriptedSource) -> None:
    lake.run(lake.plan(declared))

    assert by_id(lake) == [{"id": 1}, {"id": 2}]


def test_declared_schema_incompatible_with_the_table_is_refused(
    lake: Lake, declared: ScriptedSource
) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql("CREATE TABLE lake.db.events (id string, n int) USING iceberg")
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(declared))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: column 'id' is string in the table and "
        "long in the stream\n  Convert the stream with a `cast` transform, or alter the table."
    )
    assert lake.rows() == []


def test_values_without_inferable_columns_are_refused(lake: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(json_source({}, {"gone": None})))

    assert str(caught.value) == (
        "pipeline 'events', source 'scripted': cannot infer columns from record scripted[0]: "
        "it has no field with a value, and neither have those that follow\n"
        "  Declare the columns with `schema`, or check that `format` is right."
    )
