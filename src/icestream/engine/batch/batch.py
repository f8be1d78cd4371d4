"""Runs one batch: reads between two offsets, writes files and commits them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from icestream.contracts.reports import run_tasks
from icestream.engine.batch import tasks
from icestream.engine.batch.changes import write_changes
from icestream.engine.batch.commit import (
    BatchOutcome,
    CommittedBatch,
    bad_record_error,
    commit_batch,
    discard_files,
    is_committed,
    prepare_dead_letters,
)
from icestream.engine.crash_points import crash_point
from icestream.engine.dead_letters.expectations import unmet_expectation_error
from icestream.engine.dead_letters.row_validation import with_row_checks
from icestream.errors import IcestreamError, SchemaMismatchError
from icestream.metrics.events import (
    BatchSkipped,
    BatchWritten,
    ExpectationUnmet,
    MultiTableBatchWritten,
    RecordsFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import Commit
    from icestream.contracts.source import Split
    from icestream.engine.batch.columns import StreamColumns
    from icestream.engine.dead_letters.buffer import DeadLetterWriter
    from icestream.metrics.events import Event
    from icestream.plan.plan import PipelinePlan


# Each round may reveal new fields in later rows; beyond this limit the data has no usable schema.
SCHEMA_ROUNDS = 20


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch.

    Attributes:
        rows: rows read.
        bad: rows that could not be used, including those that fail an expectation.
        write_secs: how long writing the files took.
        committed: the commits, table by table, and the dead letters.
        unmet: the number of rows that fail each expectation, by its name.
    """

    rows: int
    bad: int
    write_secs: float
    committed: CommittedBatch
    unmet: Mapping[str, int] = field(default_factory=dict)

    @property
    def commit(self) -> Commit | None:
        """The commits added up; None if there was nothing to write."""
        return self.committed.total

    @property
    def dead_letters(self) -> int:
        """How many of the bad rows became dead letters."""
        return self.committed.letters

    @property
    def refused(self) -> int:
        """How many rows were refused by their table."""
        return sum(self.committed.refused.values())


def written_event(
    pipeline: str, table: str, epoch: int, result: BatchResult, commit: Commit
) -> BatchWritten:
    """Return the event for a batch that was committed to a table."""
    return BatchWritten(
        pipeline=pipeline,
        table=table,
        epoch=epoch,
        rows=commit.rows,
        bytes=commit.bytes,
        files=commit.files,
        write_secs=result.write_secs,
        commit_secs=commit.seconds,
        retries=commit.retries,
        snapshot_id=commit.snapshot_id,
        # Every row existed when reading started.
        newest_row_at=time.time() - commit.seconds - result.write_secs,
    )


def bad_row_events(
    pipeline: str, table: str, result: BatchResult
) -> Iterator[RecordsFailed | ExpectationUnmet]:
    """Yield the events for the bad rows of a batch."""
    if result.bad:
        yield RecordsFailed(pipeline, table, result.bad, result.dead_letters)
    for expectation, count in result.unmet.items():
        yield ExpectationUnmet(pipeline, table, expectation, count)


def batch_events(plan: PipelinePlan, epoch: int, result: BatchResult | None) -> Iterator[Event]:
    """Yield the events of a batch; without a result, the table already held it."""
    table = plan.sink.identity()
    if result is None:
        yield BatchSkipped(plan.name, table, epoch)
        return
    yield from bad_row_events(plan.name, table, result)
    if plan.sink.single_table() is None:
        yield from _table_events(plan.name, epoch, result)
    elif result.commit is not None:
        yield written_event(plan.name, table, epoch, result, result.commit)


def _table_events(pipeline: str, epoch: int, result: BatchResult) -> Iterator[Event]:
    """Yield the events of each table of a sink with many."""
    committed, total = result.committed, result.commit
    for table in committed.held:
        yield BatchSkipped(pipeline, table, epoch, of_many=True)
    for table, commit in committed.commits.items():
        event = written_event(pipeline, table, epoch, result, commit)
        yield replace(event, of_many=True)
    for table, rows in committed.refused.items():
        yield RecordsFailed(pipeline, table, rows, rows if committed.keeps_refused else 0)
    yield MultiTableBatchWritten(
        pipeline=pipeline,
        epoch=epoch,
        tables=len(committed.commits),
        held=len(committed.held),
        rows=total.rows if total is not None else 0,
        files=total.files if total is not None else 0,
        write_secs=result.write_secs,
        commit_secs=committed.seconds,
    )


