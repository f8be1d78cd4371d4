"""Adds up the task reports of a batch, and commits its tables and dead letters.

With a single table, dead letters are committed first: after a crash in between, the batch is
replayed and commits only what is missing. With many tables, each one may refuse its rows, which
then become dead letters too, so dead letters are committed last. There, a dead-letter table that
holds a batch proves that the whole batch is committed.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from icestream.contracts.changes import NewChangeSchemasError
from icestream.contracts.decoder import BadRecord
from icestream.contracts.reports import begins_with, pack_report, run_tasks
from icestream.contracts.sink import sum_commits
from icestream.contracts.transform import ROW
from icestream.engine.batch.tasks import INDEX_BITS
from icestream.engine.crash_points import AFTER_TABLE, crash_point
from icestream.engine.dead_letters.buffer import DEAD_LETTERS, DeadLetterWriter, row_as_json
from icestream.engine.dead_letters.dedup import are_already_written, are_held_by_earlier_query
from icestream.engine.dead_letters.row_validation import BadRow, reread_records
from icestream.errors import AttentionError, BadRecordError, IcestreamError
from icestream.formats.inference import join_columns, merge_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import Commit, RefusedRows, TableCommits, WrittenFile
    from icestream.engine.batch import tasks
    from icestream.engine.batch.tasks import Reading
    from icestream.plan.plan import PipelinePlan


@dataclass
class BatchOutcome:
    """The reports of one batch's tasks, added up."""

    rows: int = 0
    records: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    dead_files: list[WrittenFile] = field(default_factory=list)
    bad: int = 0
    examples: list[tuple[int, BadRecord]] = field(default_factory=list)
    new_fields: dict[str, pa.DataType] = field(default_factory=dict)
    wider: dict[str, pa.Field] = field(default_factory=dict)
    unmet: Counter[str] = field(default_factory=Counter)
    unmet_rows: int = 0
    unmet_examples: dict[str, str] = field(default_factory=dict)
    bad_rows: dict[int, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    new_change_schemas: list[pa.Schema] = field(default_factory=list)
    error: IcestreamError | None = None
    reading: tasks.Reading | None = None

    def add(self, report: tasks.Report) -> None:
        """Add the report of one task. Only tasks that read the source have examples."""
        if isinstance(report.error, NewChangeSchemasError):
            self.new_change_schemas += report.error.schemas
            self.files += report.error.files
        else:
            self.error = self.error or report.error
        self.rows += report.rows
        self.records += report.records
        self.files += report.files
        self.dead_files += report.dead_files
        self.bad += report.bad
        self.examples += [(report.split, example) for example in report.examples]
        self.new_fields = merge_fields(self.new_fields, report.new_fields)
        self.wider = join_columns(self.wider, report.wider)
        self.unmet.update(report.unmet)
        self.unmet_rows += report.unmet_rows
        self.unmet_examples = {**report.unmet_examples, **self.unmet_examples}
        self.bad_rows.update(report.bad_rows)
        self.ignored.update(report.ignored)


def prepare_dead_letters(plan: PipelinePlan, mark: BatchMark) -> DeadLetterWriter | None:
    """Return the writer for the bad records of a batch; None without a dead-letter table."""
    if plan.dead_letter is None:
        return None
    plan.dead_letter.prepare(DEAD_LETTERS)
    return DeadLetterWriter(plan.dead_letter.writer(), plan.name, mark.epoch)


def discard_files(plan: PipelinePlan, outcome: BatchOutcome) -> None:
    """Delete the uncommitted files of a batch that is retried or abandoned."""
    plan.sink.discard(outcome.files)
    if plan.dead_letter is not None:
        plan.dead_letter.discard(outcome.dead_files)


def bad_record_error(
    plan: PipelinePlan, outcome: BatchOutcome, mark: BatchMark
) -> IcestreamError | None:
    """Return the error for the first record that can't be decoded, if that fails the batch."""
    if not outcome.bad or plan.on_error != "fail":
        return None
    _, first = min(outcome.examples, key=lambda example: example[0])
    return BadRecordError(
        f"record {first.position} can't be decoded: {first.reason}{begins_with(first.raw)}",
        where=f"pipeline {plan.name!r}, batch {mark.epoch}",
        todo="Nothing of the batch was written. Fix the producer, or set "
        "`on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`, on sink "
        f"{plan.sink_name!r}.",
    )


@dataclass(frozen=True)
class CommittedBatch:
    """The result of a batch, table by table.

    Attributes:
        total: the commits added up; None if there was none.
        commits: each commit, by table.
        held: tables that already held the batch.
        refused: the number of rows that each table refused, by table.
        keeps_refused: whether these became dead letters.
        letters: the number of other dead letters.
        seconds: how long the commits of many tables took, including writing their files.
    """

    total: Commit | None
    commits: Mapping[str, Commit]
    held: tuple[str, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    keeps_refused: bool = True
    letters: int = 0
    seconds: float = 0.0


def is_committed(plan: PipelinePlan, mark: BatchMark) -> bool:
    """Return whether the whole batch is committed, including dead letters."""
    last = plan.dead_letter if plan.sink.may_refuse_rows else plan.sink
    return last is not None and last.holds(mark)


def commit_batch(
    spark: SparkSession,
    plan: PipelinePlan,
    outcome: BatchOutcome,
    mark: BatchMark,
    dead_letters_end: Offset | None = None,
) -> CommittedBatch:
    """Commit the files that the tasks wrote, including dead letters.

    Args:
        spark: the session.
        plan: the pipeline.
        outcome: the outcome of the tasks.
        mark: the batch's mark.
        dead_letters_end: the end of the first batch if an earlier query wrote its dead letters.
    """
    mark = replace(mark, records=outcome.records, bad=outcome.bad + outcome.unmet_rows)
    if plan.sink.may_refuse_rows:
        return _commit_tables(spark, plan, outcome, mark, dead_letters_end)
    letters = _commit_letters_first(plan, outcome, mark, dead_letters_end)
    commits = plan.sink.commit_batch(outcome.files, mark, lambda: None).commits
    total = next(iter(commits.values()), None)
    return CommittedBatch(total, commits, letters=letters)


def _commit_tables(
    spark: SparkSession,
    plan: PipelinePlan,
    outcome: BatchOutcome,
    mark: BatchMark,
    dead_letters_end: Offset | None,
) -> CommittedBatch:
    started = time.monotonic()
    try:
        done = plan.sink.commit_batch(outcome.files, mark, lambda: crash_point(AFTER_TABLE))
        dead_files = list(outcome.dead_files)
        to_keep = done.refused if plan.on_error == "dead_letter" and plan.dead_letter else ()
        if to_keep:
            dead_files += _write_letters(spark, plan, outcome.reading, to_keep, mark)
        elif done.refused and not _may_drop(plan, done.refused):
            raise _refusal(done)
        _commit_letters_last(plan, dead_files, mark, dead_letters_end)
    finally:
        plan.sink.discard(outcome.files)
    return CommittedBatch(
        total=sum_commits(done.commits),
        commits=done.commits,
        held=done.held,
        refused={one.table: one.rows for one in done.refused},
        keeps_refused=bool(to_keep),
        letters=sum(file.rows for file in outcome.dead_files),
        seconds=time.monotonic() - started,
    )


def _may_drop(plan: PipelinePlan, refused: tuple[RefusedRows, ...]) -> bool:
    """Return whether refused rows may be dropped: they are bad, not the table unavailable."""
    is_bad = all(isinstance(one.error, BadRecordError) for one in refused)
    return plan.on_error == "drop" and is_bad


def _refusal(done: TableCommits) -> IcestreamError:
    """Return the error for a batch that some tables refused; it names them."""
    first, *others = done.refused
    error = first.error
    lines = [error.todo] if error.todo else []
    if others:
        lines.append(f"These tables failed too: {', '.join(one.table for one in others)}.")
    count = len(done.commits) + len(done.held)
    if count:
        tables = "1 other table has" if count == 1 else f"{count} other tables have"
        lines.append(f"{tables} committed the batch; a replay skips what is committed.")
    error.todo = "\n".join(lines)
    return error


def _commit_letters_first(
    plan: PipelinePlan, outcome: BatchOutcome, mark: BatchMark, dead_letters_end: Offset | None
) -> int:
    """Commit the dead letters of a batch unless the table holds them; return how many."""
    if plan.dead_letter is None:
        return 0
    count = sum(file.rows for file in outcome.dead_files)
    try:
        written = are_already_written(plan, count, mark, dead_letters_end)
    except AttentionError:
        discard_files(plan, outcome)
        raise
    if written:
        plan.dead_letter.discard(outcome.dead_files)
        return 0
    plan.dead_letter.commit_batch(outcome.dead_files, mark, lambda: None)
    return count


def _commit_letters_last(
    plan: PipelinePlan, files: list[WrittenFile], mark: BatchMark, dead_letters_end: Offset | None
) -> None:
    if plan.dead_letter is None or not files:
        return
    if are_held_by_earlier_query(plan, sum(file.rows for file in files), mark, dead_letters_end):
        plan.dead_letter.discard(files)
    else:
        plan.dead_letter.commit_batch(files, mark, lambda: None)


def _write_letters(
    spark: SparkSession,
    plan: PipelinePlan,
    reading: Reading | None,
    refused: tuple[RefusedRows, ...],
    mark: BatchMark,
) -> list[WrittenFile]:
    assert plan.dead_letter is not None  # noqa: S101 - the caller checks
    assert reading is not None  # noqa: S101 - rows were read
    parts = tuple(
        (part, f"table {one.table}: {one.error.what}") for one in refused for part in one.parts
    )
    letters = DeadLetterWriter(plan.dead_letter.writer(), plan.name, mark.epoch)
    written = run_tasks(spark, len(parts), WriteRefused(reading, letters, parts))
    return [file for files in written for file in files]


@dataclass(frozen=True)
class WriteRefused:
    """Writes rows that a table refused as dead letters, in tasks."""

    reading: Reading
    letters: DeadLetterWriter
    parts: tuple[tuple[Callable[[], Iterator[pa.RecordBatch]], str], ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                read, reason = self.parts[number]
                yield pack_report(number, self.letters.write(self._records(read(), reason)))

    def _records(self, batches: Iterable[pa.RecordBatch], reason: str) -> Iterator[list[BadRecord]]:
        numbers: list[int] = []
        for batch in batches:
            if ROW in batch.schema.names:
                numbers += batch.column(ROW).to_pylist()
            else:
                rows: Any = range(batch.num_rows)
                yield [BadRecord(row_as_json(batch, row).encode(), reason, None) for row in rows]
        numbers.sort()
        for split, split_numbers in groupby(numbers, key=lambda number: number >> INDEX_BITS):
            yield from reread_records(
                self.reading, split, dict.fromkeys(split_numbers, BadRow(reason))
            )
