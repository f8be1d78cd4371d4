"""Snapshots: an exported snapshot on the driver, and the ranges of tables that tasks read."""

from __future__ import annotations

import io
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from icestream.contracts.changes import with_nulled_counts
from icestream.errors import ConnectorError, IcestreamError, TransientError
from icestream.sources.postgres_cdc.blocks import snapshot_block
from icestream.sources.postgres_cdc.tables import ONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg import sql

    from icestream.sources.postgres_cdc.server import PgServer, PgSession
    from icestream.sources.postgres_cdc.tables import PgTable
    from icestream.sources.postgres_cdc.types import TypeCatalog


_log = logging.getLogger(__name__)

BLOCK_BYTES = 8 << 20
PAGE_BYTES = 8192

Key = tuple[str, ...]


@dataclass(frozen=True)
class TableRange:
    """A range of a table's rows: by key, or by page in a table without one.

    Attributes:
        table: the table.
        after: only rows with a greater key; None from the beginning.
        up_to: only rows with at most this key; None to the end.
        pages: first page, and the page to stop before.
        first: whether the rows replace the content of the Iceberg table.
        limit: at most this many rows, the first by key; None for all.
    """

    table: PgTable
    after: Key | None = None
    up_to: Key | None = None
    pages: tuple[int, int | None] | None = None
    first: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class RangeBounds:
    """Where a range can be split.

    Attributes:
        rows: how many rows it has.
        keys: the last key of each piece.
    """

    rows: int
    keys: tuple[Key, ...]


def find_bounds(
    session: PgSession,
    table: PgTable,
    every: int,
    *,
    after: Key | None = None,
    up_to: Key | None = None,
    limit: int | None = None,
) -> RangeBounds:
    """Return the key of each `every`-th row, and of the `limit`-th, in the order of the key."""
    from psycopg import sql

    order = sql.SQL(", ").join(map(sql.Identifier, table.order))
    texts = sql.SQL(", ").join(
        sql.SQL("{}::text").format(sql.Identifier(column)) for column in table.order
    )
    limited = sql.SQL("LIMIT {}").format(sql.Literal(limit)) if limit else sql.SQL("")
    query = sql.SQL(
        "SELECT count(*), array_agg(ARRAY[{texts}] ORDER BY ordinal)"
        " FILTER (WHERE ordinal % {every} = 0 OR ordinal = {limit})"
        " FROM (SELECT {order}, row_number() OVER (ORDER BY {order}) AS ordinal"
        " FROM {only}{table} WHERE {where} ORDER BY {order} {limited}) AS counted"
    ).format(
        texts=texts,
        every=sql.Literal(every),
        limit=sql.Literal(limit or 0),
        order=order,
        only=sql.SQL(ONLY[not table.is_partitioned]),
        table=sql.Identifier(*table.names),
        where=_where_clause(TableRange(table, after, up_to)),
        limited=limited,
    )
    rows, keys = session.row(query)
    return RangeBounds(rows, tuple(tuple(key) for key in keys or ()))


def count_pages(session: PgSession, table: PgTable) -> int:
    """Return the number of pages of a table."""
    (size,) = session.row("SELECT pg_catalog.pg_relation_size(%s::oid)", [table.relation.id])
    return int(size) // PAGE_BYTES


