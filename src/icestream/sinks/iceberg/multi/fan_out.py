"""The fan-out sink: each row goes to the table that `route_by` names."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from icestream.arrow import group_by_bytes
from icestream.contracts.faults import CheckStep
from icestream.contracts.reports import run_in_tasks
from icestream.contracts.sink import ROUTE, Commit, RowExpectation, TableCommits, sum_commits
from icestream.errors import CommitConflictError, IcestreamError
from icestream.sinks.iceberg.multi.routing import StagedRows
from icestream.sinks.iceberg.multi.sink import MultiTableSink
from icestream.sinks.iceberg.multi.table_names import STAGING
from icestream.sinks.iceberg.partition_terms import parse_sort
from icestream.sinks.iceberg.sink import MODES, expectations_of
from icestream.sinks.iceberg.store_check import storage_check_steps
from icestream.sinks.iceberg.writer import sort_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.sinks.iceberg.multi.routing import Route, RouteFaults
    from icestream.sinks.iceberg.multi.table_batch import TableBatch
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.partition_terms import SortTerm


# One task writes a table unless it has more rows than this, and more than an even share.
ROWS_PER_TASK = 200_000
BINS_PER_SLOT = 3

Written = tuple[int, int, "list[WrittenFile] | IcestreamError"]


@dataclass(frozen=True)
class WriteUnit:
    """Rows that one task writes for one table.

    Attributes:
        table: number of the table.
        part: number of the unit among those of the table.
    """

    table: int
    part: int
    rows: tuple[StagedRows, ...]
    writer: TaskWriter

    @property
    def count(self) -> int:
        return sum(one.rows for one in self.rows)


def write_tables(
    spark: SparkSession,
    tables: Sequence[tuple[Sequence[StagedRows], TaskWriter]],
    order: Sequence[SortTerm],
) -> list[list[WrittenFile] | IcestreamError]:
    """Write the rows of every table in one job; return the files of each, or its error."""
    slots = spark.sparkContext.defaultParallelism
    total = sum(one.rows for parts, _ in tables for one in parts)
    rows_per_task = max(ROWS_PER_TASK, -(-total // slots))
    units = [
        WriteUnit(number, part, rows, writer)
        for number, (parts, writer) in enumerate(tables)
        for part, rows in enumerate(_split_rows(parts, rows_per_task))
    ]
    done = run_in_tasks(
        spark, _balance_units(units, slots * BINS_PER_SLOT), WriteTablesTask(tuple(order))
    )
    outcomes: list[list[WrittenFile] | IcestreamError] = [[] for _ in tables]
    # In the order of the rows: of two changes to a key, the later one wins.
    written = sorted((unit for task in done for unit in task), key=lambda unit: unit[:2])
    for table, _, outcome in written:
        so_far = outcomes[table]
        if isinstance(so_far, IcestreamError):
            continue
        outcomes[table] = outcome if isinstance(outcome, IcestreamError) else so_far + outcome
    return outcomes


@dataclass(frozen=True)
class WriteTablesTask:
    """Writes the units of one bin, one after the other."""

    order: tuple[SortTerm, ...]

    def __call__(self, units: list[WriteUnit]) -> list[Written]:
        return [(unit.table, unit.part, self._write(unit)) for unit in units]

    def _write(self, unit: WriteUnit) -> list[WrittenFile] | IcestreamError:
        rows: Iterator[pa.RecordBatch] = (batch for one in unit.rows for batch in one())
        try:
            if not self.order:
                return unit.writer.write(rows)
            # Sort piece by piece and write each to separate files: the order is that of a file.
            pieces = (
                sort_rows(pa.Table.from_batches(group), self.order)
                for group in group_by_bytes(rows)
            )
            return [file for piece in pieces for file in unit.writer.write(piece.to_batches())]
        except IcestreamError as exc:
            # The other tables of the bin are still written.
            return exc


def _split_rows(parts: Sequence[StagedRows], most: int) -> Iterator[tuple[StagedRows, ...]]:
    """Split the rows of a table that has more than one task should write."""
    if sum(one.rows for one in parts) <= most:
        yield tuple(parts)
        return
    chunk: list[StagedRows] = []
    for one in parts:
        for block in one.blocks:
            if chunk and sum(part.rows for part in chunk) + block[1] > most:
                yield tuple(chunk)
                chunk = []
            chunk.append(StagedRows(one.path, (block,), one.io_properties))
    yield tuple(chunk)


def _balance_units(units: list[WriteUnit], most: int) -> list[list[WriteUnit]]:
    """Distribute units over a few bins with about equally many rows."""
    bins: list[list[WriteUnit]] = [[] for _ in range(min(most, len(units)))]
    sizes = [0] * len(bins)
    for unit in sorted(units, key=lambda one: one.count, reverse=True):
        lightest = sizes.index(min(sizes))
        bins[lightest].append(unit)
        sizes[lightest] += unit.count
    return bins


logger = logging.getLogger(__name__)


class FanOutSink(MultiTableSink):
    """Writes each row to the table that it names."""

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        super().__init__(options, catalog, name)
        mode = MODES[options.commit_mode]
        self.task_modules = (*mode.task_modules, "icestream.sinks.iceberg.multi.fan_out")
        self._replaces = mode.replaces
        self._sorts_themselves = mode.sorts_itself
        self._columns: pa.Schema | None = None
        self._folder = ""

    @property
    def route(self) -> Route:
        from icestream.sinks.iceberg.multi.routing import Route

        return Route.of(self.options, self.catalog)

    def identity(self) -> str:
        return ".".join((self.catalog.name, *self.options.namespace, "*"))

    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None:
        from icestream.sinks.iceberg.multi.tables import TableSet
        from icestream.sinks.iceberg.staging_cleanup import remove_staged_files, temporary_folder

        self._tables = self._tables or TableSet(self.options, self.catalog, self.name)
        self._tables.open(spark, pipeline, cache or temporary_folder(self))
        self._batch_sinks = None
        java = self._tables.java
        if self.options.create:
            java.create_namespace(self.options.namespace)
        # Nessie appends a random part to a table's folder; this folder must be found again.
        location = java.default_location(self.options.namespace, STAGING)
        parent = location.rstrip("/").rpartition("/")[0]
        self._folder = f"{parent}/{STAGING}/{quote(pipeline, safe='')}"
        remove_staged_files(self._folder, self.catalog.pyiceberg_properties())

    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:  # noqa: ARG002
        self.refuse_columns(columns)
        self._columns = pa.schema([column for column in columns if column.name != ROUTE])

    def refuse_columns(self, columns: pa.Schema) -> None:
        self.route.check(columns)

    def rows_by_table(self, rows: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        values = self.route.values(rows)
        visible = rows.select([name for name in rows.schema.names if name != ROUTE])
        return {
            ".".join((self.catalog.name, *table)): visible.filter(pc.equal(values, value))
            for value, table in self.route.tables(values).items()
        }

    def computed_columns(self) -> Mapping[str, str]:
        from icestream.sinks.iceberg.multi.table_names import column_path

        route_by = self.options.route_by or ""
        return {} if column_path(route_by) is not None else {ROUTE: route_by}

    def expectations(self) -> tuple[RowExpectation, ...]:
        return expectations_of(self.options)

    def row_faults(self) -> RouteFaults:
        from icestream.sinks.iceberg.missing_values import missing_values
        from icestream.sinks.iceberg.multi.routing import RouteFaults

        # Each table's own writer checks its other required columns.
        return RouteFaults(self.route, missing_values(None, self.options))

    def writer(self) -> TaskWriter:
        from icestream.sinks.iceberg.multi.routing import RoutingWriter

        assert self._columns is not None  # noqa: S101 - `prepare` comes first
        return RoutingWriter(
            columns=self._columns,
            route=self.route,
            missing=self.row_faults().missing,
            folder=self._folder,
            io_properties=self.catalog.pyiceberg_properties(),
        )

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        done = self.commit_batch(files, mark, lambda: None)
        for refused in done.refused:
            raise refused.error
        self.discard(files)
        return sum_commits(done.commits) or Commit(None, 0, 0, 0, 0, 0.0)

    def commit_batch(
        self, files: list[WrittenFile], mark: BatchMark, on_commit: Callable[[], None]
    ) -> TableCommits:
        from icestream.sinks.iceberg.multi.table_batch import group_by_table

        tables = self.tables
        mark = replace(mark, generation=tables.state_file.state.generation)
        named = sorted({table for file in files for table in file.metadata["tables"]})
        sinks = {table: tables.sink(table) for table in named}
        batches = group_by_table(files, sinks, self.catalog.pyiceberg_properties())
        tables.run_concurrently(lambda batch: self._open(batch, mark), batches)
        opened = [batch for batch in batches if batch.error is None]
        # Before any is created: after a crash, we know which tables may hold rows.
        tables.state_file.add(frozenset(batch.table for batch in opened))
        if self._batch_sinks is not None:
            self._batch_sinks = [batch.sink for batch in opened]
        tables.run_concurrently(lambda batch: self._prepare(batch, mark), opened)
        tables.refuse_twins(batch.table for batch in opened if batch.error is None)
        ready = [batch for batch in batches if batch.is_ready]
        rows = [(batch.staged, batch.writer) for batch in ready if batch.writer is not None]
        order = () if self._sorts_themselves else parse_sort(self.options)
        written = write_tables(tables.spark, rows, order)
        for batch, outcome in zip(ready, written, strict=True):
            if isinstance(outcome, IcestreamError):
                batch.refuse(outcome, mark)
            else:
                batch.files = outcome
        tables.run_concurrently(lambda batch: self._commit(batch, mark, on_commit), ready)
        tables.record_written()
        return TableCommits(
            commits={batch.name: batch.commit for batch in batches if batch.commit is not None},
            held=tuple(batch.name for batch in batches if batch.is_held),
            refused=tuple(batch.refused() for batch in batches if batch.error is not None),
        )

    def _open(self, batch: TableBatch, mark: BatchMark) -> None:
        from icestream.sinks.iceberg.java import java_errors

        try:
            self.tables.open_new(batch.table)
            self.tables.refuse_unaccounted_rows(batch.table, mark)
        except java_errors() as exc:
            batch.refuse(self.tables.refusal(batch.sink, exc), mark)
        except IcestreamError as exc:
            batch.refuse(exc, mark)

    def _prepare(self, batch: TableBatch, mark: BatchMark) -> None:
        from icestream.sinks.iceberg.java import java_errors

        assert self._columns is not None  # noqa: S101 - `prepare` comes first
        try:
            if self._holds(batch.sink, mark):
                batch.is_held = True
                return
            batch.sink.prepare(batch.columns(self._columns))
            batch.writer = batch.sink.writer()
        except java_errors() as exc:
            batch.refuse(self.tables.refusal(batch.sink, exc), mark)
        except IcestreamError as exc:
            batch.refuse(exc, mark)

    def _commit(self, batch: TableBatch, mark: BatchMark, on_commit: Callable[[], None]) -> None:
        if not batch.is_ready or not batch.files:
            return
        try:
            batch.commit = batch.commit_once(replace(mark, rows=batch.rows))
        except IcestreamError as exc:
            if isinstance(exc, CommitConflictError):
                # After any other error the table may hold the files.
                batch.sink.discard(batch.files)
            batch.refuse(exc, mark)
        else:
            on_commit()

    def discard(self, files: list[WrittenFile]) -> None:
        from pyiceberg.io import load_file_io

        for path in (file.metadata["file-path"] for file in files):
            load_file_io(self.catalog.pyiceberg_properties(), path).delete(path)

    def check(self) -> Iterator[CheckStep]:
        yield from self.catalog.check()
        yield CheckStep("find namespace", self._describe_namespace)
        yield CheckStep("find tables", self._describe_tables)
        yield from storage_check_steps(self.catalog, None)

    def _describe_tables(self) -> str:
        return f"{self.identity()}, by {self.options.route_by}"
