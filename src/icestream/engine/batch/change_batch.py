"""Runs a batch of changes through transforms: stage the blocks, transform them by table, write."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from icestream.contracts.changes import change_schema_of
from icestream.contracts.reports import (
    REPORT_COLUMN,
    collect_rows,
    gather_reports,
    order_reports,
    unpack_report,
)
from icestream.engine.batch.change_tasks import (
    STAGED_COLUMNS,
    StageBlocks,
    WriteStaged,
    WriteTransformed,
    key_schema,
    table_text,
)
from icestream.engine.batch.change_transforms import TableSteps, TableTransform
from icestream.engine.batch.sql_path import map_in_arrow, row_errors
from icestream.engine.dead_letters.row_validation import ChangeValidation
from icestream.errors import BadRecordError, IcestreamError, SchemaMismatchError, first_line
from icestream.schemas.mirror_columns import data_columns, merge_change_schemas

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icestream.contracts.sink import TaskWriter
    from icestream.engine.batch.change_tasks import StagedSchema, TransformedSchema
    from icestream.engine.batch.changes import ChangeReading
    from icestream.engine.batch.tasks import Report
    from icestream.engine.dead_letters.buffer import DeadLetterWriter
    from icestream.plan.plan import PipelinePlan

    Table = tuple[str, ...]
    # The columns of a table in the source, and its key.
    SourceColumns = tuple[pa.Schema, tuple[str, ...]]

logger = logging.getLogger(__name__)

# Pipelines and columns for which an idle `drop` was logged.
_WARNED: set[tuple[str, str]] = set()


@dataclass
class TransformedChanges:
    """The changes of one batch.

    Attributes:
        letters: the writer for dead letters of transforms and expectations, if they are kept.
        newest: the newest schema of each table of the source, kept from batch to batch.
        transformed: the columns of each table after its transforms, for the source's columns that
            they were found for; kept from batch to batch.
    """

    spark: SparkSession
    plan: PipelinePlan
    reading: ChangeReading
    letters: DeadLetterWriter | None
    newest: dict[Table, pa.Schema]
    transformed: dict[Table, tuple[SourceColumns, TransformedSchema]]
    _blocks: DataFrame | None = None
    _staged: list[StagedSchema] = field(default_factory=list)

    def __enter__(self) -> TransformedChanges:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._blocks is not None:
            self._blocks.unpersist()

    def read(self) -> list[Report]:
        """Read the splits and stage their blocks, on the disks of the executors.

        Raises:
            LostReportsError: a task did not report.
        """
        from pyspark import StorageLevel

        count = len(self.reading.splits)
        numbers = self.spark.range(0, count, 1, max(count, 1))
        rows = numbers.mapInArrow(StageBlocks(self.reading), STAGED_COLUMNS)
        self._blocks = rows.persist(StorageLevel.DISK_ONLY)
        packed = collect_rows(self._blocks.where("report IS NOT NULL").select("report"))
        reports: list[Report] = order_reports(
            [unpack_report(row[0]) for row in packed], range(count)
        )
        self._staged = [one for report in reports for one in report.staged]
        return reports

    def write(self) -> list[Report]:
        """Transform and write the staged blocks; return the tasks' reports."""
        assert self._blocks is not None  # noqa: S101 - `read` comes first
        tables = self._tables()
        passed_on = [one for one in tables if one.is_passed_on]
        deletes = [one for one in tables if not one.is_passed_on and one.has_only_deletes]
        others = [one for one in tables if not one.is_passed_on and not one.has_only_deletes]
        transformed = {one.steps.table: self._transform(one) for one in others}
        keys = {one.steps.table: one.new_key() for one in deletes}
        self._warn_of_idle_drops(tables)
        schemas = [columns for one in passed_on for columns in one.block_schemas]
        schemas += [
            key_schema(columns, keys[one.steps.table])
            for one in deletes
            for columns in one.block_schemas
        ]
        for one in others:
            schemas += _transformed_schemas(one, transformed[one.steps.table][1])
        self.plan.sink.prepare_tables(schemas)
        writer = self.plan.sink.writer()
        staged = [one.steps.table for one in (*passed_on, *deletes) if one.staged]
        plans = []
        for one in others:
            rows, schema = transformed[one.steps.table]
            if rows is not None:
                task = self._task(writer, schema, one.steps)
                plans.append(map_in_arrow(rows, task, REPORT_COLUMN))
        if staged:
            rows = self._blocks_of(staged)
            plans.append(rows.mapInArrow(WriteStaged(writer, keys), REPORT_COLUMN))
        return self._run(plans)

    def _transform(self, table: TableTransform) -> tuple[DataFrame | None, TransformedSchema]:
        """Return the transformed rows of a table, None if it has none, and their schema.

        A source announces all of its tables with every batch, and Spark takes a while to analyse
        the transforms of hundreds: without rows, the schema of an earlier batch is used.
        """
        name = table.steps.table
        source = (table.unpacking().columns, table.schema.change_schema.key)
        known = self.transformed.get(name)
        if known is not None and not table.staged and known[0] == source:
            return None, known[1]
        rows, schema = table.transform(self._blocks_of([name]))
        self.transformed[name] = (source, schema)
        return (rows if table.staged else None), schema

    def _run(self, plans: list[DataFrame]) -> list[Report]:
        if not plans:
            return []
        try:
            reports: list[Report] = gather_reports(reduce(lambda one, two: one.union(two), plans))
        except row_errors() as exc:
            # Spark's message names the value. The same rows would fail again after a restart.
            raise BadRecordError(
                f"a transform or an expectation can't be applied to a row: {first_line(exc)}",
                todo="Nothing of the batch was written. Use `try_cast` or `try_divide`, or leave "
                "such rows out with a `filter` before it.",
            ) from exc
        return reports

    def _blocks_of(self, tables: list[Table]) -> DataFrame:
        """Return the staged blocks of some tables, in the order of their changes."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        assert self._blocks is not None  # noqa: S101 - `read` comes first
        names = [table_text(table) for table in tables]
        return self._blocks.where(F.col("table").isin(names)).select("block")

    def _tables(self) -> list[TableTransform]:
        """Return the changes of each table, and remember the newest columns of each."""
        announced: dict[Table, list[pa.Schema]] = {}
        for columns in self.plan.source.block_schemas(self.reading.splits):
            announced.setdefault(change_schema_of(columns).table, []).append(columns)
        staged: dict[Table, list[StagedSchema]] = {}
        for one in self._staged:
            staged.setdefault(change_schema_of(one.columns).table, []).append(one)
        return [
            self._table(table, announced.get(table, []), staged.get(table, []))
            for table in dict.fromkeys([*announced, *staged])
        ]

    def _table(
        self, table: Table, announced: list[pa.Schema], staged: list[StagedSchema]
    ) -> TableTransform:
        steps = TableSteps.of(self.plan, table)
        own = [*announced, *(one.columns for one in staged)]
        known = self.newest.get(table)
        if known is not None and not any(_has_key_of(known, columns) for columns in own):
            known = None  # another table of that name
        where = f"table {'.'.join(table)!r}"
        try:
            schema = merge_change_schemas(own if known is None else [known, *own], None)
        except IcestreamError as exc:
            raise exc.at(where) from exc.__cause__
        if not all(schema.accepts(columns) for columns in own):
            raise SchemaMismatchError(
                "its key changed, and changes with the old and the new key are in one batch",
                where=where,
                todo="Read the tables again: `icestream run --start-over`.",
            )
        if data_columns(schema.columns):
            self.newest[table] = schema.change_schema.on(schema.columns)
        return TableTransform(steps, schema, self.plan.sink.keeps_changes, staged, announced)

    def _task(
        self, writer: TaskWriter, schema: TransformedSchema, steps: TableSteps
    ) -> WriteTransformed:
        validation = ChangeValidation(
            reading=self.reading,
            expectations=steps.expectations,
            keeps_faults=self.plan.on_error == "dead_letter",
            letters=self.letters,
            table=".".join(steps.table),
            key=schema.change_schema.key,
            stops_at_fault=steps.stops_at_bad,
            keeps_changes=schema.keeps_changes,
        )
        return WriteTransformed(writer, schema, validation)

    def _warn_of_idle_drops(self, tables: list[TableTransform]) -> None:
        """Warn of a shared transform that applies to no table of the batch."""
        if not tables:
            return
        for number, transform in enumerate(self.plan.transforms):
            if any(transform.fit(one.schema.columns.names) is not None for one in tables):
                continue
            text = self.plan.steps[number] if number < len(self.plan.steps) else "drop"
            if (self.plan.name, text) not in _WARNED:
                _WARNED.add((self.plan.name, text))
                logger.warning(
                    "pipeline %s: no table of the batch has a column of `%s`", self.plan.name, text
                )


def _transformed_schemas(table: TableTransform, schema: TransformedSchema) -> list[pa.Schema]:
    """Return the schemas of the transformed blocks, one for each schema of the source's blocks."""
    return [
        schema.block_schema(change_schema_of(columns)) if data_columns(columns) else columns
        for columns in table.block_schemas
    ]


def _has_key_of(known: pa.Schema, columns: pa.Schema) -> bool:
    return not data_columns(columns) or (
        change_schema_of(columns).key == change_schema_of(known).key
    )