def read_range(
    session: PgSession, types: TypeCatalog, part: TableRange
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range: at least one block, which may be empty."""
    relation = part.table.relation
    names = [str(index) for index in range(len(relation.columns))]
    is_empty = True
    for rows in session.copy_rows(_copy_query(part), BLOCK_BYTES):
        texts = _parse_csv(b"".join(rows), names)
        is_empty = False
        yield with_nulled_counts(*snapshot_block(relation, types, texts, first=part.first))
    if is_empty:
        no_rows = [pa.array([], pa.string())] * len(names)
        yield snapshot_block(relation, types, no_rows, first=part.first)[0]


def _copy_query(part: TableRange) -> sql.Composed:
    from psycopg import sql

    table = part.table
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
    # Without a key, identical rows count as one: all values together identify a row.
    distinct = sql.SQL("DISTINCT ON (ROW({})::text) ").format(columns)
    # Finding identical rows sorts the whole table, which a few rows are not worth.
    is_distinct = table.relation.has_row_key and part.limit is None
    return sql.SQL("COPY (SELECT {}{} FROM {}{} WHERE {}{}) TO STDOUT (FORMAT csv)").format(
        distinct if is_distinct else sql.SQL(""),
        columns,
        sql.SQL(ONLY[not table.is_partitioned]),
        sql.Identifier(*table.names),
        _where_clause(part),
        _limit_clause(part),
    )


def _limit_clause(part: TableRange) -> sql.Composable:
    from psycopg import sql

    if part.limit is None:
        return sql.SQL("")
    limit = sql.SQL(" LIMIT {}").format(sql.Literal(part.limit))
    if not part.table.order:
        return limit
    columns = sql.SQL(", ").join(map(sql.Identifier, part.table.order))
    return sql.SQL(" ORDER BY {}{}").format(columns, limit)


def _where_clause(part: TableRange) -> sql.Composable:
    from psycopg import sql

    table = part.table
    tests: list[sql.Composable] = []
    if table.row_filter is not None:
        tests.append(sql.SQL("({})").format(sql.SQL(table.row_filter)))
    columns = sql.SQL(", ").join(map(sql.Identifier, table.order))
    for key, sign in ((part.after, ">"), (part.up_to, "<=")):
        if key is not None:
            values = sql.SQL(", ").join(_typed_literals(table, key))
            tests.append(sql.SQL("ROW({}) {} ROW({})").format(columns, sql.SQL(sign), values))
    if part.pages is not None:
        first, stop = part.pages
        tests.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
        if stop is not None:
            tests.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({stop},0)")))
    return sql.SQL(" AND ").join(tests) if tests else sql.SQL("true")


def _typed_literals(table: PgTable, key: Key) -> Iterator[sql.Composed]:
    from psycopg import sql

    for value, kind in zip(key, table.order_types, strict=True):
        yield sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(kind))


def _parse_csv(text: bytes, names: Sequence[str]) -> list[pa.Array]:
    """Return the columns of PostgreSQL's CSV: null is unquoted and empty, strings are quoted."""
    table = csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(
            column_names=list(names), block_size=len(text) + 1, use_threads=False
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,  # checked by the server
        ),
    )
    return [column.combine_chunks() for column in table.columns]


POLL_SECS = 0.1
WARN_AFTER_SECS = 5.0
FLUSH_SECS = 1.0

EXPORT = """
SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text,
       (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8
"""
FLUSHED = "SELECT (pg_catalog.pg_current_wal_flush_lsn() - '0/0')::int8"
NEWEST_ID = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8"
OLDEST_ID = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8"
# A table that was rewritten, e.g. for a new column type, is empty in an older snapshot, and the log
# does not say so. The snapshot shows the table's old file, the function its current one.
IS_REWRITTEN = """
WITH RECURSIVE asked AS (
    SELECT unnest(%s::oid[]) AS id
    UNION SELECT part.inhrelid FROM pg_catalog.pg_inherits AS part JOIN asked ON inhparent = id
)
SELECT EXISTS (
    SELECT FROM asked LEFT JOIN pg_catalog.pg_class AS seen ON seen.oid = asked.id
    WHERE seen.oid IS NULL
       OR pg_catalog.pg_relation_filenode(asked.id) IS DISTINCT FROM nullif(seen.relfilenode, 0))
"""
LONGEST_RUNNING = """
SELECT pid, coalesce(usename::text, ''), coalesce(application_name, ''), coalesce(state, ''),
       extract(epoch FROM now() - xact_start)::int8
FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 1
"""
# They no longer belong to a process.
OLDEST_PREPARED = """
SELECT gid, owner::text, database::text, extract(epoch FROM now() - prepared)::int8
FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 1
"""


