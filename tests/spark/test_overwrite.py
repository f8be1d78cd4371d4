"""Rows that replace rows: by load, by partition, by name; over crashes, and never by accident."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.power_cut import power_cut_at
from tests.fixtures.sink_batches import mark, written

from icestream.engine.crash_points import POINTS
from icestream.errors import CorruptStateError, SchemaMismatchError, SupersededError
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.spark import Lake

    from icestream.contracts.sink import Commit
    from icestream.plan.plan import PipelinePlan
    from icestream.sinks.iceberg.sink import IcebergTableSink

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string())])
BY_KIND: dict[str, Any] = {"partitioning": ("kind",)}
KINDS = "abc"


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.Table.from_pylist([{"id": n, "kind": k} for n, k in pairs], schema=SCHEMA)


def held(lake: Lake) -> list[tuple[int, str]]:
    return sorted((row["id"], row["kind"]) for row in lake.rows())


def ids(lake: Lake) -> list[int]:
    return [row[0] for row in held(lake)]


def opened(lake: Lake, **options: Any) -> IcebergTableSink:
    sink = lake.sink(**options)
    sink.open(lake.spark, "events")
    return sink


def batch(sink: IcebergTableSink, epoch: int, table: pa.Table, load: str = "") -> Commit:
    return sink.commit(written(sink, table), replace(mark(epoch, rows=len(table)), load=load))


def numbered(start: int, stop: int) -> list[dict[str, object]]:
    return [{"id": n, "kind": KINDS[n % len(KINDS)]} for n in range(start, stop)]


@pytest.fixture
def source() -> ScriptedSource:
    """Ten rows, which a plan reads in four batches."""
    scripted = ScriptedSource(schema=SCHEMA)
    scripted.append_rows(numbered(0, 10))
    return scripted


def plan(lake: Lake, source: ScriptedSource, mode: str = "overwrite_table") -> PipelinePlan:
    layout = {} if mode == "overwrite_table" else BY_KIND
    return lake.plan(source, batching=Batching(1, 0.1, 3), commit_mode=mode, **layout)


@pytest.mark.parametrize("mode", ["overwrite_table", "overwrite"])
def test_load_in_several_batches_replaces_once_and_then_appends(
    lake: Lake, source: ScriptedSource, mode: str
) -> None:
    lake.run(plan(lake, source, mode))
    assert ids(lake) == list(range(10))

    source.append_rows(numbered(10, 20))
    lake.run(plan(lake, source, mode))
    assert ids(lake) == list(range(10, 20))


def test_load_leaves_other_partitions_unchanged(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source, "overwrite"))
    source.append_rows([{"id": n, "kind": "b"} for n in range(100, 110)])
    lake.run(plan(lake, source, "overwrite"))

    assert ids(lake) == [0, 2, 3, 5, 6, 8, 9, *range(100, 110)]


@pytest.mark.parametrize(
    ("point", "mode"),
    [*((point, "overwrite") for point in POINTS), ("after-commit", "overwrite_table")],
)
def test_interrupted_load_is_resumed(
    lake: Lake, source: ScriptedSource, point: str, mode: str
) -> None:
    lake.run(plan(lake, source, mode))
    source.append_rows(numbered(10, 20))
    with power_cut_at(point, times=2):
        lake.run(plan(lake, source, mode))
    lake.run(plan(lake, source, mode))
    assert ids(lake) == list(range(10, 20))

    source.append_rows(numbered(20, 26))
    lake.run(plan(lake, source, mode))
    assert ids(lake) == list(range(20, 26)), "the next load replaces again"


@pytest.mark.parametrize("point", ["before-commit", "after-commit"])
def test_replayed_first_batch_replaces_once(lake: Lake, source: ScriptedSource, point: str) -> None:
    lake.run(plan(lake, source))
    source.append_rows(numbered(10, 12))
    with power_cut_at(point):
        lake.run(plan(lake, source))
    lake.run(plan(lake, source))

    assert ids(lake) == [10, 11]


def test_run_without_rows_deletes_nothing(lake: Lake, source: ScriptedSource) -> None:
    lake.run(plan(lake, source))
    before = lake.sql("SELECT count(*) FROM lake.db.events.snapshots")
    lake.run(plan(lake, source))

    assert ids(lake) == list(range(10))
    assert lake.sql("SELECT count(*) FROM lake.db.events.snapshots") == before


@pytest.mark.parametrize(
    "options",
    [
        {"commit_mode": "overwrite"},
        {"commit_mode": "overwrite_table"},
        {**BY_KIND, "commit_mode": "overwrite_partitions", "overwrite_partitions": ("kind=a",)},
    ],
)
def test_batch_without_rows_deletes_nothing(lake: Lake, options: dict[str, Any]) -> None:
    sink = opened(lake, **options)
    batch(sink, 0, rows((1, "a")))
    sink.commit([], mark(1))
    sink.commit_unmarked([])

    assert held(lake) == [(1, "a")]


def test_stream_replaces_what_each_batch_touches(lake: Lake) -> None:
    sink = opened(lake, commit_mode="overwrite", **BY_KIND)
    batch(sink, 0, rows((1, "a"), (2, "b"), (3, None)))
    commit = batch(sink, 1, rows((4, "a"), (5, None)))

    assert sorted(row["id"] for row in lake.rows()) == [2, 4, 5]
    assert (commit.rows, commit.files) == (2, 2)
    assert commit.bytes > 0


def test_stream_replaces_the_whole_table_when_it_has_no_partitions(lake: Lake) -> None:
    sink = opened(lake, commit_mode="overwrite")
    batch(sink, 0, rows((1, "a"), (2, "b")))
    batch(sink, 1, rows((3, "a")))

    assert ids(lake) == [3]


def test_unmarked_commit_replaces_earlier_rows(lake: Lake) -> None:
    sink = opened(lake, commit_mode="overwrite_table")
    for n in (1, 2):
        sink.commit_unmarked(written(sink, rows((n, "a"))))

    assert ids(lake) == [2]


def test_compaction_in_the_middle_of_a_load_changes_nothing(lake: Lake) -> None:
    """What a compaction rewrites looks newer than it is."""
    before = opened(lake, **BY_KIND)
    batch(before, 0, rows((1, "a"), (2, "b"), (3, "c")))
    batch(before, 1, rows((4, "a"), (5, "b"), (6, "c")))
    sink = opened(lake, commit_mode="overwrite", **BY_KIND)
    batch(sink, 2, rows((10, "a")), "load")
    lake.sql(
        f"CALL {lake.name}.system.rewrite_data_files(table => 'db.events', "
        "options => map('rewrite-all', 'true'))"
    )
    batch(opened(lake, commit_mode="overwrite", **BY_KIND), 3, rows((11, "a"), (12, "b")), "load")

    assert held(lake) == [(3, "c"), (6, "c"), (10, "a"), (11, "a"), (12, "b")]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("mode", ["overwrite", "overwrite_table", "overwrite_partitions"])
def test_deletes_of_replaced_rows_are_removed_with_them(
    lake: Lake, version: int, mode: str
) -> None:
    first = opened(
        lake,
        format_version=version,
        table_properties={"write.delete.mode": "merge-on-read"},
        **BY_KIND,
    )
    batch(first, 0, rows(*((n, "a") for n in range(10))))
    lake.sql("DELETE FROM lake.db.events WHERE id = 3")
    names = ("kind=a",) if mode == "overwrite_partitions" else ()
    sink = opened(lake, commit_mode=mode, overwrite_partitions=names, **BY_KIND)
    batch(sink, 1, rows((3, "a")))

    assert held(lake) == [(3, "a")]
    assert lake.sql("SELECT * FROM lake.db.events.delete_files") == []


def test_named_partitions_without_new_rows_are_emptied(lake: Lake) -> None:
    batch(opened(lake, **BY_KIND), 0, rows((1, "a"), (2, "b"), (3, "c"), (4, None)))
    sink = opened(
        lake,
        commit_mode="overwrite_partitions",
        overwrite_partitions=("kind=a", "kind=b", "kind=null"),
        **BY_KIND,
    )
    batch(sink, 1, rows((5, "b")), "load")
    batch(sink, 2, rows((6, "a"), (7, "b")), "load")

    assert held(lake) == [(3, "c"), (5, "b"), (6, "a"), (7, "b")]


@pytest.mark.parametrize(
    ("term", "name"),
    [
        ("days(ts)", "ts_day=2024-10-31"),
        ("hours(ts)", "ts_hour=2024-10-31-05"),
        ("months(ts)", "ts_month=2024-10"),
        ("years(ts)", "ts_year=2024"),
        ("bucket(4, id)", "id_bucket=0"),
        ("truncate(10, id)", "id_trunc=0"),
    ],
)
def test_partition_of_any_transform_is_replaced_by_its_name(
    lake: Lake, term: str, name: str
) -> None:
    when = pa.timestamp("us", tz="UTC")
    timestamps = pa.array(["2024-10-31T05:30:00Z", "2025-11-01T06:30:00Z"]).cast(when)
    both = pa.table({"id": pa.array([1, 20], pa.int64()), "ts": timestamps})
    batch(opened(lake, partitioning=(term,)), 0, both)
    sink = opened(
        lake,
        partitioning=(term,),
        commit_mode="overwrite_partitions",
        overwrite_partitions=(name,),
    )
    batch(sink, 1, both.slice(0, 1))

    assert sorted(row["id"] for row in lake.rows()) == [1, 20]
    assert len(lake.sql("SELECT * FROM lake.db.events.files")) == 2


def data_files(lake: Lake) -> set[Path]:
    return set((lake.folder / "lake").rglob("*.parquet"))


def test_row_outside_the_named_partitions_is_refused_and_leaves_nothing(lake: Lake) -> None:
    batch(opened(lake, **BY_KIND), 0, rows((1, "a"), (2, "b")))
    before = data_files(lake)
    sink = opened(
        lake, commit_mode="overwrite_partitions", overwrite_partitions=("kind=a",), **BY_KIND
    )
    with pytest.raises(SchemaMismatchError) as caught:
        batch(sink, 1, rows((3, "a"), (4, "b"), (5, "b")))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: 2 rows of the batch belong to partition "
        "'kind=b', which `overwrite_partitions` does not name: 'kind=a'\n"
        "  Nothing was written. Name the partition too, leave such rows out with a `filter`, or "
        "use `commit_mode: overwrite`, which replaces what a batch touches."
    )
    assert held(lake) == [(1, "a"), (2, "b")]
    assert data_files(lake) == before


def test_unknown_partition_name_is_refused_before_a_row_is_written(lake: Lake) -> None:
    sink = opened(
        lake, commit_mode="overwrite_partitions", overwrite_partitions=("day=1",), **BY_KIND
    )
    sink.prepare(SCHEMA)
    with pytest.raises(SchemaMismatchError) as caught:
        sink.writer()

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: partition 'day=1': the table has no "
        "partition field 'day'\n"
        "  Its partition fields: kind."
    )


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_partitions"])
def test_files_of_an_older_spec_are_refused(lake: Lake, mode: str) -> None:
    first = opened(lake)
    batch(first, 0, rows((1, "a")))
    first.target.handle.java.updateSpec().addField("kind").commit()
    names = ("kind=a",) if mode == "overwrite_partitions" else ()
    sink = opened(lake, commit_mode=mode, overwrite_partitions=names)
    with pytest.raises(SchemaMismatchError) as caught:
        batch(sink, 1, rows((2, "a")))

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: the table has data files of an older "
        "partition spec, which may hold rows of the partitions to replace\n"
        "  Nothing was written. Rewrite the table with its current spec, e.g. with Spark's "
        "`rewrite_data_files` and `rewrite-all`, or use `commit_mode: overwrite_table`."
    )
    assert ids(lake) == [1]
    batch(opened(lake, commit_mode="overwrite_table"), 1, rows((2, "a")))
    assert ids(lake) == [2]


def test_resuming_without_state_continues_the_load_recorded_in_the_table(
    lake: Lake, source: ScriptedSource
) -> None:
    with power_cut_at("after-batch", times=2):
        lake.run(plan(lake, source, "overwrite"))
    shutil.rmtree(lake.state)
    lake.run(plan(lake, source, "overwrite"), recovery="resume")

    assert ids(lake) == list(range(10))


def test_starting_over_replaces_a_partial_load(lake: Lake, source: ScriptedSource) -> None:
    with power_cut_at("after-batch", times=2):
        lake.run(plan(lake, source))
    lake.run(plan(lake, source), recovery="start-over")

    assert ids(lake) == list(range(10))


def test_superseded_instance_replaces_nothing(lake: Lake) -> None:
    late = opened(lake, commit_mode="overwrite_table")
    batch(late, 0, rows((1, "a")))
    files = written(late, rows((2, "a")))
    batch(opened(lake, commit_mode="overwrite_table"), 1, rows((3, "a")))

    with pytest.raises(SupersededError):
        late.commit(files, replace(mark(1, rows=1), instance="late"))
    assert ids(lake) == [3]


def test_load_with_unknown_partitions_stops(lake: Lake) -> None:
    sink = opened(lake, commit_mode="overwrite", **BY_KIND)
    batch(sink, 0, rows((1, "a")), "load")
    sink.target.handle.set_properties({"icestream.load.events": "x"})
    with pytest.raises(CorruptStateError) as caught:
        batch(opened(lake, commit_mode="overwrite", **BY_KIND), 1, rows((2, "a")), "load")

    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.db.events: table property 'icestream.load.events' "
        "does not list what load 'load' has replaced: 'x'\n"
        "  Restore the property from an older metadata file of the table, or load again with "
        "`icestream run --once --start-over`."
    )
    assert ids(lake) == [1]
