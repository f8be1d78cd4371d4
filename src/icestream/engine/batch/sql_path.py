"""Writes batches through Spark SQL: transforms, expectations, computed columns and sorting."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from icestream.contracts.reports import REPORT_COLUMN, gather_reports, order_reports
from icestream.contracts.transform import FAULT, ROW
from icestream.engine.batch import tasks
from icestream.engine.dead_letters.expectations import analysis_message, with_unmet
from icestream.engine.dead_letters.row_validation import HIDDEN, RowValidation, with_row_checks
from icestream.errors import BadRecordError, SchemaMismatchError, first_line

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from icestream.contracts.transform import Transform
    from icestream.engine.batch.tasks import Report
    from icestream.engine.dead_letters.buffer import DeadLetterWriter
    from icestream.plan.plan import PipelinePlan


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Task = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Call `DataFrame.mapInArrow` with columns of any name.

    It resolves columns by unquoted names, where a dot means a struct member and a backtick is an
    error. So columns are renamed for Spark unless all names are identifiers, and get their names
    back in the task.
    """
    names = rows.columns
    if all(name.isidentifier() for name in names):
        return rows.mapInArrow(task, schema)
    plain = rows.toDF(*(f"column_{number}" for number in range(len(names))))
    return plain.mapInArrow(_WithColumnNames(task, tuple(names)), schema)


@dataclass(frozen=True)
class _WithColumnNames:
    """A task whose rows get their original column names back."""

    task: Task
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


# Reports by job, then by stage and task number. A task that ran twice counts once.
Jobs = dict[int, dict[tuple[int, int], "Report"]]

_accumulators: WeakKeyDictionary[SparkContext, Accumulator[Any]] = WeakKeyDictionary()
_lock = threading.Lock()
_numbers = itertools.count()


class ReportParam(AccumulatorParam[Any]):
    """Accumulates reports: a list in a task, the reports of running jobs in the driver."""

    def zero(self, value: Any) -> list[Any]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: Any, value2: list[Any]) -> Any:  # noqa: N802
        if isinstance(value1, list):
            return value1 + value2
        for job, stage, report in value2:
            # Tasks of a failed job may still be running; their reports are dropped.
            reports = value1.get(job)
            if reports is not None:
                reports[stage, report.split] = report
        return value1


@dataclass(frozen=True)
class ReportSender:
    """Sends the reports of one stage to the driver. Called in a task."""

    job: int
    stage: int
    accumulator: Accumulator[Any]

    def __call__(self, report: Report) -> None:
        self.accumulator.add([(self.job, self.stage, report)])


