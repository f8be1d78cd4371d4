"""`schema_evolution: full`: the table follows the stream, mid-stream and after a crash."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append, mark

from icestream.engine.batch import batch as batch_module
from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.formats.json import JsonDecoder
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake


def json_source(*values: dict[str, Any]) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(json.dumps(value).encode() for value in values)
    return source


def rows_source(schema: pa.Schema, *rows: dict[str, Any]) -> ScriptedSource:
    source = ScriptedSource(schema=schema)
    source.append_rows(rows)
    return source


def make_table(lake: Lake, columns: str, version: int = 3) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql(
        f"CREATE TABLE lake.db.events ({columns}) USING iceberg "
        f"TBLPROPERTIES ('format-version' = '{version}')"
    )


def columns(lake: Lake) -> dict[str, str]:
    schema = lake.catalog.client().load_table(("db", "events")).schema()
    return {
        field.name: str(field.field_type) + (" required" if field.required else "")
        for field in schema.fields
    }


def by_id(lake: Lake) -> list[dict[str, Any]]:
    return sorted(lake.rows(), key=lambda row: int(row["id"]))


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gains an entry for each time that a batch's data is read."""
    passes: list[int] = []
    read: Callable[..., Any] = batch_module._reports

    def counted(*arguments: Any) -> Any:
        passes.append(1)
        return read(*arguments)

    monkeypatch.setattr(batch_module, "_reports", counted)
    return passes


