"""Batches of a sink that is many tables: each table for itself, and letters when all is told.

Dead letters come last here, so that they can hold the rows of a table that did not take them. A
dead-letter table that holds a batch is thus the proof that the whole batch is settled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from icestream.contracts.decoder import BadRecord
from icestream.contracts.reports import as_report, run_tasks
from icestream.contracts.sink import ManyTables
from icestream.contracts.transform import ROW
from icestream.engine.crash_points import AFTER_TABLE, crash_point
from icestream.engine.dead_letters.buffer import DeadLetters, row_as_json
from icestream.engine.dead_letters.dedup import are_held
from icestream.engine.dead_letters.row_validation import INDEX_BITS, RowFaults, read_again
from icestream.errors import BadRecordError
from icestream.metrics.events import BatchSkipped, BatchSpread, BatchWritten, RecordsFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import Commit, RefusedRows, TableCommits, WrittenFile
    from icestream.engine.batch.batch import BatchResult
    from icestream.engine.batch.outcome import Outcome
    from icestream.engine.batch.tasks import Reading
    from icestream.errors import IcestreamError
    from icestream.plan.plan import PipelinePlan


@dataclass(frozen=True)
class Settled:
    """What became of a batch, table by table.

    Attributes:
        commits: what each commit did, by table.
        held: tables that held the batch already.
        refused: how many rows no table took, by the table that they name.
        keeps_refused: whether these became dead letters.
        letters: further dead letters.
        seconds: how long it took, from rows put aside to the last commit.
    """

    commits: Mapping[str, Commit] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    keeps_refused: bool = True
    letters: int = 0
    seconds: float = 0.0


def checked(
    plan: PipelinePlan, reading: Reading, letters: DeadLetters | None
) -> tuple[Reading, RowFaults | None]:
    """Let rows that the sink does not take be left out on the way to the writer, if they may be.

    Where they may become dead letters, each row has the number of its record, and keeps it where
    one of many tables may yet refuse it.
    """
    if plan.on_error == "fail":
        return reading, None
    sink = plan.sink
    check = sink.row_faults()
    if check is None:
        return reading, None
    kept = letters is not None or reading.tells
    numbered = kept and plan.source.traits.replayable
    faults = RowFaults(
        reading=reading,
        keeps_faults=plan.on_error == "dead_letter",
        letters=letters,
        tells=reading.tells,
        check=check,
        keeps_number=isinstance(sink, ManyTables),
    )
    return replace(reading, numbered=numbered), faults


def is_settled(plan: PipelinePlan, mark: BatchMark) -> bool:
    """Tell whether the letters of a batch are there, and so all that comes before them."""
    if not isinstance(plan.sink, ManyTables) or plan.dead_letter is None:
        return False
    return plan.dead_letter.holds(mark)


def settle(
    spark: SparkSession,
    plan: PipelinePlan,
    outcome: Outcome,
    mark: BatchMark,
    letters_end: Offset | None = None,
) -> Settled:
    """Commit what the tasks put aside to every table, then the letters.

    With `letters_end`, the letters of the first batch are written if it ends there.
    """
    sink = plan.sink
    assert isinstance(sink, ManyTables)  # noqa: S101 - asked for only then
    started = time.monotonic()
    try:
        done = sink.commit_tables(outcome.files, mark, lambda: crash_point(AFTER_TABLE))
        dead_files = list(outcome.dead_files)
        kept = done.refused if plan.on_error == "dead_letter" and plan.dead_letter else ()
        if kept:
            dead_files += _write_letters(spark, plan, outcome.reading, kept, mark)
        elif done.refused and not _may_drop(plan, done.refused):
            raise _refusal(done)
        _commit_letters(plan, dead_files, mark, letters_end)
    finally:
        sink.discard(outcome.files)
    refused = {one.table: one.rows for one in done.refused}
    letters = sum(file.rows for file in outcome.dead_files)
    took = time.monotonic() - started
    return Settled(done.commits, done.held, refused, bool(kept), letters, took)


def _may_drop(plan: PipelinePlan, refused: tuple[RefusedRows, ...]) -> bool:
    """Tell whether rows were refused for what they say; a table that fails is no fault of rows."""
    is_bad = all(isinstance(one.error, BadRecordError) for one in refused)
    return plan.on_error == "drop" and is_bad


def table_events(
    pipeline: str, epoch: int, result: BatchResult
) -> Iterator[BatchWritten | BatchSkipped | BatchSpread | RecordsFailed]:
    """Yield what happened to each table of a batch."""
    from icestream.engine.batch.batch import batch_written

    settled = result.tables
    if settled is None:
        return
    for table in settled.held:
        yield BatchSkipped(pipeline, table, epoch, of_many=True)
    for table, commit in settled.commits.items():
        told = batch_written(pipeline, table, epoch, replace(result, commit=commit))
        yield replace(told, of_many=True)
    for table, rows in settled.refused.items():
        yield RecordsFailed(pipeline, table, rows, rows if settled.keeps_refused else 0)
    total = result.commit
    yield BatchSpread(
        pipeline=pipeline,
        epoch=epoch,
        tables=len(settled.commits),
        held=len(settled.held),
        rows=total.rows if total is not None else 0,
        files=total.files if total is not None else 0,
        write_secs=result.write_secs,
        commit_secs=settled.seconds,
    )


def _refusal(done: TableCommits) -> IcestreamError:
    """Return the error of a batch that some table did not take; it names the table."""
    first, *others = done.refused
    error = first.error
    lines = [error.todo] if error.todo else []
    if others:
        lines.append(f"Not taken by these either: {', '.join(one.table for one in others)}.")
    count = len(done.commits) + len(done.held)
    if count:
        tables = (
            "1 other table of the batch holds"
            if count == 1
            else (f"{count} other tables of the batch hold")
        )
        lines.append(f"{tables} it now; a replay leaves what is held as it is.")
    error.todo = "\n".join(lines)
    return error


def _commit_letters(
    plan: PipelinePlan,
    files: list[WrittenFile],
    mark: BatchMark,
    letters_end: Offset | None,
) -> None:
    if plan.dead_letter is None or not files:
        return
    rows = sum(file.rows for file in files)
    if are_held(plan, rows, mark, letters_end):
        plan.dead_letter.discard(files)
    else:
        plan.dead_letter.commit(files, replace(mark, rows=rows))


def _write_letters(
    spark: SparkSession,
    plan: PipelinePlan,
    reading: Reading | None,
    refused: tuple[RefusedRows, ...],
    mark: BatchMark,
) -> list[WrittenFile]:
    assert plan.dead_letter is not None  # noqa: S101 - asked for only then
    assert reading is not None  # noqa: S101 - rows were read
    parts = tuple(
        (part, f"table {one.table}: {one.error.what}") for one in refused for part in one.parts
    )
    letters = DeadLetters(plan.dead_letter.writer(), plan.name, mark.epoch)
    found = run_tasks(spark, len(parts), WriteRefused(reading, letters, parts))
    return [file for files in found for file in files]


@dataclass(frozen=True)
class WriteRefused:
    """Writes rows that a table did not take as dead letters, in tasks."""

    reading: Reading
    letters: DeadLetters
    parts: tuple[tuple[Callable[[], Iterator[pa.RecordBatch]], str], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                read, reason = self.parts[number]
                yield as_report(number, self.letters.write(self._records(read(), reason)))

    def _records(self, batches: Iterable[pa.RecordBatch], reason: str) -> Iterator[list[BadRecord]]:
        numbers: list[int] = []
        for batch in batches:
            if ROW in batch.schema.names:
                numbers += batch.column(ROW).to_pylist()
            else:
                rows: Any = range(batch.num_rows)
                yield [BadRecord(row_as_json(batch, row).encode(), reason, None) for row in rows]
        numbers.sort()
        for split, own in groupby(numbers, key=lambda number: number >> INDEX_BITS):
            yield from read_again(self.reading, split, dict.fromkeys(own, reason))