class StageReports:
    """The reports of one job's stages, for as long as the `with` block runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._accumulator = _accumulator_of(spark.sparkContext)
        self._job = next(_numbers)
        self._counts: list[int] = []

    def __enter__(self) -> StageReports:
        self._accumulator.value[self._job] = {}
        return self

    def __exit__(self, *exc_info: object) -> None:
        del self._accumulator.value[self._job]

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, count: int) -> ReportSender:
        """Add a stage of `count` tasks, and return the sender for their reports."""
        self._counts.append(count)
        return ReportSender(self._job, len(self._counts) - 1, self._accumulator)

    @property
    def received(self) -> list[Report]:
        """The reports that have arrived."""
        return list(self._accumulator.value[self._job].values())

    def all(self) -> list[Report]:
        """Return the reports of every stage.

        Raises:
            LostReportsError: a report did not arrive.
        """
        received = self._accumulator.value[self._job]
        reports = []
        for stage, count in enumerate(self._counts):
            own = [(number, report) for (of, number), report in received.items() if of == stage]
            reports += order_reports(own, range(count))
        return reports


def _accumulator_of(context: SparkContext) -> Accumulator[Any]:
    with _lock:
        if context not in _accumulators:
            jobs: Jobs = {}
            _accumulators[context] = context.accumulator(jobs, ReportParam())
        return _accumulators[context]


# Plan nodes that produce at most one row for each input row. After any other node, a row can no
# longer be traced back to one record.
_ROW_BY_ROW = {"Project", "Filter", "SubqueryAlias"}


@dataclass(frozen=True)
class SparkSqlWriter:
    """Writes one batch through Spark SQL.

    Attributes:
        letters: the writer for dead letters of expectations and transforms, if they are kept.
        reports_bad_rows: whether reports list every bad row.
    """

    spark: SparkSession
    plan: PipelinePlan
    reading: tasks.Reading
    letters: DeadLetterWriter | None = None
    reports_bad_rows: bool = False

    def write(self) -> list[tasks.Report]:
        """Read, transform and write the splits; return the tasks' reports.

        Raises:
            LostReportsError: a task did not report.
        """
        with StageReports(self.spark) as stages:
            rows = self._rows(stages)
            _, check = with_row_checks(self.plan, self.reading, self.letters)
            faults = self._faults() if check or set(rows.columns) & set(HIDDEN) else None
            if check is not None and faults is not None:
                faults = replace(faults, check=check.check, keeps_number=check.keeps_number)
            written = self._collect(rows, tasks.WriteOnly(self.plan.sink.writer(), faults))
            arrived = stages.received
            # A failed task stops consuming rows, so the upstream stages may never finish.
            is_failed = any(report.error for report in [*written, *arrived])
            # Spark optimizes reading away if no row can pass, as with `filter: false`.
            is_skipped = not arrived and not _reads(rows)
            read = arrived if is_failed or is_skipped else stages.all()
        for report in written:
            report.rows = 0
        return [*read, *written]

    def _rows(self, stages: StageReports) -> DataFrame:
        """Return the rows to write, in the sink's sort order, and prepare the sink for them."""
        from pyspark.sql.pandas.types import to_arrow_schema

        reading = replace(self.reading, numbered=self._wants_numbers())
        count = len(reading.splits)
        task = tasks.ReadOnly(reading, stages.add(count))
        numbers = self.spark.range(0, count, 1, max(count, 1))
        rows = numbers.mapInArrow(task, spark_schema(reading.output_schema(), self.plan.name))
        rows = self._transform(rows, stages)
        expectations = self.plan.sink.expectations()
        if expectations:
            rows = with_unmet(rows, expectations, f"pipeline {self.plan.name!r}")
        rows = self._with_computed(rows)
        columns = _visible_columns(to_arrow_schema(rows.schema))
        self.plan.sink.prepare(columns, declared=self.plan.source.declares())
        order = self.plan.sink.sort_columns()
        return rows.sortWithinPartitions(*order) if order else rows

    def _with_computed(self, rows: DataFrame) -> DataFrame:
        """Add the sink's computed columns."""
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        for name, expr in self.plan.sink.computed_columns().items():
            column = F.expr(expr)
            if FAULT in rows.columns:
                # A row with a fault may lack the value that the expression needs.
                column = F.when(rows[FAULT].isNull(), column)
            try:
                rows = rows.withColumn(name, column)
            except AnalysisException as exc:
                visible = [column_name for column_name in rows.columns if column_name not in HIDDEN]
                raise SchemaMismatchError(
                    f"`{expr}` does not fit the rows: {analysis_message(exc)}",
                    where=f"pipeline {self.plan.name!r}, sink {self.plan.sink_name!r}",
                    todo=f"Their columns, after the transforms: {', '.join(visible)}.",
                ) from exc
        return rows

    def _records_faults(self) -> bool:
        lenient = self.plan.on_error != "fail"
        return lenient and any(transform.records_faults for transform in self.plan.transforms)

    def _wants_numbers(self) -> bool:
        """Return whether a bad row may have to be traced back to its record."""
        _, check = with_row_checks(self.plan, self.reading, self.letters)
        may_be_bad = (
            self._records_faults() or bool(self.plan.sink.expectations()) or check is not None
        )
        is_kept = self.letters is not None or self.reports_bad_rows
        return may_be_bad and is_kept and self.plan.source.traits.replayable

    def _faults(self) -> RowValidation:
        return RowValidation(
            reading=self.reading,
            expectations=self.plan.sink.expectations(),
            keeps_faults=self.plan.on_error == "dead_letter",
            letters=self.letters,
            reports_bad_rows=self.reports_bad_rows,
        )

    def _transform(self, rows: DataFrame, stages: StageReports) -> DataFrame:
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        no_fault = F.lit(None).cast("string")
        if self._records_faults():
            rows = rows.withColumn(FAULT, no_fault)
        try:
            for transform in self.plan.transforms:
                after = _with_hidden_columns(transform, rows)
                if after is None:
                    after = transform.apply(self._drop_bad_rows(rows, stages))
                    if self._records_faults():
                        after = after.withColumn(FAULT, no_fault)
                rows = after
        except AnalysisException as exc:
            raise SchemaMismatchError(
                f"a transform does not fit the rows: {analysis_message(exc)}",
                where=f"pipeline {self.plan.name!r}",
                todo=f"The source's columns: {', '.join(self.reading.columns.names)}.",
            ) from exc
        return rows

    def _drop_bad_rows(self, rows: DataFrame, stages: StageReports) -> DataFrame:
        """Drop bad rows before a transform that would lose the hidden columns."""
        if FAULT not in rows.columns:
            return rows.drop(ROW)
        schema = rows.drop(ROW, FAULT).schema
        if len(stages) == 1:
            # Only row-by-row steps precede, which run in the tasks that read the splits.
            send = stages.add(len(self.reading.splits))
        else:
            # Adaptive execution decides at run time how many tasks follow a shuffle, and starts
            # none if there are no rows. Without it, a single partition is always one task.
            self.spark.conf.set("spark.sql.adaptive.enabled", "false")
            rows, send = rows.coalesce(1), stages.add(1)
        return map_in_arrow(rows, tasks.DropBadRows(self._faults(), send), schema)

    def _collect(self, rows: DataFrame, task: tasks.WriteOnly) -> list[tasks.Report]:
        try:
            return gather_reports(map_in_arrow(rows, task, REPORT_COLUMN))
        except row_errors() as exc:
            reason = first_line(exc)
            step = "a transform"
            if self.plan.sink.expectations():
                step = "a transform or an expectation" if self.plan.transforms else "an expectation"
            # Spark's message names the value. The same rows would fail again after a restart.
            raise BadRecordError(
                f"{step} can't be applied to a row: {reason}",
                where=f"pipeline {self.plan.name!r}",
                todo="Nothing of the batch was written. Use `try_cast` or `try_divide` in a "
                "`select`, or leave such rows out with a `filter` before it.",
            ) from exc