def test_value_that_is_too_wide_widens_its_column_mid_stream(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of one run; the second has values that do not fit, the others need no pass."""
    make_table(lake, "id int, price decimal(5,2), at struct<n: int>, ns array<int>")
    passes = count_passes(monkeypatch)
    source = json_source(
        {"id": 0, "price": 1.5, "at": {"n": 1}, "ns": [1]},
        {"id": 1},
        {"id": 2, "price": 12345.67, "at": {"n": 1 << 40}},
        {"id": 1 << 40, "ns": [1, 1 << 40]},
        {"id": 4},
        {"id": 5},
        {"id": 6, "price": 2},
        {"id": 7},
    )
    plan = lake.plan(source, batching=Batching(1, 0.1, 2), schema_evolution="full")
    runner = lake.run(plan)

    assert runner.progress.batches == 4, "no restart, and no batch beside the four"
    assert len(passes) == 5, "only the batch that changed something was read twice"
    assert columns(lake) == {
        "id": "long",
        "price": "decimal(7, 2)",
        "at": "struct<5: n: optional long>",
        "ns": "list<long>",
    }
    rows = {row["id"]: row for row in lake.rows()}
    assert sorted(rows) == [0, 1, 2, 4, 5, 6, 7, 1 << 40]
    assert rows[2]["price"] == Decimal("12345.67")
    assert rows[2]["at"] == {"n": 1 << 40}
    assert rows[1 << 40]["ns"] == [1, 1 << 40]
    assert rows[0]["at"] == {"n": 1}
    assert lake.sql("SELECT sum(id) AS n FROM lake.db.events")[0].n == (1 << 40) + 25


def test_value_that_is_too_wide_is_bad_where_columns_are_only_added(lake: Lake) -> None:
    make_table(lake, "id int")
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(json_source({"id": 1 << 40})))

    assert caught.value.what == (
        "record scripted[0] can't be decoded: column 'id': 1099511627776 is not an int "
        "(begins with '{\"id\": 1099511627776}')"
    )
    assert columns(lake) == {"id": "int"}


def test_value_of_a_type_that_iceberg_cannot_widen_is_bad(lake: Lake) -> None:
    """From a whole number to one with a fraction there is no way in Iceberg."""
    source = json_source({"id": 1, "price": 7})
    lake.run(lake.plan(source, schema_evolution="full"))
    source.append_values([b'{"id": 2, "price": 7.5}'])
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(source, schema_evolution="full"))

    assert caught.value.what == (
        "record scripted[1] can't be decoded: column 'price': 7.5 is not a bigint "
        '(begins with \'{"id": 2, "price": 7.5}\')'
    )
    assert columns(lake) == {"id": "long", "price": "long"}


def test_only_the_bad_record_next_to_a_wide_one_is_dropped(lake: Lake) -> None:
    make_table(lake, "id int")
    source = json_source({"id": "text"}, {"id": 1 << 40}, {"id": 3})
    lake.run(lake.plan(source, schema_evolution="full", on_error="drop"))

    assert [row["id"] for row in by_id(lake)] == [3, 1 << 40]


def test_missing_value_makes_a_required_column_optional(lake: Lake) -> None:
    make_table(lake, "id bigint NOT NULL, name string NOT NULL")
    source = json_source({"id": 1, "name": "a"}, {"id": 2}, {"id": 3, "name": None})
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(source))
    assert caught.value.what == (
        "record scripted[1] can't be decoded: column 'name': no value, and it is required "
        "(begins with '{\"id\": 2}')"
    )
    lake.run(lake.plan(source, schema_evolution="full"))

    assert columns(lake) == {"id": "long required", "name": "string"}
    assert [row["name"] for row in by_id(lake)] == ["a", None, None]


def test_column_missing_from_a_batch_is_not_dropped_without_a_declared_schema(lake: Lake) -> None:
    source = json_source({"id": 1, "note": "a"})
    lake.run(lake.plan(source, schema_evolution="full"))
    source.append_values([b'{"id": 2}', b'{"id": 3}'])
    lake.run(lake.plan(source, schema_evolution="full"))

    assert columns(lake) == {"id": "long", "note": "string"}
    assert [row["note"] for row in by_id(lake)] == ["a", None, None]


BEFORE = pa.schema(
    [
        ("id", pa.int32()),
        ("old", pa.string()),
        ("at", pa.struct([("x", pa.int32()), ("gone", pa.int32())])),
    ]
)
AFTER = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.struct([("x", pa.int64()), ("new", pa.list_(pa.int32()))])),
        ("more", pa.map_(pa.string(), pa.struct([("n", pa.int64())]))),
    ]
)


def changed_source(lake: Lake, version: int = 3) -> ScriptedSource:
    """Run a source that declares its columns, and return it with other columns and one more row."""
    one = {"id": 1, "old": "a", "at": {"x": 1, "gone": 2}}
    plan = lake.plan(rows_source(BEFORE, one), format_version=version, schema_evolution="full")
    lake.run(plan)
    two = {"id": 1 << 40, "at": {"x": 1 << 40, "new": [1]}, "more": [("k", {"n": 1})]}
    return rows_source(AFTER, one, two)


@pytest.mark.parametrize("version", [2, 3])
def test_declared_columns_are_followed_at_every_depth(lake: Lake, version: int) -> None:
    source = changed_source(lake, version)
    lake.run(lake.plan(source, schema_evolution="full"))

    assert columns(lake) == {
        "id": "long",
        "at": "struct<4: x: optional long, 6: new: optional list<int>>",
        "more": "map<string, struct<11: n: optional long>>",
    }
    assert by_id(lake) == [
        {"id": 1, "at": {"x": 1, "new": None}, "more": None},
        {"id": 1 << 40, "at": {"x": 1 << 40, "new": [1]}, "more": [("k", {"n": 1})]},
    ]
    found = lake.sql("SELECT id, at.x AS x, more['k'].n AS n FROM lake.db.events ORDER BY id")
    assert [tuple(row) for row in found] == [(1, 1, None), (1 << 40, 1 << 40, 1)]


def test_column_that_another_pipeline_fills_is_not_dropped(lake: Lake) -> None:
    changed_source(lake)
    sink = lake.sink(schema_evolution="full")
    sink.open(lake.spark, "other")
    sink.prepare(AFTER, declared=True)

    assert list(columns(lake)) == ["id", "old", "at", "more"]


def test_crash_between_the_change_and_the_commit_is_replayed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = changed_source(lake)

    def cut(point: str) -> None:
        if point == "before-commit":
            raise ConnectionResetError("the power is gone")

    monkeypatch.setattr(batch_module, "crash_point", cut)
    with pytest.raises(ConnectionResetError):
        lake.run(lake.plan(source, schema_evolution="full"))
    assert "more" in columns(lake), "the table was changed"
    assert len(lake.rows()) == 1
    monkeypatch.undo()
    before = columns(lake)
    lake.run(lake.plan(source, schema_evolution="full"))

    assert columns(lake) == before
    assert [row["id"] for row in by_id(lake)] == [1, 1 << 40]


def test_renamed_column_keeps_its_values_and_is_renamed_once(lake: Lake) -> None:
    source = json_source({"id": 1, "name": "a", "at": {"lat": 1.5}})
    lake.run(lake.plan(source))
    source.append_values([b'{"id": 2, "title": "b", "at": {"latitude": 2.5}}'])
    renames = {"name": "title", "at.lat": "latitude"}
    for _ in range(2):
        lake.run(lake.plan(source, schema_evolution="full", renames=renames))

    assert columns(lake) == {
        "id": "long",
        "title": "string",
        "at": "struct<4: latitude: optional double>",
    }
    assert by_id(lake) == [
        {"id": 1, "title": "a", "at": {"latitude": 1.5}},
        {"id": 2, "title": "b", "at": {"latitude": 2.5}},
    ]


def test_row_with_the_old_name_does_not_restore_the_column(lake: Lake) -> None:
    source = json_source({"id": 1, "name": "a"})
    lake.run(lake.plan(source))
    source.append_values([b'{"id": 2, "name": "b"}'])
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(source, schema_evolution="full", renames={"name": "title"}))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the stream still has a column 'name', "
        "which `renames` renames to 'title'\n"
        "  Rename the column with a transform, or remove it from `renames`."
    )
    assert by_id(lake) == [{"id": 1, "title": "a"}]


def test_column_that_partitions_the_table_is_not_dropped(lake: Lake) -> None:
    both = pa.table({"id": [1], "country": ["NO"]})
    append(lake, lake.sink(partitioning=["country"]), both)
    sink = lake.sink(schema_evolution="full")
    sink.open(lake.spark, "events")
    sink.prepare(both.schema, declared=True)
    with pytest.raises(SchemaMismatchError) as caught:
        sink.prepare(both.select(["id"]).schema, declared=True)

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: column 'country' of the table partitions "
        "the table and is missing in the stream\n"
        "  Convert the stream with a `cast` transform, or alter the table."
    )
    changed = lake.sink(schema_evolution="full", partitioning="none")
    changed.open(lake.spark, "events")
    changed.prepare(both.select(["id"]).schema, declared=True)
    assert list(columns(lake)) == ["id", "country"], "older files are partitioned by it"
    files = changed.writer().write(both.select(["id"]).to_batches())
    changed.commit(files, mark(1, rows=1))
    assert sorted(row["country"] or "" for row in lake.rows()) == ["", "NO"]


def test_strict_shows_every_difference(lake: Lake) -> None:
    source = changed_source(lake)
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(source, schema_evolution="strict"))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: "
        "column 'id' is int in the table and long in the stream; "
        "column 'at.x' is int in the table and long in the stream; "
        "the stream has columns that the table lacks: 'at.new' list<int>, "
        "'more' map<string, struct<9: n: optional long>>\n"
        "  Use `schema_evolution: full`, convert the stream with a `cast` transform, or alter the "
        "table."
    )
    assert len(lake.rows()) == 1