class ExportedSnapshot:
    """A snapshot of the database that other sessions can join while this one is open.

    Attributes:
        id: of the exported snapshot.
        visibility: which transactions it sees, as text of a `pg_snapshot`.
        lsn: everything that it sees is in the log before this LSN.
    """

    def __init__(self, session: PgSession) -> None:
        self._session = session
        session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.id, self.visibility, self.lsn = session.row(EXPORT)
        self._await_flush()

    @classmethod
    def open(cls, server: PgServer) -> ExportedSnapshot:
        """Take a snapshot that contains everything the slot and the publication do not return.

        Transactions that were open when those were created may be in neither, so wait for them.
        """
        session = server.connect()
        try:
            await_open_transactions(session)
            return cls(session)
        except BaseException:
            session.close()
            raise

    def _await_flush(self) -> None:
        """Wait until no crash of the server can undo what the snapshot sees.

        With `synchronous_commit = off`, a transaction is visible before its log is on disk. The
        server writes it within three `wal_writer_delay`s. After that, the two LSNs differ by no
        more than a page header.
        """
        deadline = time.monotonic() + FLUSH_SECS
        while self._session.row(FLUSHED)[0] < self.lsn and time.monotonic() < deadline:
            time.sleep(POLL_SECS / 10)

    def is_alive(self) -> bool:
        """Tell whether other sessions can still join it."""
        if self._session.is_broken:
            return False
        try:
            self._session.row("SELECT 1")
        except IcestreamError:
            return False
        return True

    def sees(self, tables: Iterable[PgTable]) -> bool:
        """Tell whether it sees the rows of tables: none was rewritten since."""
        return not _is_rewritten(self._session, tables)

    def close(self) -> None:
        """Release the snapshot."""
        self._session.close()


def await_open_transactions(session: PgSession) -> None:
    """Wait until every writing transaction that is open now has ended."""
    (newest,) = session.row(NEWEST_ID)
    warn_at = time.monotonic() + WARN_AFTER_SECS
    while session.row(OLDEST_ID)[0] < newest:
        if time.monotonic() > warn_at:
            _warn_about_open_transactions(session)
            warn_at = time.monotonic() + 2 * WARN_AFTER_SECS
        time.sleep(POLL_SECS)


def _warn_about_open_transactions(session: PgSession) -> None:
    for pid, user, application, state, seconds in session.rows(LONGEST_RUNNING):
        _log.warning(
            "the snapshot is waiting for a transaction open for %d s: process %d, "
            "user %s, application %s, %s",
            *(seconds, pid, user, application, state),
        )
    for name, user, database, seconds in session.rows(OLDEST_PREPARED):
        _log.warning(
            "the snapshot is waiting for transaction %r, which user %s prepared in database %s %d "
            "s ago; end it with `COMMIT PREPARED` or `ROLLBACK PREPARED`",
            *(name, user, database, seconds),
        )


def join_snapshot(session: PgSession, snapshot: str, part: TableRange) -> None:
    """Begin a transaction in the snapshot that the driver's session keeps open.

    A table with a key may be read from a newer one: the log replays the changes since.

    Raises:
        TransientError: the snapshot is gone or does not show the table, which has no key.
    """
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    session.rows(begin)
    if _try_join(session, snapshot, part.table):
        return
    if not part.table.is_keyed:
        raise TransientError(
            f"the snapshot that {part.table.qualified_name} is read from is gone",
            where=session.server.where,
            todo="The `restart` policy reads it again.",
        )
    session.rows("ROLLBACK")
    session.rows(begin)


def _try_join(session: PgSession, snapshot: str, table: PgTable) -> bool:
    """Join a snapshot; False if it is gone or does not show a table's rows."""
    from psycopg import sql

    try:
        session.rows(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except ConnectorError:
        return False
    # From here on, the lock keeps others from rewriting it.
    session.rows(sql.SQL("SELECT FROM {} LIMIT 0").format(sql.Identifier(*table.names)))
    return not _is_rewritten(session, [table])


def _is_rewritten(session: PgSession, tables: Iterable[PgTable]) -> bool:
    ids = [table.relation.id for table in tables]
    return bool(ids) and bool(session.row(IS_REWRITTEN, [ids])[0])
