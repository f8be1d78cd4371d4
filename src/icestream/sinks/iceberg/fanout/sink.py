"""`route_by`: one stream into many tables, each of them exactly once.

Tasks put the rows aside, table by table; then tables are made and filled, and all are committed
side by side before the batch ends. Each table has the batch's mark for itself: a replay leaves
those that hold it as they are.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from icestream.contracts.faults import CheckStep
from icestream.contracts.sink import ROUTE, Commit, Expectation, TableCommits, added_up
from icestream.errors import CommitConflictError, IcestreamError
from icestream.sinks.iceberg.expectations import expectations_of
from icestream.sinks.iceberg.fanout.naming import STAGING
from icestream.sinks.iceberg.fanout.tables_sink import TablesSink
from icestream.sinks.iceberg.modes.registry import MODES
from icestream.sinks.iceberg.sort import parse_sort
from icestream.sinks.iceberg.trying import store_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.sinks.iceberg.fanout.routes import Route, RouteFaults
    from icestream.sinks.iceberg.fanout.shares import Share
    from icestream.sinks.iceberg.options import IcebergOptions

logger = logging.getLogger(__name__)


class FanOutSink(TablesSink):
    """The tables that rows name."""

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        super().__init__(options, catalog, name)
        mode = MODES[options.commit_mode]
        self.task_modules = (*mode.task_modules, "icestream.sinks.iceberg.fanout.writing")
        self._replaces = mode.replaces
        self._sorts_themselves = mode.sorts_itself
        self._columns: pa.Schema | None = None
        self._folder = ""

    @property
    def route(self) -> Route:
        from icestream.sinks.iceberg.fanout.routes import Route

        return Route.of(self.options, self.catalog)

    def identity(self) -> str:
        return ".".join((self.catalog.name, *self.options.namespace, "*"))

    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None:
        from icestream.sinks.iceberg.fanout.tables import Tables
        from icestream.sinks.iceberg.sweeping import sweep, temporary_folder

        self._tables = self._tables or Tables(self.options, self.catalog, self.name)
        self._tables.open(spark, pipeline, cache or temporary_folder(self))
        self._touched = None
        java = self._tables.java
        if self.options.create:
            java.create_namespace(self.options.namespace)
        # Nessie puts a random part behind a table's name; the folder must be found again.
        place = java.default_location(self.options.namespace, STAGING).rstrip("/").rpartition("/")
        self._folder = f"{place[0]}/{STAGING}/{quote(pipeline, safe='')}"
        sweep(self._folder, self.catalog.pyiceberg_properties())

    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:  # noqa: ARG002
        import pyarrow as pa

        self.route.check(columns)
        self._columns = pa.schema([column for column in columns if column.name != ROUTE])

    def computed_columns(self) -> Mapping[str, str]:
        from icestream.sinks.iceberg.fanout.routes import column_path

        route_by = self.options.route_by or ""
        return {} if column_path(route_by) is not None else {ROUTE: route_by}

    def expectations(self) -> tuple[Expectation, ...]:
        return expectations_of(self.options)

    def row_faults(self) -> RouteFaults:
        from icestream.sinks.iceberg.fanout.routes import RouteFaults
        from icestream.sinks.iceberg.missing_values import missing_values

        # What a table requires beside the keys, its own writer looks at.
        return RouteFaults(self.route, missing_values(None, self.options))

    def writer(self) -> TaskWriter:
        from icestream.sinks.iceberg.fanout.staging import RoutingWriter

        assert self._columns is not None  # noqa: S101 - `prepare` comes first
        return RoutingWriter(
            columns=self._columns,
            route=self.route,
            missing=self.row_faults().missing,
            folder=self._folder,
            io_properties=self.catalog.pyiceberg_properties(),
        )

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        done = self.commit_tables(files, mark, lambda: None)
        for refused in done.refused:
            raise refused.error
        self.discard(files)
        return added_up(done.commits) or Commit(None, 0, 0, 0, 0, 0.0)

    def commit_tables(
        self, files: list[WrittenFile], mark: BatchMark, done: Callable[[], None]
    ) -> TableCommits:
        from icestream.sinks.iceberg.fanout.shares import shares_of
        from icestream.sinks.iceberg.fanout.writing import write_tables

        tables = self.tables
        mark = replace(mark, generation=tables.kept.kept.generation)
        named = sorted({table for file in files for table in file.what["tables"]})
        sinks = {table: tables.sink(table) for table in named}
        shares = shares_of(files, sinks, self.catalog.pyiceberg_properties())
        tables.each(lambda share: self._open(share, mark), shares)
        opened = [share for share in shares if share.error is None]
        # Before any of them is made: after a crash, each is known to hold rows or to lack them.
        tables.kept.add(frozenset(share.table for share in opened))
        if self._touched is not None:
            self._touched = [share.sink for share in opened]
        tables.each(lambda share: self._prepare(share, mark), opened)
        tables.refuse_twins(share.table for share in opened if share.error is None)
        ready = [share for share in shares if share.is_ready]
        pieces = [(share.staged, share.writer) for share in ready if share.writer is not None]
        order = () if self._sorts_themselves else parse_sort(self.options)
        written = write_tables(tables.spark, pieces, order)
        for share, found in zip(ready, written, strict=True):
            if isinstance(found, IcestreamError):
                share.refuse(found, mark)
            else:
                share.files = found
        tables.each(lambda share: self._commit(share, mark, done), ready)
        tables.note_written()
        return TableCommits(
            commits={share.name: share.commit for share in shares if share.commit is not None},
            held=tuple(share.name for share in shares if share.is_held),
            refused=tuple(share.refused() for share in shares if share.error is not None),
        )

    def _open(self, share: Share, mark: BatchMark) -> None:
        from icestream.sinks.iceberg.java import java_errors

        try:
            self.tables.open_new(share.table)
            self.tables.refuse_stranger(share.table, mark)
        except java_errors() as exc:
            share.refuse(self.tables.refusal(share.sink, exc), mark)
        except IcestreamError as exc:
            share.refuse(exc, mark)

    def _prepare(self, share: Share, mark: BatchMark) -> None:
        from icestream.sinks.iceberg.java import java_errors

        assert self._columns is not None  # noqa: S101 - `prepare` comes first
        try:
            if self._holds(share.sink, mark):
                share.is_held = True
                return
            share.sink.prepare(share.columns(self._columns))
            share.writer = share.sink.writer()
        except java_errors() as exc:
            share.refuse(self.tables.refusal(share.sink, exc), mark)
        except IcestreamError as exc:
            share.refuse(exc, mark)

    def _commit(self, share: Share, mark: BatchMark, done: Callable[[], None]) -> None:
        if not share.is_ready or not share.files:
            return
        try:
            share.commit = share.commit_once(replace(mark, rows=share.rows))
        except IcestreamError as exc:
            if isinstance(exc, CommitConflictError):
                # Of any other commit it is not certain that the table lacks the files.
                share.sink.discard(share.files)
            share.refuse(exc, mark)
        else:
            done()

    def discard(self, files: list[WrittenFile]) -> None:
        from pyiceberg.io import load_file_io

        for path in (file.what["file-path"] for file in files):
            load_file_io(self.catalog.pyiceberg_properties(), path).delete(path)

    def check(self) -> Iterator[CheckStep]:
        yield from self.catalog.check()
        yield CheckStep("find namespace", self._describe_namespace)
        yield CheckStep("find tables", self._describe_tables)
        yield from store_steps(self.catalog, None)

    def _describe_tables(self) -> str:
        return f"{self.identity()}, by {self.options.route_by}"
