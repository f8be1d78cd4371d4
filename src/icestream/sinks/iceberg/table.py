"""The table that a sink writes to: load, create, refresh, migrate and commit."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import is_replay, pipeline_of, superseded_error
from icestream.contracts.sink import LostRows
from icestream.errors import (
    CommitConflictError,
    ConnectorError,
    IcestreamError,
    SchemaMismatchError,
)
from icestream.schemas.column_names import DIFFER_IN_CASE, case_clashes_within, refuse_reserved
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.commit import commit_once, commit_unmarked
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.properties import (
    SOURCE_COLUMNS,
    table_properties,
    write_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit
    from icestream.sinks.iceberg.commit import TableChange
    from icestream.sinks.iceberg.java import JavaCatalog
    from icestream.sinks.iceberg.java_table import JavaTable, TableState
    from icestream.sinks.iceberg.ledger import MarkSnapshot
    from icestream.sinks.iceberg.migration import SchemaMigration
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.writer import IcebergWriter


logger = logging.getLogger(__name__)

# The credentials of a batch that takes longer than this may expire; it is then replayed.
RENEW_BEFORE_EXPIRY_SECS = 300
MIGRATION_ATTEMPTS = 5
# Exceptions by which a catalog refuses a change for good.
MIGRATION_REFUSALS = (
    "ForbiddenException",
    "IllegalArgumentException",
    "UnsupportedOperationException",
    "ValidationException",
)


class TargetTable:
    """One table of one catalog, and the mark of one pipeline in it.

    Attributes:
        seen_mark: the pipeline's mark that we last saw in the table, or wrote.
        mark_snapshot: the snapshot of that mark, which the next commit must build on; None if
            there is none, or the rows before the next commit do not matter.
    """

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], sink_name: str) -> None:
        self.options = options
        self.catalog = catalog
        self.sink_name = sink_name
        # The options of a sink of many tables name no table.
        *namespace, self.table = (
            catalog.table_identifier(tuple(options.namespace), options.table)
            if options.table
            else (*options.namespace, "")
        )
        self.namespace: tuple[str, ...] = tuple(namespace)
        # Whether the table's name comes from data, so that it must be a table that we created.
        self.requires_ownership = False
        self.seen_mark: str | None = None
        self.mark_snapshot: MarkSnapshot | None = None
        self._session: SparkSession | None = None
        self.pipeline = ""
        self._java: JavaCatalog | None = None
        self._handle: JavaTable | None = None
        self._state: TableState | None = None
        self._migration: SchemaMigration | None = None
        self._is_current = False

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
    def migration(self) -> SchemaMigration:
        assert self._migration is not None  # noqa: S101 - `open` comes first
        return self._migration

    @property
    def handle(self) -> JavaTable:
        assert self._handle is not None  # noqa: S101 - `open` or `prepare` comes first
        return self._handle

    def open(self, spark: SparkSession, pipeline: str) -> None:
        """Connect, and read the table if there is one."""
        from icestream.sinks.iceberg.java import JavaCatalog

        self.pipeline = pipeline
        self._session = spark
        # Creates the catalog's own store if it is missing, and reports its faults as our errors.
        self.catalog.client()
        self._java = JavaCatalog(spark, self.catalog.name)
        self._handle = self._state = self.seen_mark = self.mark_snapshot = None
        self._start_migration()
        self._is_current = False
        if self._java.exists(self.namespace, self.table):
            self._handle = self._java.load(self.namespace, self.table)
            self._state = self._handle.read_state()
            self.catalog.require_storage(self._state.location, f"table {self.identity}")
            self.seen_mark = self._state.properties.get(ledger.property_key(pipeline))
            self.mark_snapshot = ledger.read_mark_snapshot(self._state.properties, pipeline)

    def change_options(self, options: IcebergOptions) -> None:
        """Use other options for the same table from now on."""
        self.options = options
        self._start_migration()

    def _start_migration(self) -> None:
        from icestream.sinks.iceberg.migration import SchemaMigration

        self._migration = SchemaMigration(self.options, self.pipeline, self.identity)

    def io_properties(self) -> dict[str, str]:
        """Return PyIceberg's properties for the table's files, secrets included.

        Called for each batch: credentials that the catalog vends expire.
        """
        return {**self.catalog.pyiceberg_properties(), **self._vended_credentials()}

    def _vended_credentials(self) -> dict[str, str]:
        if self._handle is None or not self.catalog.abilities.vends_credentials:
            return {}
        return self._handle.vended_properties()

    def _renew_credentials(self) -> None:
        """Reload the table if the credentials that came with it expire soon."""
        from icestream.sinks.iceberg.java_table import expiry_ms

        end = expiry_ms(self._vended_credentials())
        if end is None or end / 1000 > time.time() + RENEW_BEFORE_EXPIRY_SECS:
            return
        assert self._java is not None  # noqa: S101 - `open` comes first
        self._handle = self._java.load(self.namespace, self.table)
        logger.info("table %s: renewed the credentials for its files", self.identity)

    def last_mark(self) -> BatchMark | None:
        """Return the newest mark of the pipeline that the table held when it was last read."""
        if self.seen_mark is None:
            return None
        return ledger.parse_mark(self.seen_mark, ledger.property_key(self.pipeline))

    def foreign_marks(self) -> list[BatchMark]:
        """Return the newest mark of every other pipeline."""
        if self._state is None:
            return []
        marks = ledger.read_marks(self._state.properties)
        return [mark for name, mark in marks.items() if name != self.pipeline]

    def schema(self) -> Schema | None:
        """Return the table's current columns; None if there is no table."""
        if self._state is None:
            return None
        self._renew_credentials()
        try:
            self._detect_changes()
            self._migrate(self.migration.rename_step)
        except IcestreamError as exc:
            exc.at(f"pipeline {self.pipeline!r}, table {self.identity}")
            raise
        self._is_current = True
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
            declared: whether the source declares them, so that the list is complete.
            renames: columns that the source has renamed, old name to new.
        """
        try:
            if self._state is None:
                self._create(columns)
            elif not self._is_current:
                self._renew_credentials()
                self._detect_changes()
            self._is_current = False
            # Also for a table just created: another pipeline may have created it first.
            if not self.migration.is_done(columns, declared=declared):
                self._migrate(
                    partial(
                        self.migration.step,
                        columns=columns,
                        declared=declared,
                        renames=renames or {},
                    )
                )
                self.migration.mark_done(columns, declared=declared)
        except IcestreamError as exc:
            exc.at(f"pipeline {self.pipeline!r}, table {self.identity}")
            raise

    def new_layout(self, columns: pa.Schema) -> tuple[Schema, PartitionSpec, SortOrder]:
        """Return the layout of a new table for rows with these columns. Needs no connection.

        Raises:
            SchemaMismatchError: a table can't have these columns, or this layout for them.
        """
        from icestream.schemas.comparison import arrow_to_iceberg
        from icestream.sinks.iceberg.partition_terms import parse_partition_terms, parse_sort
        from icestream.sinks.iceberg.partitioning import partition_spec, sort_order

        refuse_reserved(columns.names)
        schema = arrow_to_iceberg(columns, self.options.format_version)
        twins = case_clashes_within((), schema.as_struct())
        if twins:
            raise SchemaMismatchError("; ".join(twins), todo=DIFFER_IN_CASE)
        spec = partition_spec(schema, parse_partition_terms(self.options))
        return schema, spec, sort_order(schema, parse_sort(self.options))

    def _create(self, columns: pa.Schema) -> None:
        """Create the table for rows with these columns, unless another pipeline does so first."""
        if not self.options.create:
            raise self.missing_table_error()
        schema, spec, order = self.new_layout(columns)
        assert self._java is not None  # noqa: S101 - `open` comes first
        self._java.create_namespace(self.namespace)
        self._handle = self._java.create_table(
            self.namespace,
            self.table,
            schema=schema,
            spec=spec,
            sort_order=order,
            properties=table_properties(
                self.options, pipeline_of(self.pipeline), self.catalog.abilities
            ),
        )
        logger.info("created table %s", self.identity)
        self.refresh()
        self.catalog.require_storage(self.state.location, f"table {self.identity}")
        self.refuse_foreign_table()

    def _detect_changes(self) -> None:
        """Refresh if another writer changed the table's columns or partitions.

        Raises:
            CheckpointLostError: the table was dropped, or replaced by another one of its name.
        """
        from icestream.sinks.iceberg.java import java_errors, refuse_dropped
        from icestream.sinks.iceberg.java_table import read_versions

        state = self.state
        try:
            versions = read_versions(self.handle)
        except java_errors() as exc:
            refuse_dropped(exc, self.handle.exists)
            raise
        if versions != (state.schema.schema_id, state.spec.spec_id):
            self.refresh()
            self.migration.observe_change(state.schema, self.state.schema)

    def _migrate(self, step: Callable[[JavaTable, TableState], bool]) -> None:
        """Call `step`, which commits one change at a time, until it has no change to make."""
        from icestream.sinks.iceberg.java import (
            COMMIT_FAILED,
            java_class,
            java_errors,
            java_message,
        )

        for _ in range(MIGRATION_ATTEMPTS):
            try:
                while step(self.handle, self.state):
                    self.refresh()
            except java_errors() as exc:  # noqa: PERF203 - one attempt each
                kind = java_class(exc)
                if kind.endswith(MIGRATION_REFUSALS):
                    raise SchemaMismatchError(
                        f"the catalog refused to change the table: {java_message(exc)}",
                        todo="Alter the table with your engine, then start the pipeline again.",
                    ) from exc
                if kind != COMMIT_FAILED:
                    raise
                # Another writer committed first; derive the remaining changes again.
                self.refresh()
            else:
                return
        raise CommitConflictError(
            f"the table could not be altered in {MIGRATION_ATTEMPTS} attempts: other writers "
            "changed it",
            todo="Nothing was written; the batch is replayed at the next start.",
        )

    def refuse_foreign_table(self) -> None:
        """Refuse a table that somebody else created, if only data names it.

        Raises:
            ForeignTableError: it was, and this pipeline never wrote to it.
        """
        if not self.requires_ownership or self._state is None or self.seen_mark is not None:
            return
        if self.is_mirror or ledger.is_own_table(
            self._state.properties, pipeline_of(self.pipeline)
        ):
            return
        raise ledger.foreign_table_error((*self.namespace, self.table))

    @property
    def is_mirror(self) -> bool:
        """Whether this pipeline prepared the table as a mirror, even if it has no rows yet."""
        return self._state is not None and SOURCE_COLUMNS + self.pipeline in self._state.properties

    def writer(self, file_schema: Schema | None = None, *, in_order: bool = True) -> IcebergWriter:
        """Return a writer of data files for the current table.

        Args:
            file_schema: columns of the files, if they hold more than the table's own.
            in_order: whether rows arrive in the sort order of the options, if there is one.
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

    def commit(self, change: TableChange, mark: BatchMark | None, *, rows: int) -> Commit:
        """Commit a change together with the mark; without a mark, the change alone."""
        properties = self.options.snapshot_properties
        if mark is None:
            where = f"table {self.identity}"
            return commit_unmarked(self.handle, change, rows, properties=properties, where=where)
        commit, self.mark_snapshot = commit_once(
            self.handle,
            change,
            mark,
            rows,
            seen=self.seen_mark,
            # Replayed dead letters do not continue after the rows of an earlier replay.
            recorded=None if is_replay(mark) else self.mark_snapshot,
            properties=properties,
            where=f"pipeline {mark.pipeline!r}, batch {mark.epoch}, table {self.identity}",
        )
        self.seen_mark = mark.to_json()
        return commit

    def lost_rows(self) -> LostRows | None:
        """Explain why the table lost rows of the pipeline's mark; None if it holds them."""
        mark, recorded = self.last_mark(), self.mark_snapshot
        if mark is None or recorded is None:
            return None
        java, branch = self.handle.java, self.options.branch
        history = ledger.find_lost_history(self.handle.jvm, java, recorded, branch)
        if history is None:
            return None
        marked_branch, up_to = mark.branch or MAIN, f"up to batch {mark.epoch}"
        if marked_branch != branch and java.snapshot(marked_branch) is not None:
            return LostRows(
                self.identity,
                f"the rows of this pipeline, {up_to}, are on branch {marked_branch!r}, and the "
                f"file says {branch!r}",
                f"To bring them to {branch!r}, use e.g. Spark's `fast_forward`, or write "
                f"`branch: {marked_branch}` again.",
            )
        remedy = ""
        if java.snapshot(recorded.snapshot) is not None:
            remedy = self._restore_command(recorded.snapshot)
        problem = (
            f"{history}; the rows that this pipeline committed, {up_to}, are no longer all there"
        )
        return LostRows(self.identity, problem, remedy)

    def _restore_command(self, snapshot: int) -> str:
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
        """Let the next commit build on the current table, without the lost rows."""
        if self._state is None or self.lost_rows() is None:
            return
        key, handle = ledger.snapshot_property_key(self.pipeline), self.handle
        head = ledger.head_mark_snapshot(handle.java, self.options.branch)
        handle.set_properties({key: head.to_json() if head is not None else None})
        self.mark_snapshot = head

    def delete_files(self, paths: Iterable[str]) -> None:
        """Remove files that no snapshot will ever hold."""
        from pyiceberg.io import load_file_io

        from icestream.sinks.iceberg.writer import map_concurrently

        to_delete = list(paths)
        if not to_delete:
            return
        io = load_file_io(self.io_properties(), self.state.location)

        def delete(path: str) -> None:
            with suppress(FileNotFoundError):
                io.delete(path)

        map_concurrently(to_delete, delete)

    def missing_table_error(self) -> ConnectorError:
        return ConnectorError(
            "the table does not exist, and `create` is false",
            where=f"sink {self.sink_name!r}, table {self.identity}",
            todo="Create the table, set `create: true`, or check the spelling of "
            "`namespace` and `table`.",
        )

    def _sort_order_id(self, state: TableState) -> int:
        """Return the id of the table's sort order if the rows of files are in it, else 0."""
        from icestream.sinks.iceberg.partition_terms import parse_sort
        from icestream.sinks.iceberg.partitioning import sort_order

        ours = sort_order(state.schema, parse_sort(self.options))
        same = ours.fields == state.sort_order.fields
        return state.sort_order.order_id if same and ours.fields else 0

    def refresh(self) -> None:
        """Read the table again.

        The mark that we last saw stays: adopting one that another instance has written would
        open the fence for a batch that it has already written.
        """
        self._state = self.handle.read_state()
        key = ledger.property_key(self.pipeline)
        current = self._state.properties.get(key)
        if current != self.seen_mark and current is not None:
            where = f"pipeline {self.pipeline!r}, table {self.identity}"
            raise superseded_error(ledger.parse_mark(current, key), where)
