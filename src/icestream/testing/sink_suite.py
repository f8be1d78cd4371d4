"""The conformance tests of every sink, as a pytest class to subclass.

```python
class TestIcebergSink(SinkSuite):
    @pytest.fixture
    def harness(self, spark: SparkSession, tmp_path: Path) -> SinkHarness:
        return LakeTable(spark, tmp_path)
```
"""

# ruff: noqa: S101 - this is a test suite that happens to be shipped

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from icestream.contracts.offset import BatchMark
from icestream.errors import SchemaMismatchError, SupersededError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icestream.contracts.sink import Commit, Sink, WrittenFile

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
PIPELINE = "orders"


class SinkHarness(Protocol):
    """The table that a sink under test writes; it does not exist at first."""

    spark: SparkSession

    def sink(self) -> Sink[Any]:
        """Build a new sink for the table."""
        ...

    def strict_sink(self) -> Sink[Any]:
        """Build a new sink for the same table that must not change its columns."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """Read the table without the sink; empty while there is no table."""
        ...


class SinkSuite:
    """Proves that a sink keeps its contract. A subclass defines the fixture `harness`."""

    @pytest.fixture
    def harness(self) -> SinkHarness:
        """Return the harness of the sink under test."""
        raise NotImplementedError("define the fixture `harness`")

    def test_building_a_sink_changes_nothing(self, harness: SinkHarness) -> None:
        sink = harness.sink()

        assert sink.identity() == harness.sink().identity()
        assert len(sink.identity().splitlines()) == 1
        assert harness.rows() == []

    def test_missing_table_has_no_mark_and_no_columns(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)

        assert sink.last_mark() is None
        assert sink.foreign_marks() == []
        assert sink.columns() is None
        assert not sink.holds(_mark(0))

    def test_commit_makes_rows_and_mark_visible_together(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        files = _write_files(sink, 1, 2)
        assert harness.rows() == [], "uncommitted files hold no rows of the table"
        assert _open_sink(harness).last_mark() is None

        commit = sink.commit(files, _mark(0, rows=2))

        assert _ids(harness) == [1, 2]
        assert (commit.rows, commit.files) == (2, len(files))
        assert commit.bytes == sum(file.bytes for file in files) > 0
        assert commit.retries == 0
        assert commit.seconds > 0
        assert sink.last_mark() == _open_sink(harness).last_mark() == _mark(0, rows=2)

    def test_batches_continue_within_an_instance_and_after_a_restart(
        self, harness: SinkHarness
    ) -> None:
        sink = _open_sink(harness)
        _commit_batch(sink, 0, 1)
        _commit_batch(sink, 1, 2)
        restarted = _open_sink(harness)
        _commit_batch(restarted, 2, 3)

        assert _ids(harness) == [1, 2, 3]
        assert restarted.last_mark() == _mark(2, rows=1)

    def test_every_instance_knows_which_batches_the_table_holds(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        _commit_batch(sink, 0, 1)
        _commit_batch(sink, 3, 2)

        for instance in (sink, _open_sink(harness)):
            assert [epoch for epoch in range(6) if instance.holds(_mark(epoch))] == [0, 1, 2, 3]
            assert not instance.holds(_mark(0, query="another")), "its epochs start at 0 again"

    def test_files_of_a_retried_attempt_stay_invisible(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        first, second = _write_files(sink, 1, 2), _write_files(sink, 1, 2)
        assert not {repr(f.metadata) for f in first} & {repr(f.metadata) for f in second}

        sink.commit(second, _mark(0, rows=2))

        assert _ids(harness) == [1, 2]

    def test_writer_and_files_can_be_pickled(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        sink.prepare(COLUMNS)

        writer = pickle.loads(pickle.dumps(sink.writer()))  # noqa: S301 - our own bytes
        files = pickle.loads(pickle.dumps(writer.write([_rows(1)])))  # noqa: S301 - our own bytes
        sink.commit(files, _mark(0, rows=1))

        assert _ids(harness) == [1]

    def test_files_of_several_tasks_are_one_commit(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        sink.prepare(COLUMNS)
        files = [file for n in range(5) for file in sink.writer().write([_rows(n)])]

        commit = sink.commit(files, _mark(0, rows=5))

        assert (commit.rows, commit.files) == (5, 5)
        assert _ids(harness) == [0, 1, 2, 3, 4]

    def test_superseded_instance_commits_nothing(self, harness: SinkHarness) -> None:
        late = _open_sink(harness)
        _commit_batch(late, 0, 1)
        files = _write_files(late, 2)
        _commit_batch(_open_sink(harness), 1, 2)

        with pytest.raises(SupersededError):
            late.commit(files, replace(_mark(1, rows=1), instance="late"))
        assert _ids(harness) == [1, 2]
        _commit_batch(_open_sink(harness), 2, 3)
        assert _ids(harness) == [1, 2, 3]

    def test_instance_superseded_at_its_first_batch_commits_nothing(
        self, harness: SinkHarness
    ) -> None:
        _open_sink(harness).prepare(COLUMNS)
        late = _open_sink(harness)
        files = _write_files(late, 1)
        _commit_batch(_open_sink(harness), 0, 1)

        with pytest.raises(SupersededError):
            late.commit(files, replace(_mark(0, rows=1), instance="late"))
        assert _ids(harness) == [1]

    def test_own_commit_that_succeeded_late_counts_once(self, harness: SinkHarness) -> None:
        late = _open_sink(harness)
        files = _write_files(late, 1)
        _commit_batch(_open_sink(harness), 0, 1)

        late.commit(files, _mark(0, rows=1))
        assert _ids(harness) == [1]

    def test_pipelines_of_one_table_do_not_fence_each_other(self, harness: SinkHarness) -> None:
        one, two = _open_sink(harness), _open_sink(harness, "returns")
        _commit_batch(one, 0, 1)
        two = _open_sink(harness, "returns")
        files = _write_files(two, 2)
        _commit_batch(one, 1, 3)

        two.commit(files, _mark(0, rows=1, pipeline="returns"))

        assert _ids(harness) == [1, 2, 3]
        assert _open_sink(harness).last_mark() == _mark(1, rows=1)
        assert _open_sink(harness).foreign_marks() == [_mark(0, rows=1, pipeline="returns")]
        assert not _open_sink(harness).holds(_mark(5))

    def test_new_columns_are_added_and_null_in_older_rows(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        _commit_batch(sink, 0, 1)
        wider = pa.table({"id": [2], "name": ["b"], "age": [7]})

        sink.prepare(wider.schema)
        sink.commit(sink.writer().write(wider.to_batches()), _mark(1, rows=1))

        assert sorted(harness.rows(), key=lambda row: int(row["id"])) == [
            {"id": 1, "name": "row 1", "age": None},
            {"id": 2, "name": "b", "age": 7},
        ]
        columns = _open_sink(harness).columns()
        assert columns is not None
        assert columns.names == ["id", "name", "age"]
        _commit_batch(_open_sink(harness), 2, 3)
        assert _ids(harness) == [1, 2, 3], "rows without the column are still accepted"

    def test_strict_sink_refuses_new_columns_and_changes_nothing(
        self, harness: SinkHarness
    ) -> None:
        _commit_batch(_open_sink(harness), 0, 1)
        sink = harness.strict_sink()
        sink.open(harness.spark, PIPELINE)
        assert not sink.adds_columns()

        with pytest.raises(SchemaMismatchError, match="'age'"):
            sink.prepare(COLUMNS.append(pa.field("age", pa.int64())))

        assert harness.rows() == [{"id": 1, "name": "row 1"}]
        _commit_batch(sink, 1, 2)
        assert _ids(harness) == [1, 2]

    def test_type_that_does_not_fit_is_refused(self, harness: SinkHarness) -> None:
        sink = _open_sink(harness)
        _commit_batch(sink, 0, 1)

        with pytest.raises(SchemaMismatchError, match="'id'"):
            sink.prepare(pa.schema([("id", pa.string())]))
        assert _ids(harness) == [1]

    def test_every_step_of_check_passes_before_and_after(self, harness: SinkHarness) -> None:
        assert all(step.run() for step in harness.sink().check())
        _commit_batch(_open_sink(harness), 0, 1)
        assert all(step.run() for step in harness.sink().check())


def _mark(epoch: int, *, rows: int = 0, query: str = "q1", pipeline: str = PIPELINE) -> BatchMark:
    start, end = {"row": epoch}, {"row": epoch + 1}
    return BatchMark(pipeline, query, epoch, "scripted rows", start, end, rows, "here")


def _open_sink(harness: SinkHarness, pipeline: str = PIPELINE) -> Sink[Any]:
    sink = harness.sink()
    sink.open(harness.spark, pipeline)
    return sink


def _rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "name": f"row {n}"} for n in ids], schema=COLUMNS)


def _write_files(sink: Sink[Any], *ids: int) -> list[WrittenFile]:
    sink.prepare(COLUMNS)
    return sink.writer().write([_rows(*ids)])


def _commit_batch(sink: Sink[Any], epoch: int, *ids: int) -> Commit:
    return sink.commit(_write_files(sink, *ids), _mark(epoch, rows=len(ids)))


def _ids(harness: SinkHarness) -> list[int]:
    counted = Counter(int(row["id"]) for row in harness.rows())
    return sorted(counted.elements())