def write_once(
    spark: SparkSession,
    plan: PipelinePlan,
    columns: StreamColumns,
    mark: BatchMark,
    dead_letters_end: Offset | None = None,
) -> BatchResult | None:
    """Write the batch of `mark` unless the table already holds it; None if it does.

    If the first batch ends at `dead_letters_end`, its dead letters are already written.
    """
    if is_committed(plan, mark):
        return None
    started = time.monotonic()
    slots = spark.sparkContext.defaultParallelism
    splits = tuple(plan.source.splits(mark.start, mark.end, slots))
    plan.source.verify_offsets(mark.start, mark.end)
    crash_point("before-write")
    if plan.sink.is_mirror:
        outcome = write_changes(spark, plan, columns, splits, mark)
    else:
        outcome = write_files(spark, plan, columns, splits, mark)
    _refuse_changed(plan, outcome, mark)
    write_secs = time.monotonic() - started
    crash_point("before-commit")
    committed = commit_batch(spark, plan, outcome, mark, dead_letters_end)
    crash_point("after-commit")
    bad = outcome.bad + outcome.unmet_rows
    return BatchResult(outcome.rows, bad, write_secs, committed, dict(outcome.unmet))


def _refuse_changed(plan: PipelinePlan, outcome: BatchOutcome, mark: BatchMark) -> None:
    """Discard the written files if the source was replaced while it was being read."""
    try:
        plan.source.verify_offsets(mark.start, mark.end)
    except IcestreamError:
        discard_files(plan, outcome)
        raise


def write_files(
    spark: SparkSession | None,
    plan: PipelinePlan,
    columns: StreamColumns,
    splits: tuple[Split, ...],
    mark: BatchMark,
    *,
    reports_bad_rows: bool = False,
) -> BatchOutcome:
    """Read the splits and write files, evolving the table's columns to fit the data.

    With `reports_bad_rows`, bad records don't fail the batch: the outcome lists each of them.
    Spark may be absent if the rows don't pass through Spark SQL.
    """
    for _ in range(SCHEMA_ROUNDS):
        schema = columns.resolve(splits)
        if schema is None:
            return BatchOutcome()
        letters = prepare_dead_letters(plan, mark)
        reading = tasks.Reading(
            source=plan.source,
            decoder=plan.source.decoder(),
            splits=splits,
            columns=schema,
            refused=columns.refused,
            records_absent_fields=plan.sink.keeps_missing_fields(),
            evolving=columns.evolving,
            widening=columns.widening,
            stop_at_bad=plan.on_error == "fail",
            dead_letters=letters if plan.on_error == "dead_letter" else None,
            reports_bad_rows=reports_bad_rows,
        )
        outcome = BatchOutcome(reading=reading)
        for report in _reports(spark, plan, reading, letters):
            outcome.add(report)
        failed = outcome.error
        if failed is None and not reports_bad_rows:
            failed = bad_record_error(plan, outcome, mark) or unmet_expectation_error(
                plan, outcome.unmet, outcome.unmet_examples, mark
            )
        new_fields = reading.new_columns(outcome.new_fields)
        if failed is None and not new_fields and not outcome.wider:
            return outcome
        discard_files(plan, outcome)
        if failed is not None:
            raise failed.at(f"pipeline {plan.name!r}, batch {mark.epoch}")
        columns.add(new_fields, outcome.wider)
    raise SchemaMismatchError(
        f"the batch still has new fields after {SCHEMA_ROUNDS} schema changes: "
        f"{', '.join(sorted({*new_fields, *outcome.wider}))}",
        where=f"pipeline {plan.name!r}, batch {mark.epoch}",
        todo="Declare the columns with `schema`, or keep free-form data in one column.",
    )


def _reports(
    spark: SparkSession | None,
    plan: PipelinePlan,
    reading: tasks.Reading,
    letters: DeadLetterWriter | None,
) -> list[tasks.Report]:
    if not plan.uses_spark_sql():
        plan.sink.prepare(reading.written_schema(), declared=plan.source.declares())
        read, faults = with_row_checks(plan, reading, letters)
        task = tasks.ReadAndWrite(read, plan.sink.writer(), faults)
        reports: list[tasks.Report] = run_tasks(spark, len(reading.splits), task)
        return reports
    from icestream.engine.batch.sql_path import SparkSqlWriter

    assert spark is not None  # noqa: S101 - the caller asks `uses_spark_sql`
    return SparkSqlWriter(
        spark, plan, reading, letters, reports_bad_rows=reading.reports_bad_rows
    ).write()
