"""The table that a sink writes to: opened, made when missing, and kept fitting the rows."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import is_replay, pipeline_of, superseded_error
from icestream.contracts.sink import LostRows
from icestream.errors import ConnectorError, ForeignTableError, IcestreamError
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.properties import CREATED_BY, SOURCE_COLUMNS, write_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit
    from icestream.sinks.iceberg.fitting import Fitting
    from icestream.sinks.iceberg.java import JavaCatalog
    from icestream.sinks.iceberg.java_table import Change, JavaTable, TableState
    from icestream.sinks.iceberg.ledger import MarkSnapshot
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.writer import IcebergWriter


logger = logging.getLogger(__name__)

# A batch that takes longer than this may find its credentials run out; it is then replayed.
RENEWED_SECS_BEFORE = 300


class Target:
    """One table of one catalog, and the mark of one pipeline in it.

    Attributes:
        seen: the pipeline's mark that we last saw in the table, or wrote.
        mark_snapshot: the snapshot of that mark, which the next commit must build on; None if
            there is none, or the rows before the next commit do not matter.
    """

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], sink_name: str) -> None:
        self.options = options
        self.catalog = catalog
        self.sink_name = sink_name
        # A sink of many tables is built from one without a table.
        *namespace, self.table = (
            catalog.table_identifier(tuple(options.namespace), options.table)
            if options.table
            else (*options.namespace, "")
        )
        self.namespace: tuple[str, ...] = tuple(namespace)
        # Whether the table's name comes from data, so that only a table of our own is meant.
        self.only_own = False
        self.seen: str | None = None
        self.mark_snapshot: MarkSnapshot | None = None
        self._session: SparkSession | None = None
        self.pipeline = ""
        self._java: JavaCatalog | None = None
        self._handle: JavaTable | None = None
        self._state: TableState | None = None
        self._fitting: Fitting | None = None
        self._is_looked_at = False

    @property
    def identity(self) -> str:
        return ".".join((self.catalog.name, *self.namespace, self.table))

    @property
    def exists(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> TableState:
        """The table as it was last read."""
        assert self._state is not None  # noqa: S101 - `prepare` comes first
        return self._state

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def session(self) -> SparkSession:
        assert self._session is not None  # noqa: S101 - `open` comes first
        return self._session

    @property
    def fitting(self) -> Fitting:
        assert self._fitting is not None  # noqa: S101 - `open` comes first
        return self._fitting

    @property
    def handle(self) -> JavaTable:
        assert self._handle is not None  # noqa: S101 - `open` or `prepare` comes first
        return self._handle

    def open(self, spark: SparkSession, pipeline: str) -> None:
        """Connect, and read the table if there is one."""
        from icestream.sinks.iceberg.fitting import Fitting
        from icestream.sinks.iceberg.java import JavaCatalog

        self.pipeline = pipeline
        self._session = spark
        # Makes the catalog's own store where it is missing, and puts its faults into our words.
        self.catalog.client()
        self._java = JavaCatalog(spark, self.catalog.name)
        self._handle = self._state = self.seen = self.mark_snapshot = None
        self._fitting = Fitting(self)
        self._is_looked_at = False
        if self._java.exists(self.namespace, self.table):
            self._handle = self._java.load(self.namespace, self.table)
            self._state = self._handle.read_state()
            self.seen = self._state.properties.get(ledger.property_key(pipeline))
            self.mark_snapshot = ledger.read_mark_snapshot(self._state.properties, pipeline)

    def adopt(self, options: IcebergOptions) -> None:
        """Go on with other options for the same table."""
        from icestream.sinks.iceberg.fitting import Fitting

        self.options = options
        self._fitting = Fitting(self)

    def io_properties(self) -> dict[str, str]:
        """Return how PyIceberg reaches the table's files now, secrets included.

        Asked for each batch: what the catalog hands out for a table runs out.
        """
        return {**self.catalog.pyiceberg_properties(), **self._vended()}

    def _vended(self) -> dict[str, str]:
        if self._handle is None or not self.catalog.abilities.vends_credentials:
            return {}
        return self._handle.vended_properties()

    def _renew(self) -> None:
        """Load the table anew when the credentials that came with it run out soon."""
        from icestream.sinks.iceberg.java_table import end_ms

        end = end_ms(self._vended())
        if end is None or end / 1000 > time.time() + RENEWED_SECS_BEFORE:
            return
        assert self._java is not None  # noqa: S101 - `open` comes first
        self._handle = self._java.load(self.namespace, self.table)
        logger.info("table %s: credentials for its files were renewed", self.identity)

    def last_mark(self) -> BatchMark | None:
        """Return the newest mark of the pipeline that the table held when last looked at."""
        if self.seen is None:
            return None
        return ledger.parse_mark(self.seen, ledger.property_key(self.pipeline))

    def foreign_marks(self) -> list[BatchMark]:
        """Return the newest mark of every other pipeline."""
        if self._state is None:
            return []
        marks = ledger.read_marks(self._state.properties)
        return [mark for name, mark in marks.items() if name != self.pipeline]

    def schema(self) -> Schema | None:
        """Return the table's columns as they are now; None while there is no table."""
        if self._state is None:
            return None
        self._renew()
        try:
            self.fitting.notice()
            self.fitting.rename()
        except IcestreamError as exc:
            exc.at(f"pipeline {self.pipeline!r}, table {self.identity}")
            raise
        self._is_looked_at = True
        return self.state.schema

    def prepare(
        self,
        columns: pa.Schema,
        *,
        declared: bool = False,
        renames: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table fit rows with these columns: create it, change it, or refuse.

        Args:
            columns: the columns of the rows.
            declared: whether the source declares them, so that they are all there are.
            renames: columns that the source calls by another name now, old name to new.
        """
        try:
            if self._state is None:
                self._create(columns)
            elif not self._is_looked_at:
                self._renew()
                self.fitting.notice()
            self._is_looked_at = False
            # Also a table just made: another pipeline may have been quicker.
            self.fitting.fit(columns, declared=declared, renames=renames)
        except IcestreamError as exc:
            exc.at(f"pipeline {self.pipeline!r}, table {self.identity}")
            raise

    def _create(self, columns: pa.Schema) -> None:
        if not self.options.create:
            raise self.table_missing()
        assert self._java is not None  # noqa: S101 - `open` comes first
        self._handle = self.fitting.create(self._java, columns)
        self.look()
        self.refuse_foreign()

    def refuse_foreign(self) -> None:
        """Refuse a table that somebody else created, if data alone named it.

        Raises:
            ForeignTableError: it was, and this pipeline never wrote to it.
        """
        if not self.only_own or self._state is None or self.seen is not None:
            return
        properties, own = self._state.properties, pipeline_of(self.pipeline)
        has_written = ledger.property_key(own) in properties or self.is_mirror
        if properties.get(CREATED_BY) == own or has_written:
            return
        raise ForeignTableError(
            "the table exists, and this pipeline did not create it",
            todo="If the pipeline may write to it, list it in the sink: `allowed_tables: "
            f"[{'.'.join((*self.namespace, self.table))}]`.",
        )

    @property
    def is_mirror(self) -> bool:
        """Whether this pipeline prepared the table as a mirror, be it without any row so far."""
        return self._state is not None and SOURCE_COLUMNS + self.pipeline in self._state.properties

    def writer(self, file_schema: Schema | None = None, *, in_order: bool = True) -> IcebergWriter:
        """Return a writer of data files for the table as it is now.

        Args:
            file_schema: columns of the files, if they hold more than the table's own.
            in_order: whether rows come in the order that the options name, if they name one.
        """
        from icestream.sinks.iceberg.writer import IcebergWriter

        state = self.state
        return IcebergWriter(
            schema=(file_schema or state.schema).model_dump_json(),
            spec=state.spec.model_dump_json(),
            location=state.location,
            properties=state.properties,
            io_properties=self.io_properties(),
            sort_order_id=self._sort_order_id(state) if in_order else 0,
            settings=write_settings(self.options, state.properties),
        )

    def commit(self, change: Change, mark: BatchMark | None, *, rows: int) -> Commit:
        """Make a change and the mark one commit; without a mark, the change alone."""
        from icestream.sinks.iceberg.commit import commit_once, commit_unmarked

        properties = self.options.snapshot_properties
        if mark is None:
            where = f"table {self.identity}"
            return commit_unmarked(self.handle, change, rows, properties=properties, where=where)
        commit, self.mark_snapshot = commit_once(
            self.handle,
            change,
            mark,
            rows,
            seen=self.seen,
            # Replayed dead letters do not continue after the rows of an earlier replay.
            recorded=None if is_replay(mark) else self.mark_snapshot,
            properties=properties,
            where=f"pipeline {mark.pipeline!r}, batch {mark.epoch}, table {self.identity}",
        )
        self.seen = mark.to_json()
        return commit

    def lost_rows(self) -> LostRows | None:
        """Return what happened to rows of the pipeline's mark that the table no longer holds."""
        mark, recorded = self.last_mark(), self.mark_snapshot
        if mark is None or recorded is None:
            return None
        java, branch = self.handle.java, self.options.branch
        found = ledger.find_contradiction(self.handle.jvm, java, recorded, branch)
        if found is None:
            return None
        held, upto = mark.branch or MAIN, f"up to batch {mark.epoch}"
        if held != branch and java.snapshot(held) is not None:
            return LostRows(
                self.identity,
                f"the rows of this pipeline, {upto}, are on branch {held!r}, and the file says "
                f"{branch!r}",
                f"To bring them to {branch!r}, use e.g. Spark's `fast_forward`, or write "
                f"`branch: {held}` again.",
            )
        remedy = ""
        if java.snapshot(recorded.snapshot) is not None:
            remedy = self._bringing_back(recorded.snapshot)
        problem = f"{found}; the rows that this pipeline committed, {upto}, are no longer all there"
        return LostRows(self.identity, problem, remedy)

    def _bringing_back(self, snapshot: int) -> str:
        catalog, table = self.catalog.name, ".".join((*self.namespace, self.table))
        if self.options.branch == MAIN:
            return (
                "To bring them back and discard later commits, in Spark SQL: CALL "
                f"{catalog}.system.set_current_snapshot('{table}', {snapshot})"
            )
        return (
            f"To bring them back, in Spark SQL: ALTER TABLE {catalog}.{table} CREATE OR REPLACE "
            f"BRANCH {self.options.branch} AS OF VERSION {snapshot}"
        )

    def accept_lost_rows(self) -> None:
        """Let the next commit build on the table as it is now, without the rows that it lacks."""
        if self._state is None or self.lost_rows() is None:
            return
        key, handle = ledger.snapshot_property_key(self.pipeline), self.handle
        head = ledger.snapshot_to_record(handle.java, self.options.branch)
        handle.set_properties({key: head.to_json() if head is not None else None})
        self.mark_snapshot = head

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that no snapshot will ever hold."""
        from pyiceberg.io import load_file_io

        from icestream.sinks.iceberg.writer import for_each

        if not (found := list(paths)):
            return
        io = load_file_io(self.io_properties(), self.state.location)

        def delete(path: str) -> None:
            with suppress(FileNotFoundError):
                io.delete(path)

        for_each(found, delete)

    def table_missing(self) -> ConnectorError:
        return ConnectorError(
            "the table does not exist, and `create` is false",
            where=f"sink {self.sink_name!r}, table {self.identity}",
            todo="Create the table, set `create: true`, or look at the spelling of "
            "`namespace` and `table`.",
        )

    def _sort_order_id(self, state: TableState) -> int:
        """Return the table's order if that is the one that the rows of a file come in."""
        from icestream.sinks.iceberg.partition_terms import parse_sort
        from icestream.sinks.iceberg.partitioning import sort_order

        ours = sort_order(state.schema, parse_sort(self.options))
        same = ours.fields == state.sort_order.fields
        return state.sort_order.order_id if same and ours.fields else 0

    def look(self) -> None:
        """Read the table as it is now.

        The mark that we saw stays: taking up one that another instance wrote meanwhile would
        open the fence for the batch that it has written already.
        """
        self._state = self.handle.read_state()
        key = ledger.property_key(self.pipeline)
        found = self._state.properties.get(key)
        if found != self.seen and found is not None:
            where = f"pipeline {self.pipeline!r}, table {self.identity}"
            raise superseded_error(ledger.parse_mark(found, key), where)
