"""The tables of a sink of many tables: found at the start, created on demand."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from icestream.contracts.catalog import folder_name
from icestream.contracts.faults import exception_text
from icestream.contracts.offset import is_replay
from icestream.contracts.sink import LostRows
from icestream.errors import (
    AttentionError,
    CheckpointLostError,
    ConnectorError,
    ForeignTableError,
    IcestreamError,
    PlanError,
    SchemaMismatchError,
    TransientError,
)
from icestream.sinks.iceberg.multi.state_file import FanOutStateFile
from icestream.sinks.iceberg.multi.table_batch import CATALOG_WIDE_ERRORS, catalog_refusal_error
from icestream.sinks.iceberg.multi.table_names import TableNameRules
from icestream.sinks.iceberg.properties import TOMBSTONES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.offset import BatchMark
    from icestream.sinks.iceberg.java import JavaCatalog
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.sink import IcebergTableSink


logger = logging.getLogger(__name__)

CONCURRENT_TABLES = 16
DROPPED = "the table was dropped, and the rows that this pipeline committed went with it"
UNMARKED = (
    "the table has no mark of this pipeline, which committed rows to it: it was dropped and "
    "recreated, or the mark was removed"
)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def namespace_tables(options: IcebergOptions, catalog: Catalog[Any]) -> set[Identifier]:
    """Return every table that the pipeline of a sink of many tables may have written to.

    Those of the sink's namespace, or of the whole catalog without one, whoever created them.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError

    dead = options.dead_letter_name()
    client = catalog.client()
    # Tables named with their namespace may be in any.
    namespaces = [options.namespace] if options.namespace else []
    tables: set[Identifier] = set()
    for namespace in namespaces or client.list_namespaces():
        with suppress(NoSuchNamespaceError):
            names = client.list_tables(namespace)
            tables |= {(*namespace, name[-1]) for name in names}
    tables = {name for name in tables if not name[-1].endswith(TOMBSTONES)}
    stored = catalog.abilities.stored_name
    return tables if dead is None else tables - {stored((*dead[0], dead[1]))}


