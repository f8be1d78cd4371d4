"""What must hold for every sink, as a pytest class to subclass.

```python
class TestIcebergSink(SinkSuite):
    @pytest.fixture
    def place(self, spark: SparkSession, tmp_path: Path) -> Place:
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


class Place(Protocol):
    """Where a sink under test writes: one table that does not exist yet."""

    spark: SparkSession

    def sink(self) -> Sink[Any]:
        """Build a sink for the table, a new one at each call."""
        ...

    def strict_sink(self) -> Sink[Any]:
        """Build a sink for the same table that may not change its columns."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """Read the table back by other means than the sink; empty while there is no table."""
        ...


class SinkSuite:
    """Proves that a sink keeps its contract. A subclass gives the fixture `place`."""

    @pytest.fixture
    def place(self) -> Place:
        """Return the place under test."""
        raise NotImplementedError("give the fixture `place`")

    def test_sink_that_was_built_has_touched_nothing(self, place: Place) -> None:
        sink = place.sink()

        assert sink.identity() == place.sink().identity()
        assert len(sink.identity().splitlines()) == 1
        assert place.rows() == []

    def test_table_that_is_missing_has_no_mark_and_no_columns(self, place: Place) -> None:
        sink = _opened(place)

        assert sink.last_mark() is None
        assert sink.foreign_marks() == []
        assert sink.columns() is None
        assert not sink.holds(_mark(0))

    def test_commit_makes_rows_and_mark_visible_together(self, place: Place) -> None:
        sink = _opened(place)
        files = _written(sink, 1, 2)
        assert place.rows() == [], "files that nobody committed hold no rows of the table"
        assert _opened(place).last_mark() is None

        commit = sink.commit(files, _mark(0, rows=2))

        assert _ids(place) == [1, 2]
        assert (commit.rows, commit.files) == (2, len(files))
        assert commit.bytes == sum(file.bytes for file in files) > 0
        assert commit.retries == 0
        assert commit.seconds > 0
        assert sink.last_mark() == _opened(place).last_mark() == _mark(0, rows=2)

    def test_batches_follow_each_other_in_one_instance_and_over_restarts(
        self, place: Place
    ) -> None:
        sink = _opened(place)
        _batch(sink, 0, 1)
        _batch(sink, 1, 2)
        again = _opened(place)
        _batch(again, 2, 3)

        assert _ids(place) == [1, 2, 3]
        assert again.last_mark() == _mark(2, rows=1)

    def test_batch_that_the_table_holds_is_known_by_every_instance(self, place: Place) -> None:
        sink = _opened(place)
        _batch(sink, 0, 1)
        _batch(sink, 3, 2)

        for each in (sink, _opened(place)):
            assert [epoch for epoch in range(6) if each.holds(_mark(epoch))] == [0, 1, 2, 3]
            assert not each.holds(_mark(0, query="another")), "its epochs count from 0 again"

    def test_files_of_an_attempt_that_was_repeated_stay_invisible(self, place: Place) -> None:
        sink = _opened(place)
        first, second = _written(sink, 1, 2), _written(sink, 1, 2)
        assert not {repr(f.what) for f in first} & {repr(f.what) for f in second}

        sink.commit(second, _mark(0, rows=2))

        assert _ids(place) == [1, 2]

    def test_writer_and_files_are_sent_between_processes(self, place: Place) -> None:
        sink = _opened(place)
        sink.prepare(COLUMNS)

        writer = pickle.loads(pickle.dumps(sink.writer()))  # noqa: S301 - our own bytes
        files = pickle.loads(pickle.dumps(writer.write([_rows(1)])))  # noqa: S301 - our own bytes
        sink.commit(files, _mark(0, rows=1))

        assert _ids(place) == [1]

    def test_files_of_several_tasks_are_one_commit(self, place: Place) -> None:
        sink = _opened(place)
        sink.prepare(COLUMNS)
        files = [file for n in range(5) for file in sink.writer().write([_rows(n)])]

        commit = sink.commit(files, _mark(0, rows=5))

        assert (commit.rows, commit.files) == (5, 5)
        assert _ids(place) == [0, 1, 2, 3, 4]

    def test_instance_that_another_one_overtook_commits_nothing(self, place: Place) -> None:
        late = _opened(place)
        _batch(late, 0, 1)
        files = _written(late, 2)
        _batch(_opened(place), 1, 2)

        with pytest.raises(SupersededError):
            late.commit(files, replace(_mark(1, rows=1), instance="late"))
        assert _ids(place) == [1, 2]
        _batch(_opened(place), 2, 3)
        assert _ids(place) == [1, 2, 3]

    def test_instance_overtaken_at_its_first_batch_commits_nothing(self, place: Place) -> None:
        _opened(place).prepare(COLUMNS)
        late = _opened(place)
        files = _written(late, 1)
        _batch(_opened(place), 0, 1)

        with pytest.raises(SupersededError):
            late.commit(files, replace(_mark(0, rows=1), instance="late"))
        assert _ids(place) == [1]

    def test_own_commit_that_came_through_late_counts_once(self, place: Place) -> None:
        late = _opened(place)
        files = _written(late, 1)
        _batch(_opened(place), 0, 1)

        late.commit(files, _mark(0, rows=1))
        assert _ids(place) == [1]

    def test_pipelines_of_one_table_do_not_fence_each_other(self, place: Place) -> None:
        one, two = _opened(place), _opened(place, "returns")
        _batch(one, 0, 1)
        two = _opened(place, "returns")
        files = _written(two, 2)
        _batch(one, 1, 3)

        two.commit(files, _mark(0, rows=1, pipeline="returns"))

        assert _ids(place) == [1, 2, 3]
        assert _opened(place).last_mark() == _mark(1, rows=1)
        assert _opened(place).foreign_marks() == [_mark(0, rows=1, pipeline="returns")]
        assert not _opened(place).holds(_mark(5))

    def test_new_columns_are_added_and_older_rows_have_none(self, place: Place) -> None:
        sink = _opened(place)
        _batch(sink, 0, 1)
        wider = pa.table({"id": [2], "name": ["b"], "age": [7]})

        sink.prepare(wider.schema)
        sink.commit(sink.writer().write(wider.to_batches()), _mark(1, rows=1))

        assert sorted(place.rows(), key=lambda row: int(row["id"])) == [
            {"id": 1, "name": "row 1", "age": None},
            {"id": 2, "name": "b", "age": 7},
        ]
        columns = _opened(place).columns()
        assert columns is not None
        assert columns.names == ["id", "name", "age"]
        _batch(_opened(place), 2, 3)
        assert _ids(place) == [1, 2, 3], "rows without the column are still welcome"

    def test_strict_sink_refuses_new_columns_and_changes_nothing(self, place: Place) -> None:
        _batch(_opened(place), 0, 1)
        sink = place.strict_sink()
        sink.open(place.spark, PIPELINE)
        assert not sink.adds_columns()

        with pytest.raises(SchemaMismatchError, match="'age'"):
            sink.prepare(COLUMNS.append(pa.field("age", pa.int64())))

        assert place.rows() == [{"id": 1, "name": "row 1"}]
        _batch(sink, 1, 2)
        assert _ids(place) == [1, 2]

    def test_type_that_does_not_fit_is_refused(self, place: Place) -> None:
        sink = _opened(place)
        _batch(sink, 0, 1)

        with pytest.raises(SchemaMismatchError, match="'id'"):
            sink.prepare(pa.schema([("id", pa.string())]))
        assert _ids(place) == [1]

    def test_every_step_of_check_passes_before_and_after(self, place: Place) -> None:
        assert all(step.run() for step in place.sink().check())
        _batch(_opened(place), 0, 1)
        assert all(step.run() for step in place.sink().check())


def _mark(epoch: int, *, rows: int = 0, query: str = "q1", pipeline: str = PIPELINE) -> BatchMark:
    start, end = {"row": epoch}, {"row": epoch + 1}
    return BatchMark(pipeline, query, epoch, "scripted rows", start, end, rows, "here")


def _opened(place: Place, pipeline: str = PIPELINE) -> Sink[Any]:
    sink = place.sink()
    sink.open(place.spark, pipeline)
    return sink


def _rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "name": f"row {n}"} for n in ids], schema=COLUMNS)


def _written(sink: Sink[Any], *ids: int) -> list[WrittenFile]:
    sink.prepare(COLUMNS)
    return sink.writer().write([_rows(*ids)])


def _batch(sink: Sink[Any], epoch: int, *ids: int) -> Commit:
    return sink.commit(_written(sink, *ids), _mark(epoch, rows=len(ids)))


def _ids(place: Place) -> list[int]:
    counted = Counter(int(row["id"]) for row in place.rows())
    return sorted(counted.elements())
