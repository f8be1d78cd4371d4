"""Tables that another tool has created and also writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append, mark, written

from icestream.errors import CheckpointLostError, ConnectorError, SchemaMismatchError

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

ROWS = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", None]})


@pytest.fixture
def table(lake: Lake) -> Lake:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql(
        "CREATE TABLE lake.db.events (id bigint NOT NULL, name string COMMENT 'full name', "
        "born date) USING iceberg PARTITIONED BY (truncate(1, name)) "
        "TBLPROPERTIES ('format-version' = '2', 'team' = 'them', 'commit.retry.num-retries' = '7')"
    )
    lake.sql("INSERT INTO lake.db.events VALUES (100, 'theirs', date '2000-01-01')")
    return lake


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def test_batches_interleave_with_commits_of_other_writers(table: Lake) -> None:
    sink = table.sink()
    append(table, sink, ROWS)
    table.sql("INSERT INTO lake.db.events VALUES (101, 'theirs', NULL)")
    files = written(sink, ROWS)
    table.sql("DELETE FROM lake.db.events WHERE id = 100")
    table.sql("UPDATE lake.db.events SET name = 'changed' WHERE id = 101")
    commit = sink.commit(files, mark(1, rows=2))

    assert commit.retries <= 1
    assert ids(table) == [1, 1, 2, 2, 101]
    loaded = table.catalog.client().load_table(("db", "events"))
    assert loaded.format_version == 2
    assert loaded.properties["team"] == "them"
    assert loaded.properties["commit.retry.num-retries"] == "7", "the owner's policy stays"
    assert loaded.properties["commit.retry.min-wait-ms"] == "100"
    epochs = [s.summary["icestream.epoch"] for s in loaded.snapshots() if s.summary]
    assert [epoch for epoch in epochs if epoch] == ["0", "1"]
    assert len(loaded.snapshots()) == 6


def test_new_column_is_added_to_an_existing_table(table: Lake) -> None:
    rows = ROWS.append_column("new.field", pa.array([[{"x": 1}], None]))
    append(table, table.sink(), rows)
    deeper = ROWS.append_column("new.field", pa.array([[{"x": 2, "y": "deep"}], []]))
    append(table, table.sink(), deeper, 1)

    read = [(r.id, r.born, r["new.field"]) for r in table.sql("SELECT * FROM lake.db.events")]
    assert sorted((i, [tuple(e) for e in new or []]) for i, _, new in read if i < 100) == [
        (1, [(1, None)]),
        (1, [(2, "deep")]),
        (2, []),
        (2, []),
    ]
    described = {row.col_name: row.comment for row in table.sql("DESCRIBE lake.db.events")}
    assert described["name"] == "full name"


def test_strict_sink_adds_no_column_to_an_existing_table(table: Lake) -> None:
    sink = table.sink(schema_evolution="strict")
    with pytest.raises(SchemaMismatchError) as caught:
        append(table, sink, ROWS.append_column("age", pa.array([1, 2])))

    assert str(caught.value) == (
        f"pipeline 'events', table {table.name}.db.events: the stream has columns that the table "
        "lacks: 'age' long\n  Use `schema_evolution: add_columns`, or alter the table."
    )
    assert ids(table) == [100]


def test_rows_incompatible_with_existing_columns_are_refused(table: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        append(table, table.sink(), pa.table({"name": [5], "born": ["2000-01-01"]}))

    assert str(caught.value) == (
        f"pipeline 'events', table {table.name}.db.events: "
        "column 'name' is string in the table and long in the stream; "
        "column 'born' is date in the table and string in the stream; "
        "column 'id' is required by the table and missing in the stream\n"
        "  Convert the stream with a `cast` transform, or alter the table."
    )
    with pytest.raises(SchemaMismatchError, match="a row has no value for it"):
        append(table, table.sink(), pa.table({"id": pa.array([1, None], pa.int64())}))
    assert ids(table) == [100]


def test_missing_table_is_an_error_if_it_may_not_be_created(lake: Lake) -> None:
    with pytest.raises(ConnectorError) as caught:
        append(lake, lake.sink("nothing", create=False), ROWS)

    message = (
        f"sink 'lake', table {lake.name}.db.nothing: the table does not exist, and `create` is "
        "false\n  Create the table, set `create: true`, or check the spelling of `namespace` "
        "and `table`."
    )
    assert str(caught.value) == message
    step = list(lake.sink("nothing", create=False).check())[-1]
    with pytest.raises(ConnectorError) as checked:
        step.run()
    assert str(checked.value) == message
    assert list(lake.sink("nothing").check())[-1].run() == f"{lake.name}.db.nothing will be created"


def test_removed_property_stops_the_pipeline(table: Lake) -> None:
    sink = table.sink()
    append(table, sink, ROWS)
    files = written(sink, ROWS)
    table.sql("ALTER TABLE lake.db.events UNSET TBLPROPERTIES ('icestream.mark.events')")
    with pytest.raises(CheckpointLostError) as caught:
        sink.commit(files, mark(1, rows=2))

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {table.name}.db.events: the table no longer has the "
        "mark of this pipeline: it was dropped and recreated, or its properties were changed\n"
        "  Nothing was written. Run the pipeline again: it lists the ways to continue."
    )
    assert ids(table) == [1, 2, 100]
