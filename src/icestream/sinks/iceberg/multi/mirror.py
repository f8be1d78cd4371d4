"""The mirror sink: tables that mirror those of a change source, exactly once.

Before a batch is read, the tables are prepared for the changes that it may contain. Tasks write
each block with the writers of its table, and all tables are committed concurrently before the batch
ends. A table that refuses its changes stops the pipeline: a mirror that skips some would stay
wrong.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from icestream.contracts.changes import ChangeSchema, change_schema_of
from icestream.contracts.faults import CheckStep
from icestream.contracts.sink import Commit, RowExpectation, TableCommits, sum_commits
from icestream.errors import ForeignTableError, IcestreamError, SchemaMismatchError
from icestream.sinks.iceberg.commit import written_paths
from icestream.sinks.iceberg.multi.mirror_table import (
    identifier_of,
    op_name_of,
    shared_target_error,
)
from icestream.sinks.iceberg.multi.sink import MultiTableSink
from icestream.sinks.iceberg.store_check import storage_check_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import LostRows, TaskWriter, WrittenFile
    from icestream.sinks.iceberg.multi.mirror_table import MirrorTable
    from icestream.sinks.iceberg.multi.table_batch import TableBatch
    from icestream.sinks.iceberg.options import IcebergOptions


logger = logging.getLogger(__name__)


class MirrorSink(MultiTableSink):
    """Mirrors the tables of a source."""

    is_mirror = True
    task_modules = (
        "icestream.sinks.iceberg.writer",
        "icestream.sinks.iceberg.multi.mirror_writer",
        "icestream.sinks.iceberg.upsert.staging",
        "icestream.sinks.iceberg.upsert.matching",
        "icestream.sinks.iceberg.upsert.writing",
    )

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        super().__init__(options, catalog, name)
        self.keeps_changes = op_name_of(options) is not None
        self._sources: dict[Identifier, tuple[str, ...]] = {}
        self._prepared: dict[tuple[str, ...], MirrorTable] = {}
        # The newest schema of each table, so that most batches need no second read.
        self._latest_schemas: dict[tuple[str, ...], pa.Schema] = {}
        self._absent: frozenset[tuple[str, ...]] = frozenset()
        self._warned: set[tuple[str, ...]] = set()
        self._submitted_paths: set[str] = set()
        self._reloading: set[tuple[str, ...]] = set()

    def identity(self) -> str:
        return ".".join((self.catalog.name, *self.options.namespace, self.options.table or "*"))

    def expectations(self) -> tuple[RowExpectation, ...]:
        # Without the exception for deletes: the engine knows which changes have a row.
        return tuple(RowExpectation(one.name, one.expr, one.on_fail) for one in self.options.expect)

    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None:
        from icestream.sinks.iceberg.multi.mirror_table import MirrorTable
        from icestream.sinks.iceberg.multi.tables import TableSet
        from icestream.sinks.iceberg.staging_cleanup import temporary_folder

        self._tables = self._tables or TableSet(self.options, self.catalog, self.name, MirrorTable)
        self._tables.open(spark, pipeline, cache or temporary_folder(self))
        self._batch_sinks = None
        self._prepared, self._latest_schemas = {}, {}

    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:  # noqa: ARG002
        raise AssertionError("a mirror prepares its tables by `prepare_tables`")

    def prepare_tables(self, schemas: Sequence[pa.Schema]) -> None:
        by_table = {source: [columns] for source, columns in self._latest_schemas.items()}
        for columns in schemas:
            by_table.setdefault(change_schema_of(columns).table, []).append(columns)
        tombstones = {source: own for source, own in by_table.items() if _are_tombstones(own)}
        changed = {source: own for source, own in by_table.items() if source not in tombstones}
        named = {source: self._target_of(source, own) for source, own in changed.items()}
        named |= self._tables_of_tombstones(tombstones)
        self._absent = frozenset(by_table.keys() - named.keys())
        sinks: dict[tuple[str, ...], Any] = {
            source: self.tables.sink(table) for source, table in named.items()
        }
        self.tables.run_concurrently(self._open, sinks.values())
        self.tables.state_file.add(frozenset(filter(self.tables.is_accounted_for, named.values())))
        self.tables.run_concurrently(
            lambda source: self._prepare_table(sinks[source], by_table[source]), list(named)
        )
        self.tables.refuse_twins(named.values())
        self._prepared = sinks
        for source in changed:
            mirror_schema = sinks[source].mirror_schema
            change_schema = replace(
                mirror_schema.change_schema, is_first=False, is_tombstones=False
            )
            self._latest_schemas[source] = change_schema.on(mirror_schema.columns)

    def rows_by_table(self, rows: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        table = self._identifier(change_schema_of(rows.schema))
        return {".".join((self.catalog.name, *table)): rows}

    def _tables_of_tombstones(
        self, by_table: Mapping[tuple[str, ...], list[pa.Schema]]
    ) -> dict[tuple[str, ...], Identifier]:
        """Return the tables to which tombstones without other changes apply.

        They create no table. A table that another table of the source fills, or that is not ours,
        stays unchanged: a router can give a topic any name, and tombstones don't name their
        table.
        """
        owners = dict(self._sources)
        tables: dict[tuple[str, ...], Identifier] = {}
        for source, schemas in by_table.items():
            table = self._identifier(change_schema_of(schemas[0]))
            if not self.tables.java.exists(table[:-1], table[-1]):
                continue
            try:
                owner = owners.get(table) or self._stored_source(table) or source
            except ForeignTableError:
                owner = ()
            owners[table] = owner
            if owner == source:
                tables[source] = table
            elif source not in self._warned:
                self._warned.add(source)
                logger.warning(
                    "ignoring tombstones of %s: table %s mirrors %s",
                    ".".join(source),
                    ".".join(table),
                    ".".join(owner) or "nothing of this pipeline",
                )
        return tables

    def _stored_source(self, table: Identifier) -> tuple[str, ...] | None:
        sink: Any = self.tables.sink(table)
        self._open(sink)
        return cast("MirrorTable", sink).source()

    def _target_of(self, source: tuple[str, ...], schemas: list[pa.Schema]) -> Identifier:
        """Return the target of a source table; two may not share one."""
        table = self._identifier(change_schema_of(schemas[0]))
        owner = self._sources.setdefault(table, source)
        if owner != source:
            raise shared_target_error(table, owner, source).at(f"sink {self.name!r}")
        return table

    def _identifier(self, change_schema: ChangeSchema) -> Identifier:
        try:
            return identifier_of(self.options, change_schema, self.catalog)
        except SchemaMismatchError as exc:
            raise exc.at(f"sink {self.name!r}") from None

    def _open(self, table: MirrorTable) -> None:
        try:
            self.tables.open_new(table.identifier)
        except IcestreamError as exc:
            raise exc.at(f"table {table.identity()}") from exc.__cause__

    def _prepare_table(self, table: MirrorTable, schemas: list[pa.Schema]) -> None:
        from icestream.schemas.mirror_columns import merge_change_schemas
        from icestream.sinks.iceberg.java import java_errors

        try:
            mirror_schema = merge_change_schemas(
                schemas, table.columns(), op_name=op_name_of(self.options)
            )
            table.follow(replace(mirror_schema, keeps_missing=self.keeps_missing_fields()))
        except java_errors() as exc:
            raise self.tables.refusal(table, exc).at(f"table {table.identity()}") from exc
        except IcestreamError as exc:
            raise exc.at(f"table {table.identity()}") from exc.__cause__

    def lost_rows(self, loaded: Collection[tuple[str, ...]] | None = None) -> list[LostRows]:
        if loaded is None:
            return super().lost_rows()
        old = self.tables.moved_from()
        sources = {self._identifier(ChangeSchema(source)): source for source in loaded}
        lost_tables = self.tables.lost_rows(sources)
        if old is not None and lost_tables:
            moved = self._moved(old)
            return [replace(moved, source_table=sources[table]) for table in lost_tables]
        return [replace(lost, source_table=sources[table]) for table, lost in lost_tables.items()]

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        self._reloading = set(tables)

    def writer(self) -> TaskWriter:
        from icestream.sinks.iceberg.multi.mirror_writer import MirrorWriter

        writers = {source: table.writers() for source, table in self._prepared.items()}
        return MirrorWriter(writers, self._absent)

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        done = self.commit_batch(files, mark, lambda: None)
        self.discard(files)
        return sum_commits(done.commits) or Commit(None, 0, 0, 0, 0, 0.0)

    def commit_batch(
        self, files: list[WrittenFile], mark: BatchMark, on_commit: Callable[[], None]
    ) -> TableCommits:
        from icestream.sinks.iceberg.multi.table_batch import TableBatch

        mark = replace(mark, generation=self.tables.state_file.state.generation)
        batches = []
        for source, table in self._prepared.items():
            batch = TableBatch(table.identifier, table)
            batch.files = [file for file in files if file.metadata["table"] == table.identifier]
            batch.is_held = self._holds(table, mark)
            # A table that is read from its start may have no rows; it still gets a mark.
            if self._accepts_rows(source, table) and (batch.files or table.is_first):
                batches.append(batch)
            if table.is_first and not batch.is_held:
                table.target.mark_snapshot = None  # its previous rows do not matter
            _warn_of_nulls(batch)
        if self._batch_sinks is not None:
            self._batch_sinks = [batch.sink for batch in batches]
        self.tables.run_concurrently(lambda batch: self._commit(batch, mark, on_commit), batches)
        self.tables.record_written()
        for batch in batches:
            if batch.error is not None:
                raise batch.error
        return TableCommits(
            commits={batch.name: batch.commit for batch in batches if batch.commit is not None},
            held=tuple(batch.name for batch in batches if batch.is_held),
        )

    def _commit(self, batch: TableBatch, mark: BatchMark, on_commit: Callable[[], None]) -> None:
        if batch.is_held:
            return
        self.tables.refuse_unaccounted_rows(batch.table, mark)
        rows = sum(file.rows for file in batch.files)
        # From here on the table may hold them, whatever the commit returns.
        self._submitted_paths |= set(_paths(batch.files))
        try:
            batch.commit = batch.commit_once(replace(mark, rows=rows))
        except IcestreamError as exc:
            batch.refuse(exc, mark)
        else:
            on_commit()

    def _accepts_rows(self, source: tuple[str, ...], table: MirrorTable) -> bool:
        """Tell whether a table accepts rows: one to be reloaded waits for its first rows.

        Until the source's offset records that it is loaded again, it must stay unchanged.
        """
        if table.is_first:
            self._reloading.discard(source)
        return source not in self._reloading

    def discard(self, files: list[WrittenFile]) -> None:
        uncommitted: dict[Identifier, list[str]] = {}
        for file in files:
            paths = [path for path in _paths([file]) if path not in self._submitted_paths]
            uncommitted.setdefault(tuple(file.metadata["table"]), []).extend(paths)
        for table, paths in uncommitted.items():
            self.tables.sink(table).target.delete_files(paths)
        self._submitted_paths -= set(_paths(files))

    def check(self) -> Iterator[CheckStep]:
        yield from self.catalog.check()
        yield CheckStep("find namespace", self._describe_namespace)
        yield from storage_check_steps(self.catalog, None)

    def _describe_namespace(self) -> str:
        named = bool(self.options.namespace)
        return super()._describe_namespace() if named else "by the names of the source"


def _are_tombstones(schemas: Sequence[pa.Schema]) -> bool:
    return all(change_schema_of(columns).is_tombstones for columns in schemas)


def _warn_of_nulls(batch: TableBatch) -> None:
    """Warn about values that became null because the table's types can't hold them."""
    nulled: Counter[str] = Counter()
    for file in batch.files:
        nulled.update(file.metadata.get("nulled", {}))
    for column, count in nulled.items():
        logger.warning(
            "table %s: %d values of column %r do not fit its type and became null",
            *(batch.name, count, column),
        )


def _paths(files: Sequence[WrittenFile]) -> list[str]:
    inner = [file.metadata["of"] for file in files]
    return written_paths(file for file in inner if file is not None)