class TableSet:
    """Every table that one pipeline has written to, each with its own sink.

    Args:
        options: the options of the sink of all tables.
        catalog: the catalog of the tables.
        name: the sink's name in the file.
        kind: the class of each table's sink; `IcebergTableSink` if absent.
    """

    def __init__(
        self,
        options: IcebergOptions,
        catalog: Catalog[Any],
        name: str,
        kind: type[IcebergTableSink] | None = None,
    ) -> None:
        self._options = options
        self._kind = kind
        self._catalog = catalog
        self._name = name
        self._sinks: dict[Identifier, IcebergTableSink] = {}
        self._foreign_marks_at_start: list[BatchMark] = []
        self._opened_late: set[Identifier] = set()
        self._by_uuid: dict[str, Identifier] = {}
        self._lost: frozenset[Identifier] = frozenset()
        self._unreadable: dict[Identifier, IcestreamError] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._spark: SparkSession | None = None
        self._java: JavaCatalog | None = None
        self._cache: Path | None = None
        self._pipeline = ""
        self._state_file: FanOutStateFile | None = None

    @property
    def java(self) -> JavaCatalog:
        assert self._java is not None  # noqa: S101 - `open` comes first
        return self._java

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None  # noqa: S101 - `open` comes first
        return self._spark

    @property
    def state_file(self) -> FanOutStateFile:
        assert self._state_file is not None  # noqa: S101 - `open` comes first
        return self._state_file

    def open(self, spark: SparkSession, pipeline: str, cache: Path) -> None:
        """Connect, and read the tables in the state file; without one, find them by their marks.

        Raises:
            AttentionError: an earlier version let rows name tables that the file does not allow.
        """
        from icestream.sinks.iceberg.java import JavaCatalog

        self._spark, self._pipeline, self._cache = spark, pipeline, cache
        self._catalog.client()
        self._java = JavaCatalog(spark, self._catalog.name)
        self._by_uuid = {}
        self._pool = self._pool or ThreadPoolExecutor(CONCURRENT_TABLES, "icestream-table")
        self._state_file = FanOutStateFile(cache)
        if self._state_file.exists:
            stored = self._catalog.abilities.stored_name
            tables = sorted({stored(table) for table in self._state_file.state.tables})
            self._sinks = dict(
                zip(tables, self.run_concurrently(self._open_sink, tables), strict=True)
            )
            self._foreign_marks_at_start = []
            self._refuse_disallowed()
        else:
            self._find_by_marks()

    def _refuse_disallowed(self) -> None:
        """Refuse tables that rows could name in earlier versions, which stored no destination.

        Without this, `on_error` would apply to all further rows of these tables.
        """
        if self.state_file.state.destination:
            return
        naming = TableNameRules.of(self._options, self._catalog)
        outside = sorted(
            ".".join(table)
            for table, sink in self._sinks.items()
            if _has_mark(sink) and not naming.allows(table)
        )
        if outside:
            raise AttentionError(
                f"the pipeline has written to tables outside of namespace "
                f"{'.'.join(self._options.namespace)!r}, which rows may no longer name unless the "
                "file lists them",
                where=self._where,
                todo=f"Add to the sink: `allowed_tables: [{', '.join(outside)}]`.",
            )

    def _find_by_marks(self) -> None:
        """Search the namespace, or the whole catalog, for tables with a mark of the pipeline.

        Raises:
            ConnectorError: a table of the namespace can't be read, or none of the catalog can.
        """
        tables = sorted(namespace_tables(self._options, self._catalog))
        opened = self.run_concurrently(self._open_if_readable, tables)
        by_table = zip(tables, opened, strict=True)
        sinks = {table: sink for table, sink in by_table if sink is not None}
        if self._unreadable and (self._options.namespace or not sinks):
            raise next(iter(self._unreadable.values()))
        for table, error in self._unreadable.items():
            logger.warning(
                "skipping table %s, which can't be read: %s", ".".join(table), error.what
            )
            del self._sinks[table]
        self._foreign_marks_at_start = [
            mark for sink in sinks.values() for mark in sink.foreign_marks()
        ]
        self._sinks = {name: sink for name, sink in sinks.items() if sink.last_mark() is not None}
        self.state_file.recover(frozenset(self._sinks))

    def _open_if_readable(self, table: Identifier) -> IcebergTableSink | None:
        """Open a table that may be another team's and that we may not be able to read.

        If it is ours, `open_new` refuses the first rows for it: its contents are unknown.
        """
        try:
            return self._open_sink(table)
        except TransientError:
            raise
        except (ConnectorError, PlanError) as exc:
            # PlanError: its files are in a store that the file does not name.
            self._unreadable[table] = exc
            return None

    def sink(self, table: Identifier) -> IcebergTableSink:
        """Return the sink of a table, which need not be open yet."""
        from icestream.sinks.iceberg.sink import IcebergTableSink

        sink = self._sinks.get(table)
        if sink is None:
            *namespace, name = table
            own = {"namespace": tuple(namespace), "table": name, "route_by": None}
            options = self._options.model_copy(update=own)
            kind = self._kind or IcebergTableSink
            sink = self._sinks[table] = kind(options, self._catalog, self._name)
            naming = TableNameRules.of(self._options, self._catalog)
            sink.target.requires_ownership = not self._options.table and not naming.is_listed(table)
        return sink

    def open_new(self, table: Identifier) -> None:
        """Open a table that was not among those found at the start.

        Raises:
            ForeignTableError: somebody else created it, and the file does not list it.
            ConnectorError: it could not be read at the start.
        """
        sink = self._sinks[table]
        if table in self._unreadable:
            raise self._unreadable[table]
        if not sink.target.is_open:
            self._open(sink, table)
            self._opened_late.add(table)
        try:
            sink.target.refuse_foreign_table()
        except ForeignTableError:
            # Not one of ours: it affects neither where we resume nor what we publish.
            del self._sinks[table]
            raise

    def refuse_twins(self, tables: Iterable[Identifier]) -> None:
        """Refuse two names for one table, before any row is written to it.

        Some servers ignore case or accents without declaring it. Under its second name the table
        would seem to hold the batch already, and the rows of that name would be lost.

        Raises:
            SchemaMismatchError: two names mean one table.
        """
        for table in tables:
            target = self._sinks[table].target
            first = (
                self._by_uuid.setdefault(target.handle.uuid(), table) if target.exists else table
            )
            if first != table:
                raise SchemaMismatchError(
                    f"{'.'.join(first)!r} and {'.'.join(table)!r} are one table: the catalog does "
                    "not distinguish the two names",
                    where=self._where,
                    todo="Nothing of the batch was written. Give the tables names that differ in "
                    "more than case or accents, e.g. `route_by: lower(kind)`.",
                )

    def is_accounted_for(self, table: Identifier) -> bool:
        """Tell whether a table was found at the start, or holds no rows of the pipeline."""
        return table not in self._opened_late or self._sinks[table].last_mark() is None

    def refuse_unaccounted_rows(self, table: Identifier, mark: BatchMark) -> None:
        """Refuse a table opened late that holds rows of this pipeline from another checkpoint.

        Raises:
            CheckpointLostError: it holds such rows.
        """
        held = None if self.is_accounted_for(table) else self._sinks[table].last_mark()
        self._opened_late.discard(table)
        if held is None or held.query_id == mark.query_id or is_replay(mark):
            return
        raise CheckpointLostError(
            f"the table holds this pipeline's rows up to batch {held.epoch} of another "
            "checkpoint, and was not found at the start: it is outside of the sink's namespace, or "
            "could not be read then",
            todo="Nothing was written to it. To write to it all the same, next to what it "
            f"holds, unset its property 'icestream.mark.{mark.pipeline}'.",
        )

    @property
    def destination(self) -> str:
        """The namespace and table for rows that name none themselves."""
        return ".".join((*self._options.namespace, self._options.table or "*"))

    def record_written(self) -> None:
        """Record, after a batch is committed, which tables hold rows."""
        accounted = filter(self.is_accounted_for, self._sinks)
        marked = [table for table in accounted if _has_mark(self._sinks[table])]
        self.state_file.add_written(frozenset(marked), self.destination)

    def moved_from(self) -> str | None:
        """Return the former destination of rows, if the file names another one now."""
        state = self.state_file.state
        return (
            state.destination
            if state.written and state.destination not in ("", self.destination)
            else None
        )

    def lost_rows(self, tables: Iterable[Identifier] | None = None) -> dict[Identifier, LostRows]:
        """Return what happened to tables that lack rows which the pipeline committed.

        Args:
            tables: the tables that must hold rows; all that have held rows if absent.
        """
        state = self.state_file.state
        expected = sorted(state.written if tables is None else set(tables) - state.given_up)
        self.run_concurrently(self._open_table, expected)
        checked = {table: self._lost_rows(table) for table in expected}
        lost = {table: rows for table, rows in checked.items() if rows is not None}
        self._lost = frozenset(lost)
        return lost

    def _open_table(self, table: Identifier) -> None:
        if not self.sink(table).target.is_open:
            self._open(self._sinks[table], table)

    def _lost_rows(self, table: Identifier) -> LostRows | None:
        sink = self._sinks[table]
        if not sink.target.exists:
            return LostRows(sink.identity(), DROPPED)
        if sink.last_mark() is None:
            if sink.target.is_mirror and table not in self.state_file.state.written:
                return None  # an earlier version loaded it empty, without a mark
            return LostRows(sink.identity(), UNMARKED)
        return sink.target.lost_rows()

    def accept_lost_rows(self) -> None:
        """Continue with the tables as they are."""
        self.run_concurrently(lambda sink: sink.accept_lost_rows(), self.all())
        marked = frozenset(table for table, sink in self._sinks.items() if _has_mark(sink))
        self.state_file.record_given_up(
            marked, self.destination, self.state_file.state.given_up | (self._lost - marked)
        )

    def all(self) -> list[IcebergTableSink]:
        """Return the open tables."""
        return [sink for sink in self._sinks.values() if sink.target.is_open]

    def marks(self) -> list[BatchMark]:
        """Return the pipeline's newest mark in each of the tables."""
        return [mark for sink in self.all() if (mark := sink.last_mark()) is not None]

    def newest_mark(self) -> BatchMark | None:
        """Return the pipeline's newest mark in any of the tables."""
        return max(self.marks(), key=_recency, default=None)

    def foreign_marks(self) -> list[BatchMark]:
        """Return the newest mark of every other pipeline in any of the tables."""
        newest: dict[str, BatchMark] = {}
        own = [mark for sink in self.all() for mark in sink.foreign_marks()]
        for mark in sorted([*self._foreign_marks_at_start, *own], key=_recency):
            newest[mark.pipeline] = mark
        return list(newest.values())

    def run_concurrently(
        self, work: Callable[[Item], Outcome], items: Iterable[Item]
    ) -> list[Outcome]:
        """Call `work` for each item concurrently; all calls finish before an error is raised."""
        assert self._pool is not None  # noqa: S101 - `open` comes first
        waiting = [self._pool.submit(self._run_in_session, work, item) for item in items]
        errors = [error for one in waiting if (error := one.exception()) is not None]
        for error in errors:
            raise error
        return [one.result() for one in waiting]

    def _run_in_session(self, work: Callable[[Item], Outcome], item: Item) -> Outcome:
        from icestream.sinks.iceberg.java import activate_session

        activate_session(self.spark)
        return work(item)

    def _open_sink(self, table: Identifier) -> IcebergTableSink:
        sink = self.sink(table)
        self._open(sink, table)
        return sink

    def _open(self, sink: IcebergTableSink, table: Identifier) -> None:
        from icestream.sinks.iceberg.java import java_errors

        assert self._cache is not None  # noqa: S101 - `open` comes first
        folder = self._cache / "tables" / folder_name(table)
        try:
            sink.open(self.spark, self._pipeline, folder)
        except java_errors() as exc:
            raise self.refusal(sink, exc) from exc

    def refusal(self, sink: IcebergTableSink, fault: Exception) -> ConnectorError:
        """Return the error for a table that the catalog refuses, from the Java exception.

        Raises:
            TransientError: the catalog or the store is unreachable, for every table.
            RefusedError: the credentials, which all tables share, were refused.
        """
        from icestream.sinks.iceberg.java import java_errors, java_message

        error = sink.explain(fault)
        if isinstance(error, CATALOG_WIDE_ERRORS):
            raise error from fault
        try:
            self.java.exists(self._options.namespace, "icestream")
        except java_errors() as exc:
            error = self._catalog.explain(exception_text(exc), self._where)
            if isinstance(error, CATALOG_WIDE_ERRORS):
                raise error from exc
            raise TransientError(
                f"the catalog does not answer: {java_message(fault)}", where=self._where
            ) from exc
        return catalog_refusal_error(java_message(fault))

    @property
    def _where(self) -> str:
        return f"sink {self._name!r}, {self._catalog.identity()}"


def _has_mark(sink: IcebergTableSink) -> bool:
    return sink.target.seen_mark is not None


def _recency(mark: BatchMark) -> tuple[int, int]:
    return mark.generation, mark.epoch
