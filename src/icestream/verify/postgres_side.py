"""PostgreSQL as a side of the comparison: a snapshot, and the changes that the mirror lacks.

The pipeline's replication slot is not touched, so a running pipeline is not disturbed. The changes
that the mirror does not have yet are read from a copy of the slot, which the server drops with our
session.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from icestream.contracts.changes import OP, TRUNCATE, change_schema_of
from icestream.errors import ConnectorError, TransientError
from icestream.sources.postgres_cdc import slot
from icestream.sources.postgres_cdc.changes import BLOCK_BYTES, load_types, peek_query
from icestream.sources.postgres_cdc.driver import END_OF_LOG, Driver
from icestream.sources.postgres_cdc.offset import PgOffset
from icestream.sources.postgres_cdc.pgoutput import ChangeFilter, ChangeParser
from icestream.sources.postgres_cdc.server import PgServer
from icestream.sources.postgres_cdc.snapshot import (
    ExportedSnapshot,
    TableRange,
    count_pages,
    read_range,
)
from icestream.sources.postgres_cdc.tables import FULL, ROW_KEY, block_schema
from icestream.sources.postgres_cdc.timeline import format_lsn
from icestream.sources.postgres_cdc.tuples import Messages
from icestream.sources.postgres_cdc.types import TypeCatalog
from icestream.verify.side import DatabaseSide, Point, ReadChanges, SideReader, SideTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icestream.contracts.offset import Offset
    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.server import PgSession
    from icestream.sources.postgres_cdc.tables import PgTable, Relation
    from icestream.verify.side import TableNames

# Smaller parts cost more in connections than they save.
MIN_PAGES_PER_PART = 1_000
FLUSH_TIMEOUT_SECS = 10.0
POLL_SECS = 0.05
NOT_CAPTURED = "its changes are not captured; it is as the pipeline last read it"


class PostgresSide(DatabaseSide):
    """A PostgreSQL database that a `postgres-cdc` source follows.

    Args:
        options: the source's options.
    """

    def __init__(self, options: PostgresCdcOptions) -> None:
        self._driver = Driver(options)
        self._snapshot: ExportedSnapshot | None = None
        self._tables: dict[TableNames, PgTable] = {}

    def identity(self) -> str:
        return self._driver.server.where

    def tables(self) -> list[TableNames]:
        driver = self._driver
        self._tables = {
            table.names: table for table in driver.readable_tables(driver.find_tables())
        }
        return sorted(self._tables)

    def is_fully_loaded(self, table: TableNames, mark: Offset) -> bool:
        return self._tables[table].qualified_name not in PgOffset.from_json(mark).pending

    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        self._close_snapshot()
        driver = self._driver
        self._snapshot = ExportedSnapshot(driver.server.connect())
        self.tables()
        for table in self._tables.values():
            load_types(driver.session, driver.types, table.relation.columns)
        marks = {name: mark for name, mark in marks.items() if name in self._tables}
        follows = driver.options.follows and slot.find(driver.session) is not None
        changes = self._changes(marks, self._snapshot.lsn) if marks and follows else {}
        tables = {name: self._describe(table) for name, table in self._tables.items()}
        return Point(format_lsn(self._snapshot.lsn), tables, changes)

    def _describe(self, table: PgTable) -> SideTable:
        relation = table.relation
        columns = block_schema(relation, self._driver.types, snapshot=True)
        own = (ROW_KEY,) if relation.has_row_key else ()
        is_captured = table.mode == "incremental" and self._driver.options.follows
        caveat = "" if is_captured else NOT_CAPTURED
        return SideTable(table.names, columns.remove_metadata(), relation.block_key, own, caveat)

    def _changes(
        self, marks: Mapping[TableNames, Offset], upto: int
    ) -> dict[TableNames, ReadChanges]:
        """Return the changes of tables in the log, from the oldest of their marks on."""
        options = self._driver.options
        copy = f"icestream_verify_{uuid.uuid4().hex[:16]}"
        # The publication is named after the slot by default, so name it explicitly.
        update = {"slot_name": copy, "publication": options.publication_name}
        server = PgServer(options.model_copy(update=update))
        start = min(PgOffset.from_json(mark).lsn for mark in marks.values())
        with server.connect() as session, server.connect() as other:
            _copy_slot(session, options.slot, copy)
            end = _await_end_of_log(session, upto)
            change_filter = ChangeFilter(start, end, lambda table: table in marks)
            types = _types(options)
            relations = _RelationCatalog(other, types, self._tables)
            parser = ChangeParser(change_filter, types, relations)
            collector = _ChangeCollector()
            for messages in _messages(session, end):
                for block in parser.parse(messages):
                    collector.add(block)
        return {name: collector.changes(name) for name in marks}

    def parts(self, table: SideTable, count: int) -> Sequence[TableRange]:
        pg_table = self._tables[table.names]
        # Equal rows of a table without a key count once, so one part must see them all; and a
        # partitioned table has no pages of its own.
        if pg_table.is_partitioned or pg_table.relation.has_row_key:
            return [TableRange(pg_table)]
        pages = count_pages(self._driver.session, pg_table)
        step = max(-(-pages // max(count, 1)), MIN_PAGES_PER_PART)
        firsts = range(0, max(pages, 1), step)
        return [
            TableRange(pg_table, pages=(first, None if first == firsts[-1] else first + step))
            for first in firsts
        ]

    def reader(self, table: SideTable) -> PostgresReader:  # noqa: ARG002 - a part names it
        assert self._snapshot is not None  # noqa: S101 - `point` comes first
        return PostgresReader(self._driver.options, self._snapshot.id)

    def close(self) -> None:
        self._close_snapshot()
        self._driver.close()

    def _close_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


@dataclass(frozen=True)
class PostgresReader(SideReader):
    """Reads ranges of tables in the snapshot that the driver keeps open.

    Attributes:
        options: the source's options.
        snapshot: the id of the exported snapshot.
    """

    options: PostgresCdcOptions
    snapshot: str

    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        types = _types(self.options)
        with PgServer(self.options).connect() as session:
            load_types(session, types, part.table.relation.columns)
            session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                session.rows(
                    sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(self.snapshot))
                )
            except ConnectorError as exc:
                raise TransientError(
                    "the database snapshot for the comparison no longer exists",
                    where=session.server.where,
                    todo="The connection was closed by the server or the network. Run the "
                    "comparison again.",
                ) from exc
            yield from read_range(session, types, part)


def _types(options: PostgresCdcOptions) -> TypeCatalog:
    """Return the mirror's types; a value that they can't hold compares as null."""
    mode = options.unrepresentable
    return TypeCatalog(unrepresentable="null" if mode == "fail" else mode)


class _RelationCatalog:
    """Gives the parser the key columns of tables; large values are not needed here."""

    def __init__(
        self, session: PgSession, types: TypeCatalog, tables: Mapping[TableNames, PgTable]
    ) -> None:
        self._session = session
        self._types = types
        self._keys = {table.relation.id: table.relation.key for table in tables.values()}

    def describe(self, relation: Relation) -> Relation:
        load_types(self._session, self._types, relation.columns)
        names = {column.name for column in relation.columns}
        key = self._keys.get(relation.id, ())
        if relation.identity == FULL and set(key) <= names:
            return replace(relation, key=key)
        return relation

    def current_values(
        self,
        relation: Relation,  # noqa: ARG002 - the parser passes it
        columns: Sequence[str],  # noqa: ARG002
        keys: Sequence[tuple[str, ...]],
    ) -> Sequence[None]:
        return [None] * len(keys)


class _ChangeCollector:
    """Collects the keys and the number of changes by table."""

    def __init__(self) -> None:
        self._keys: dict[TableNames, list[pa.Table]] = {}
        self._rows: dict[TableNames, int] = {}
        self._truncated: set[TableNames] = set()

    def add(self, block: pa.RecordBatch) -> None:
        shape = change_schema_of(block.schema)
        name = shape.table
        is_truncate = pc.equal(block.column(OP), TRUNCATE)
        if pc.any(is_truncate).as_py():
            self._truncated.add(name)
        self._rows[name] = self._rows.get(name, 0) + block.num_rows
        rows = pa.Table.from_batches([block]).filter(pc.invert(is_truncate))
        if shape.key:
            self._keys.setdefault(name, []).append(rows.select(list(shape.key)))

    def changes(self, name: TableNames) -> ReadChanges:
        keys = None
        if name in self._keys:
            tables = [table.replace_schema_metadata(None) for table in self._keys[name]]
            joined = pa.concat_tables(tables, promote_options="permissive")
            keys = joined.group_by(joined.column_names).aggregate([])
        return ReadChanges(keys, self._rows.get(name, 0), name in self._truncated)


def _copy_slot(session: PgSession, original: str, copy: str) -> None:
    session.row(
        "SELECT slot_name FROM pg_catalog.pg_copy_logical_replication_slot(%s, %s, true)",
        [original, copy],
    )


def _await_end_of_log(session: PgSession, upto: int) -> int:
    """Return the end of the log, once it holds everything that the snapshot sees.

    With `synchronous_commit` off, a transaction is visible before its WAL is flushed.
    """
    deadline = time.monotonic() + FLUSH_TIMEOUT_SECS
    while True:
        (end,) = session.row(END_OF_LOG)
        if end >= upto or time.monotonic() > deadline:
            return int(max(end, upto))
        time.sleep(POLL_SECS)


def _messages(session: PgSession, end: int) -> Iterator[Messages]:
    copy = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(peek_query(session, end))
    for rows in session.copy_rows(copy, BLOCK_BYTES):
        yield Messages.from_copy(rows)
