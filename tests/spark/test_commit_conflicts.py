"""Other writers, lost answers and a catalog that is away: each batch once, or not at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest
from tests.fixtures.sink_batches import append, mark, written

from icestream.errors import CommitConflictError, CommitUnknownError
from icestream.metrics.events import BatchWritten
from icestream.sinks.iceberg import commit as commits
from icestream.sinks.iceberg.commit import Fence
from icestream.sinks.iceberg.java_table import JavaTable
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixtures.spark import Lake

    from icestream.sinks.iceberg.ledger import MarkSnapshot

ROWS = pa.table({"id": [1, 2, 3]})


class OtherWriter:
    """Moves the table inside the first attempts of our commit, and notes when each began."""

    def __init__(self, lake: Lake, moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved = 0
        self.times: list[float] = []
        original = Fence.validate
        sink = lake.sink()
        sink.open(lake.spark, "other")
        table = sink.target.handle

        def validate(fence: Fence, snapshots: object) -> bool:
            self.times.append(time.monotonic())
            passed = original(fence, snapshots)
            if self.moved < moves:
                self.moved += 1
                table.set_properties({"moved": str(self.moved)})
            return passed

        monkeypatch.setattr(Fence, "validate", validate)

    def waits(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def raise_in_java(lake: Lake) -> NoReturn:
    """Raise the error of a call into Java that was cut short."""
    jvm: Any = lake.spark._jvm
    jvm.java.util.concurrent.CompletableFuture.failedFuture(
        jvm.java.lang.RuntimeException("no answer")
    ).join()
    raise AssertionError("Java went on")


def raise_as_pyspark_does(lake: Lake) -> NoReturn:
    """Raise an exception of Java's to which PySpark gives a class of its own."""
    jvm: Any = lake.spark._jvm
    jvm.java.lang.Integer.parseInt("no answer")
    raise AssertionError("Java went on")


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def data_files(lake: Lake) -> set[Path]:
    return set((lake.folder / "lake").rglob("*.parquet"))


def test_conflicting_commit_is_retried_and_counted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    append(lake, sink, ROWS)
    files = written(sink, ROWS)
    other = OtherWriter(lake, 2, monkeypatch)
    commit = sink.commit(files, mark(1, rows=3))

    assert other.moved == 2
    assert commit.retries == 2
    assert ids(lake) == [1, 1, 2, 2, 3, 3]
    assert lake.catalog.client().load_table(("db", "events")).properties["moved"] == "2"


def test_commit_that_always_conflicts_fails_after_three_retries_and_leaves_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink()
    append(lake, sink, ROWS)
    files = written(sink, ROWS)
    other = OtherWriter(lake, 100, monkeypatch)
    with pytest.raises(CommitConflictError) as caught:
        sink.commit(files, mark(1, rows=3))
    monkeypatch.undo()

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {lake.name}.db.events: commit refused 4 times: other "
        "writers changed the table\n"
        "  Nothing was written; the batch is replayed at the next start. Use one writer per "
        "table, or partition the table so that writers don't conflict."
    )
    assert caught.value.retries == 3
    built, *waits = other.waits()
    assert len(other.times) == 5, "asked when the append was built, and in each attempt"
    assert built >= 0
    for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True):
        # Up to 10 % jitter, and what the attempt itself took on a busy machine.
        assert least <= wait < least * 1.1 + 1.5
    assert ids(lake) == [1, 2, 3]
    append(lake, lake.sink(), ROWS, 1)
    assert ids(lake) == [1, 1, 2, 2, 3, 3]


def test_commit_whose_response_was_lost_counts_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = commits.apply_change

    def lose_the_answer(table: JavaTable, *arguments: Any) -> MarkSnapshot:
        original(table, *arguments)
        raise_in_java(lake)

    source = ScriptedSource(schema=ROWS.schema)
    source.append_rows(ROWS.to_pylist())
    lake.run(lake.plan(source))
    source.append_rows([{"id": 4}])
    monkeypatch.setattr(commits, "apply_change", lose_the_answer)
    lake.events.clear()
    runner = lake.run(lake.plan(source))
    monkeypatch.undo()
    lake.run(lake.plan(source))

    assert [e.rows for e in lake.events if isinstance(e, BatchWritten)] == [1]
    assert runner.progress.rows == 1
    assert ids(lake) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (raise_in_java, "java.lang.RuntimeException: no answer"),
        (raise_as_pyspark_does, 'For input string: "no answer"'),
    ],
)
def test_commit_interrupted_before_it_was_applied_is_written_later(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Lake], NoReturn],
    message: str,
) -> None:
    sink = lake.sink()
    append(lake, sink, ROWS)
    files = written(sink, ROWS)

    def break_off(table: JavaTable, *arguments: Any) -> MarkSnapshot:
        fault(lake)

    monkeypatch.setattr(commits, "apply_change", break_off)
    with pytest.raises(CommitUnknownError) as caught:
        sink.commit(files, mark(1, rows=3))
    monkeypatch.undo()

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {lake.name}.db.events: the commit failed: "
        f"{message}\n"
        "  The table does not hold the batch; it is replayed at the next start."
    )
    assert ids(lake) == [1, 2, 3]
    sink.commit(files, mark(1, rows=3))
    assert ids(lake) == [1, 1, 2, 2, 3, 3], "the files were kept"


@pytest.mark.parametrize("landed", [True, False])
def test_commit_of_unknown_outcome_keeps_its_files_and_is_looked_up_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    original = commits.apply_change

    def no_answer(table: JavaTable, *arguments: Any) -> MarkSnapshot:
        if landed:
            original(table, *arguments)
        raise_in_java(lake)

    def away(table: JavaTable, key: str) -> str | None:
        raise_in_java(lake)

    source = ScriptedSource(schema=ROWS.schema)
    source.append_rows(ROWS.to_pylist())
    lake.run(lake.plan(source))
    before = data_files(lake)
    source.append_rows([{"id": 4}])
    monkeypatch.setattr(commits, "apply_change", no_answer)
    monkeypatch.setattr(JavaTable, "read_property", away)
    with pytest.raises(CommitUnknownError) as caught:
        lake.run(lake.plan(source))
    monkeypatch.undo()

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {lake.name}.db.events: no answer to the commit, and "
        "the table can't be read: java.lang.RuntimeException: no answer\n"
        "  The batch's files are kept. The next start checks whether the table holds the batch, "
        "and replays it if not."
    )
    assert len(data_files(lake) - before) == 1
    lake.run(lake.plan(source))
    assert ids(lake) == [1, 2, 3, 4]
    assert len(data_files(lake) - before) == (1 if landed else 2)


def test_retries_of_a_batch_reach_the_events(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ScriptedSource(schema=ROWS.schema)
    source.append_rows(ROWS.to_pylist())
    lake.run(lake.plan(source))
    source.append_rows([{"id": 4}])
    OtherWriter(lake, 2, monkeypatch)
    lake.run(lake.plan(source))

    assert [e.retries for e in lake.events if isinstance(e, BatchWritten)] == [0, 2]
    assert ids(lake) == [1, 2, 3, 4]
