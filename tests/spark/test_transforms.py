"""Transforms and sort orders, between a source and a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.contracts import registry
from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import BatchWritten, RecordsFailed
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.contracts.transform import Transform

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.string()), ("note", pa.string())])


def steps(*given: tuple[str, Any]) -> tuple[Transform[Any], ...]:
    built = []
    for kind, value in given:
        transform = registry.find("transforms", kind)
        built.append(transform(transform.options_type.model_validate(value)))
    return tuple(built)


@pytest.fixture
def source() -> ScriptedSource:
    source = ScriptedSource(schema=SCHEMA)
    source.append_rows({"id": n, "price": f"{n}.25", "note": None} for n in range(10))
    return source


def test_steps_apply_in_order_and_shape_the_table(lake: Lake, source: ScriptedSource) -> None:
    plan = replace(
        lake.plan(source, partitioning=["bucket(2, number)"]),
        transforms=steps(
            ("filter", "id % 2 = 0"),
            ("cast", {"price": "decimal(9,2)"}),
            ("rename", {"id": "number"}),
            ("drop", ["note"]),
            ("select", ["number", "price", "price * 2 AS twice"]),
        ),
    )
    lake.run(plan)
    source.append_rows([{"id": 10, "price": "0.5", "note": "x"}])
    lake.run(plan)

    assert sorted((row["number"], str(row["price"])) for row in lake.rows()) == [
        (0, "0.25"),
        (2, "2.25"),
        (4, "4.25"),
        (6, "6.25"),
        (8, "8.25"),
        (10, "0.50"),
    ]
    schema = lake.catalog.client().load_table(("db", "events")).schema()
    assert [str(field.field_type) for field in schema.fields] == [
        "long",
        "decimal(9, 2)",
        "decimal(11, 2)",
    ]
    assert [e.rows for e in lake.events if isinstance(e, BatchWritten)] == [5, 1]


def test_compute_adds_and_replaces_columns_and_keeps_the_others(
    lake: Lake, source: ScriptedSource
) -> None:
    computed = steps(
        ("filter", "id = 3"),
        (
            "compute",
            {"note": "price", "price": "sha2(note, 256)", "twice": "id * 2", "four": "twice * 2"},
        ),
    )
    lake.run(replace(lake.plan(source), transforms=computed))

    assert lake.rows() == [{"id": 3, "price": None, "note": "3.25", "twice": 6, "four": 12}]


def test_columns_are_renamed_all_at_once(lake: Lake, source: ScriptedSource) -> None:
    renamed = steps(
        ("rename", {"id": "price", "price": "note", "note": "ID"}), ("filter", "price = 3")
    )
    lake.run(replace(lake.plan(source), transforms=renamed))

    assert lake.rows() == [{"price": 3, "note": "3.25", "ID": None}]


def test_column_does_not_take_the_name_of_another(lake: Lake, source: ScriptedSource) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(replace(lake.plan(source), transforms=steps(("rename", {"id": "Price"}))))

    assert str(caught.value) == (
        "transform 'rename': column 'id' can't be renamed to 'Price': that column already exists\n"
        "  Rename that column too, or drop it first."
    )


def test_time_of_day_is_refused_by_transforms(lake: Lake) -> None:
    source = ScriptedSource(schema=pa.schema([("id", pa.int64()), ("at", pa.time64("us"))]))
    source.append_rows([{"id": 1, "at": time(12, 30)}])
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(replace(lake.plan(source), transforms=steps(("filter", "id > 0"))))

    assert str(caught.value) == (
        "pipeline 'events': column 'at' is a time64[us], for which Spark SQL has no type\n"
        "  Transforms, `expect`, `sort_order` and expressions in `route_by` take the rows through "
        "Spark SQL. Leave them out, leave the column out with the source's `schema`, or declare it "
        "as a string there."
    )


def test_batch_emptied_by_a_filter_creates_no_snapshot(lake: Lake, source: ScriptedSource) -> None:
    runner = lake.run(replace(lake.plan(source), transforms=steps(("filter", "id < 0"))))

    assert lake.rows() == []
    assert lake.catalog.client().load_table(("db", "events")).snapshots() == []
    assert runner.progress.batches == 1


def test_bad_records_and_new_fields_are_detected_before_transforms(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values([b'{"id": 1}', b"not JSON", b'{"id": 2}'])
    plan = replace(
        lake.plan(source, on_error="dead_letter"), transforms=steps(("filter", "id IS NOT NULL"))
    )
    lake.run(plan)
    source.append_values([b'{"id": 3, "new": "x"}'])
    lake.run(plan)

    assert sorted((row["id"], row["new"]) for row in lake.rows()) == [
        (1, None),
        (2, None),
        (3, "x"),
    ]
    assert [row["raw"] for row in lake.rows("dead")] == [b"not JSON"]
    assert [e.count for e in lake.events if isinstance(e, RecordsFailed)] == [1]


@pytest.mark.parametrize(
    ("step", "head"),
    [
        (
            ("filter", "nothing > 1"),
            "pipeline 'events': a transform does not fit the rows: [UNRESOLVED_COLUMN"
            ".WITH_SUGGESTION] A column, variable, or function parameter with name `nothing` "
            "cannot be resolved. Did you mean one of the following? [`note`, `id`, `price`]. "
            "SQLSTATE: 42703",
        ),
        (
            ("filter", "id >"),
            "pipeline 'events': a transform does not fit the rows: [PARSE_SYNTAX_ERROR] Syntax "
            "error at or near end of input. SQLSTATE: 42601 (line 1, pos 4)",
        ),
    ],
)
def test_expression_that_does_not_match_the_columns_is_reported(
    lake: Lake, source: ScriptedSource, step: tuple[str, Any], head: str
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(replace(lake.plan(source), transforms=steps(step)))

    assert str(caught.value) == f"{head}\n  The source's columns: id, price, note."


def test_row_with_a_failed_cast_needs_a_person(lake: Lake, source: ScriptedSource) -> None:
    source.append_rows([{"id": 10, "price": "cheap", "note": None}])
    plan = replace(lake.plan(source), transforms=steps(("cast", {"price": "decimal(9,2)"})))
    with pytest.raises(BadRecordError) as caught:
        lake.run(plan)

    assert caught.value.what.startswith("a transform can't be applied to a row: ")
    assert "'cheap'" in caught.value.what
    assert caught.value.todo == (
        "Nothing of the batch was written. Use `try_cast` or `try_divide` in a `select`, or leave "
        "such rows out with a `filter` before it."
    )
    assert lake.rows() == []


def test_rows_of_each_file_follow_the_sort_order_of_the_table(lake: Lake) -> None:
    source = ScriptedSource(schema=SCHEMA)
    source.append_rows(
        {"id": n * 7919 % 1000, "price": None if n % 10 == 0 else str(n % 3), "note": str(n % 2)}
        for n in range(1000)
    )
    lake.run(lake.plan(source, sort_order=["price desc", "id"], partitioning=["note"]))

    table = lake.catalog.client().load_table(("db", "events"))
    files = [task.file for task in table.scan().plan_files()]
    assert len(files) == 4, "two partitions in each of two tasks"
    assert table.sort_order().order_id == 1
    for file in files:
        assert file.sort_order_id == 1
        rows = pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
        keys = [(row["price"] is None, -int(row["price"] or 0), row["id"]) for row in rows]
        assert keys == sorted(keys), "descending, nulls last, then ascending"
    assert sum(file.record_count for file in files) == 1000