def _with_hidden_columns(transform: Transform[Any], rows: DataFrame) -> DataFrame | None:
    """Apply a transform to rows that carry hidden columns; None if those would be lost."""
    from pyspark.errors import AnalysisException

    hidden = [name for name in rows.columns if name in HIDDEN]
    if not hidden:
        return transform.apply(rows)
    if FAULT in hidden and not transform.passes_faults:
        return None
    try:
        after = transform.apply(rows)
    except AnalysisException:
        # An aggregate refuses extra columns. If something else is wrong, the next attempt, without
        # the hidden columns, raises it.
        return None
    is_kept = set(hidden) <= set(after.columns) and is_row_by_row(rows, after)
    return after if is_kept else None


def is_row_by_row(before: DataFrame, after: DataFrame, *, may_filter: bool = True) -> bool:
    """Return whether each row of `after` comes from one of `before`, judged by the plan nodes.

    Args:
        before: the rows before a step.
        after: those after it.
        may_filter: whether rows may be left out.
    """
    old, new = _steps(before), _steps(after)
    allowed = _ROW_BY_ROW if may_filter else _ROW_BY_ROW - {"Filter"}
    return len(new) >= len(old) and set(new[: len(new) - len(old)]) <= allowed


def _steps(rows: DataFrame) -> list[str]:
    """Return the names of the plan nodes that produce the rows, the last one first."""
    node = rows._jdf.queryExecution().analyzed()
    names = [node.nodeName()]
    while node.children().size() == 1:
        node = node.children().head()
        names.append(node.nodeName())
    return names


def _reads(rows: DataFrame) -> bool:
    """Return whether Spark's optimized plan still reads the splits."""
    return "MapInArrow" in rows._jdf.queryExecution().optimizedPlan().toString()


def _visible_columns(columns: Any) -> Any:
    return pa.schema([column for column in columns if column.name not in HIDDEN])


def row_errors() -> tuple[type[Exception], ...]:
    """Return the errors that Spark raises if an expression fails for a row's values."""
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


def spark_schema(
    columns: pa.Schema, pipeline: str, *, keeps_local_times: bool = False
) -> StructType:
    """Return the Spark SQL schema for columns.

    Args:
        columns: the columns.
        pipeline: the pipeline's name, for messages.
        keeps_local_times: whether a timestamp without a time zone stays one.

    Raises:
        SchemaMismatchError: Spark SQL has no type for one of them, such as a time of day.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    for column in columns:
        try:
            from_arrow_schema(pa.schema([column]))
        except PySparkTypeError as exc:  # noqa: PERF203 - each column by itself
            raise SchemaMismatchError(
                f"column {column.name!r} is a {column.type}, for which Spark SQL has no type",
                where=f"pipeline {pipeline!r}",
                todo="Transforms, `expect`, `sort_order` and expressions in `route_by` take the "
                "rows through Spark SQL. Leave them out, leave the column out with the source's "
                "`schema`, or declare it as a string there.",
            ) from exc
    return from_arrow_schema(columns, prefer_timestamp_ntz=keeps_local_times)
