"""One batch: from two positions to one commit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icestream.decode.inference import merge_fields
from icestream.decode.widening import join_columns
from icestream.engine import tasks
from icestream.engine.arrow_map import map_in_arrow
from icestream.engine.crash_points import reach
from icestream.errors import BadRecordError, IcestreamError, SchemaMismatchError
from icestream.metrics.events import BatchWritten

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icestream.contracts.mark import BatchMark
    from icestream.contracts.records import BadRecord
    from icestream.contracts.sink import Commit, Sink, WrittenFile
    from icestream.contracts.source import Split
    from icestream.engine.columns import Columns
    from icestream.plan.plan import PipelinePlan

# A batch may show new fields, then others in the rows behind them; past this it is no schema.
SCHEMA_ROUNDS = 20


@dataclass(frozen=True)
class BatchResult:
    """What a batch came to. `commit` is None if there was nothing to write."""

    rows: int
    bad: int
    write_secs: float
    commit: Commit | None
    dead_letters: int = 0


def batch_written(pipeline: str, table: str, epoch: int, result: BatchResult) -> BatchWritten:
    """Return the event of a batch that was committed."""
    commit = result.commit
    assert commit is not None  # noqa: S101 - asked for only then
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
        # Every row of the batch was there when it began to be read.
        newest_row_at=time.time() - commit.seconds - result.write_secs,
    )


@dataclass
class _Outcome:
    """The reports of one batch's tasks, added up."""

    rows: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    dead_files: list[WrittenFile] = field(default_factory=list)
    bad: int = 0
    examples: list[tuple[tuple[bool, int], BadRecord]] = field(default_factory=list)
    new_fields: dict[str, pa.DataType] = field(default_factory=dict)
    wider: dict[str, pa.Field] = field(default_factory=dict)
    error: IcestreamError | None = None

    def add(self, report: tasks.Report) -> None:
        self.error = self.error or report.error
        self.rows += report.rows
        self.files += report.files
        self.dead_files += report.dead_files
        self.bad += report.bad
        self.examples += [(_order(report), example) for example in report.examples]
        self.new_fields = merge_fields(self.new_fields, report.new_fields)
        self.wider = join_columns(self.wider, report.wider)


def write_once(
    spark: SparkSession, plan: PipelinePlan, columns: Columns, mark: BatchMark
) -> BatchResult | None:
    """Write the batch of `mark` unless the table already holds it; None if it does."""
    if plan.sink.holds(mark):
        plan.sink.publish(mark)
        return None
    started = time.monotonic()
    slots = spark.sparkContext.defaultParallelism
    splits = tuple(plan.source.splits(mark.start, mark.end, slots))
    reach("before-write")
    outcome = _run(spark, plan, columns, splits, mark)
    write_secs = time.monotonic() - started
    reach("before-commit")
    dead_letters = _commit_dead_letters(plan, outcome, mark)
    commit = _commit(plan.sink, outcome.files, mark)
    reach("after-commit")
    plan.sink.publish(mark)
    return BatchResult(outcome.rows, outcome.bad, write_secs, commit, dead_letters)


def _commit(sink: Sink[Any], files: list[WrittenFile], mark: BatchMark) -> Commit | None:
    if not files:
        return None
    from dataclasses import replace

    return sink.commit(files, replace(mark, rows=sum(file.rows for file in files)))


def _commit_dead_letters(plan: PipelinePlan, outcome: _Outcome, mark: BatchMark) -> int:
    # Before the good rows: a crash in between replays the batch, and only what is missing is
    # committed then.
    if plan.dead_letter is None or not outcome.dead_files or plan.dead_letter.holds(mark):
        return 0
    commit = _commit(plan.dead_letter, outcome.dead_files, mark)
    return commit.rows if commit is not None else 0


def _run(
    spark: SparkSession,
    plan: PipelinePlan,
    columns: Columns,
    splits: tuple[Split, ...],
    mark: BatchMark,
) -> _Outcome:
    """Read and write the splits, with the table's columns following the data's."""
    for _ in range(SCHEMA_ROUNDS):
        known = columns.of(splits)
        if known is None:
            return _Outcome()
        reading = tasks.Reading(
            source=plan.source,
            decoder=plan.source.decoder(),
            splits=splits,
            columns=known,
            evolving=columns.evolving,
            widening=columns.widening,
            stop_at_bad=plan.on_error == "fail",
            dead_letters=_dead_letters(plan, mark),
        )
        outcome = _Outcome()
        for report in _reports(spark, plan, reading):
            outcome.add(report)
        failed = outcome.error or _bad_record(plan, outcome, mark)
        if failed is None and not outcome.new_fields and not outcome.wider:
            return outcome
        _discard(plan, outcome)
        if failed is not None:
            raise failed
        columns.add(outcome.new_fields, outcome.wider)
    raise SchemaMismatchError(
        f"the batch showed new fields {SCHEMA_ROUNDS} times over, last "
        f"{', '.join(sorted({*outcome.new_fields, *outcome.wider}))}",
        where=f"pipeline {plan.name!r}, batch {mark.epoch}",
        todo="Give the columns with `schema`, or keep free-form data in one column.",
    )


