"""A pipeline with `schema_evolution: full` drops what it declared itself, and nothing else."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.sink_batches import mark

from icestream.errors import SchemaMismatchError
from icestream.sources.files import FilesOptions, FilesSource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.spark import Lake

ID = pa.schema([("id", pa.int64())])
BOTH = pa.schema([("id", pa.int64()), ("amount", pa.int64())])


def declare(lake: Lake, columns: pa.Schema, pipeline: str = "events", **options: str) -> None:
    """Start a pipeline that declares these columns, and stop it before its first commit."""
    sink = lake.sink(schema_evolution="full", **options)
    sink.open(lake.spark, pipeline)
    sink.prepare(columns, declared=True)


def names(lake: Lake) -> list[str]:
    schema = lake.catalog.client().load_table(("db", "events")).schema()
    return [field.name for field in schema.fields]


def test_only_what_the_pipeline_declared_itself_is_dropped(lake: Lake) -> None:
    declare(lake, BOTH)
    lake.sql("ALTER TABLE lake.db.events ADD COLUMN region string")
    declare(lake, BOTH)
    assert names(lake) == ["id", "amount", "region"]
    declare(lake, ID)
    assert names(lake) == ["id", "region"]


def test_first_run_drops_nothing(lake: Lake) -> None:
    lake.sql("CREATE NAMESPACE lake.db")
    lake.sql("CREATE TABLE lake.db.events (id bigint, region string) USING iceberg")
    declare(lake, ID)

    assert names(lake) == ["id", "region"]


def test_column_added_by_another_tool_during_a_run_is_not_dropped(lake: Lake) -> None:
    sink = lake.sink(schema_evolution="full")
    sink.open(lake.spark, "events")
    for epoch in range(2):
        sink.prepare(ID, declared=True)
        files = sink.writer().write(pa.table({"id": [epoch]}).to_batches())
        sink.commit(files, mark(epoch, rows=1))
        if epoch == 0:
            lake.sql("ALTER TABLE lake.db.events ADD COLUMN region string")

    assert names(lake) == ["id", "region"]


def test_column_renamed_by_another_tool_between_runs_is_not_dropped(
    lake: Lake,
) -> None:
    declare(lake, BOTH)
    lake.sql("ALTER TABLE lake.db.events RENAME COLUMN amount TO total")
    for _ in range(2):
        declare(lake, BOTH)
        assert names(lake) == ["id", "total", "amount"]


def test_column_of_a_pipeline_that_has_not_committed_is_not_dropped(lake: Lake) -> None:
    declare(lake, BOTH)
    declare(lake, BOTH, "other")
    declare(lake, ID)

    assert names(lake) == ["id", "amount"]


def test_replayed_dead_letters_do_not_keep_a_column(lake: Lake) -> None:
    declare(lake, BOTH)
    sink = lake.sink()
    sink.open(lake.spark, "events/dlq")
    sink.prepare(BOTH)
    files = sink.writer().write(pa.table({"id": [1], "amount": [2]}).to_batches())
    sink.commit(files, mark(0, pipeline="events/dlq", rows=1))
    declare(lake, ID)

    assert names(lake) == ["id"]


def test_files_that_lack_a_column_do_not_drop_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are inferred from the files in the folder, which come and go."""
    monkeypatch.setattr(FilesSource, "settle_secs", 0.0)
    folder = tmp_path / "in"
    folder.mkdir()
    options = FilesOptions(path=str(folder), format="parquet")
    for name, rows in {"1": {"id": [1], "amount": [10]}, "2": {"id": [2]}}.items():
        path = folder / f"{name}.parquet"
        pq.write_table(pa.table(rows), path)
        lake.run(lake.plan(FilesSource(options), schema_evolution="full"))
        path.unlink()

    assert names(lake) == ["id", "amount"]
    assert {row["id"]: row["amount"] for row in lake.rows()} == {1: 10, 2: None}


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_column_is_not_renamed_for_the_rows_of_a_branch(lake: Lake, is_asked_first: bool) -> None:
    declare(lake, BOTH)
    sink = lake.sink(schema_evolution="full", renames={"amount": "total"}, branch="audit")
    sink.open(lake.spark, "events")
    renamed = pa.schema([("id", pa.int64()), ("total", pa.int64())])
    ask = sink.columns if is_asked_first else partial(sink.prepare, renamed)
    with pytest.raises(SchemaMismatchError) as caught:
        ask()

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: columns belong to all branches, and rows "
        "for branch 'audit' would rename 'amount' to 'total'\n"
        "  Alter the table with your engine once its readers are ready, or write to the main "
        "branch."
    )
    assert names(lake) == ["id", "amount"]


def test_column_is_not_dropped_for_the_rows_of_a_branch(lake: Lake) -> None:
    declare(lake, BOTH)
    with pytest.raises(SchemaMismatchError) as caught:
        declare(lake, ID, branch="audit")
    assert caught.value.what == (
        "columns belong to all branches, and rows for branch 'audit' would drop 'amount'"
    )
    declare(lake, BOTH.append(pa.field("more", pa.string())), branch="audit")

    assert names(lake) == ["id", "amount", "more"]