def _reports(spark: SparkSession, plan: PipelinePlan, reading: tasks.Reading) -> list[tasks.Report]:
    count = len(reading.splits)
    numbers = spark.range(0, count, 1, max(count, 1))
    if not plan.uses_spark_sql():
        plan.sink.prepare(reading.columns, declared=not reading.evolving)
        task = tasks.ReadAndWrite(reading, plan.sink.writer())
        return tasks.read_reports(numbers.mapInArrow(task, "report binary").collect())
    return _through_spark(spark, plan, reading, numbers)


def _through_spark(
    spark: SparkSession, plan: PipelinePlan, reading: tasks.Reading, numbers: DataFrame
) -> list[tasks.Report]:
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    from icestream.engine.accumulated import ReportList

    noted = spark.sparkContext.accumulator({}, ReportList())
    task = tasks.ReadOnly(reading, lambda report: noted.add({report.split: report}))
    rows = numbers.mapInArrow(task, from_arrow_schema(reading.columns))
    try:
        for transform in plan.transforms:
            rows = transform.apply(rows)
        shape = to_arrow_schema(rows.schema)
    except AnalysisException as exc:
        raise SchemaMismatchError(
            f"a transform does not fit the rows: {_first_line(exc)}",
            where=f"pipeline {plan.name!r}",
            todo=f"The source's columns: {', '.join(reading.columns.names)}.",
        ) from exc
    plan.sink.prepare(shape, declared=not reading.evolving)
    order = plan.sink.sort_columns()
    if order:
        rows = rows.sortWithinPartitions(*order)
    try:
        written = tasks.read_reports(
            map_in_arrow(rows, tasks.WriteOnly(plan.sink.writer()), "report binary").collect()
        )
    except _row_errors() as exc:
        # Spark names the value; the same rows would fail again after any restart.
        raise BadRecordError(
            f"a transform can't be applied to a row: {next(iter(str(exc).splitlines()), exc)}",
            where=f"pipeline {plan.name!r}",
            todo="Nothing of the batch was written. Use `try_cast` or `try_divide` in a `select`, "
            "or leave such rows out with a `filter` before it.",
        ) from exc
    for report in written:
        report.rows = 0
    return [*noted.value.values(), *written]


def _row_errors() -> tuple[type[Exception], ...]:
    """Return what Spark raises when an expression can't be computed for a row's values."""
    from pyspark.errors import (
        ArithmeticException,
        ArrayIndexOutOfBoundsException,
        DateTimeException,
        NumberFormatException,
        SparkRuntimeException,
    )

    return (
        ArithmeticException,
        ArrayIndexOutOfBoundsException,
        DateTimeException,
        NumberFormatException,
        SparkRuntimeException,
    )


def _first_line(exc: Exception) -> str:
    """Return what Spark says is wrong, without the place in its own plan."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0].split("; line ")[0] if lines else type(exc).__name__


def _dead_letters(plan: PipelinePlan, mark: BatchMark) -> tasks.DeadLetters | None:
    if plan.dead_letter is None:
        return None
    plan.dead_letter.prepare(tasks.DEAD_LETTERS)
    return tasks.DeadLetters(plan.dead_letter.writer(), plan.name, mark.epoch)


def _discard(plan: PipelinePlan, outcome: _Outcome) -> None:
    plan.sink.discard(outcome.files)
    if plan.dead_letter is not None:
        plan.dead_letter.discard(outcome.dead_files)


def _order(report: tasks.Report) -> tuple[bool, int]:
    """Order reports by split; numbers below zero are of tasks that come after the reading."""
    return report.split < 0, abs(report.split)


def _bad_record(plan: PipelinePlan, outcome: _Outcome, mark: BatchMark) -> IcestreamError | None:
    if not outcome.bad or plan.on_error != "fail":
        return None
    _, first = min(outcome.examples, key=lambda found: found[0])
    return BadRecordError(
        f"record {first.position} can't be decoded: {first.reason}",
        where=f"pipeline {plan.name!r}, batch {mark.epoch}",
        todo="Nothing of the batch was written. Mend the record's producer, or set "
        "`on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`, on sink "
        f"{plan.sink_name!r}.",
    )
