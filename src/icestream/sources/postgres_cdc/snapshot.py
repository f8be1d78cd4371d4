"""The driver's session that keeps one view of the database open while tables are read whole."""

from __future__ import annotations

import io
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from icestream.contracts.changes import with_nulled_counts
from icestream.errors import ConnectorError, IcestreamError, TransientError
from icestream.sources.postgres_cdc.blocks import snapshot_block
from icestream.sources.postgres_cdc.tables import ONLY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icestream.sources.postgres_cdc.server import Server, Session
    from icestream.sources.postgres_cdc.tables import Table
    from icestream.sources.postgres_cdc.types import TypeCatalog


_log = logging.getLogger(__name__)

BLOCK_BYTES = 8 << 20
PAGE_BYTES = 8192

Key = tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Rows of a table: by their key, or by their pages in a table without one.

    Attributes:
        table: the table.
        after: only rows with a greater key; None from the beginning.
        upto: only rows with at most this key; None to the end.
        pages: first page, and the one to stop before, of a table that is cut by pages.
        first: whether the rows replace what the Iceberg table holds.
    """

    table: Table
    after: Key | None = None
    upto: Key | None = None
    pages: tuple[int, int | None] | None = None
    first: bool = False


@dataclass(frozen=True)
class Bounds:
    """Where a range can be cut.

    Attributes:
        rows: how many rows it has.
        keys: of every so many rows the last one's key.
    """

    rows: int
    keys: tuple[Key, ...]


def find_bounds(
    session: Session,
    table: Table,
    every: int,
    *,
    after: Key | None = None,
    upto: Key | None = None,
    limit: int | None = None,
) -> Bounds:
    """Return the key of each `every`-th row, and of the `limit`-th, in the order of the key."""
    order = sql.SQL(", ").join(map(sql.Identifier, table.order))
    texts = sql.SQL(", ").join(
        sql.SQL("{}::text").format(sql.Identifier(column)) for column in table.order
    )
    limited = sql.SQL("LIMIT {}").format(sql.Literal(limit)) if limit else sql.SQL("")
    query = sql.SQL(
        "SELECT count(*), array_agg(ARRAY[{texts}] ORDER BY place)"
        " FILTER (WHERE place % {every} = 0 OR place = {limit})"
        " FROM (SELECT {order}, row_number() OVER (ORDER BY {order}) AS place"
        " FROM {only}{table} WHERE {where} ORDER BY {order} {limited}) AS counted"
    ).format(
        texts=texts,
        every=sql.Literal(every),
        limit=sql.Literal(limit or 0),
        order=order,
        only=ONLY[not table.is_partitioned],
        table=sql.Identifier(*table.names),
        where=_where(Range(table, after, upto)),
        limited=limited,
    )
    rows, keys = session.row(query)
    return Bounds(rows, tuple(tuple(key) for key in keys or ()))


def count_pages(session: Session, table: Table) -> int:
    """Return how many pages a table has."""
    (size,) = session.row("SELECT pg_catalog.pg_relation_size(%s::oid)", [table.relation.id])
    return int(size) // PAGE_BYTES


def read_range(session: Session, types: TypeCatalog, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, at least one block, which may be empty."""
    relation = part.table.relation
    names = [str(place) for place in range(len(relation.columns))]
    is_empty = True
    for rows in session.copied(_copy(part), BLOCK_BYTES):
        texts = _parse(b"".join(rows), names)
        is_empty = False
        yield with_nulled_counts(*snapshot_block(relation, types, texts, first=part.first))
    if is_empty:
        nothing = [pa.array([], pa.string())] * len(names)
        yield snapshot_block(relation, types, nothing, first=part.first)[0]


def _copy(part: Range) -> sql.Composed:
    table = part.table
    columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
    # Rows that are alike in everything are one row of a table whose rows are told apart by that.
    distinct = sql.SQL("DISTINCT ON (ROW({})::text) ").format(columns)
    return sql.SQL("COPY (SELECT {}{} FROM {}{} WHERE {}) TO STDOUT (FORMAT csv)").format(
        distinct if table.relation.has_row_key else sql.SQL(""),
        columns,
        ONLY[not table.is_partitioned],
        sql.Identifier(*table.names),
        _where(part),
    )


def _where(part: Range) -> sql.Composable:
    table = part.table
    tests: list[sql.Composable] = []
    if table.row_filter is not None:
        tests.append(sql.SQL("({})").format(sql.SQL(table.row_filter)))
    columns = sql.SQL(", ").join(map(sql.Identifier, table.order))
    for key, sign in ((part.after, ">"), (part.upto, "<=")):
        if key is not None:
            values = sql.SQL(", ").join(_typed(table, key))
            tests.append(sql.SQL("ROW({}) {} ROW({})").format(columns, sql.SQL(sign), values))
    if part.pages is not None:
        first, stop = part.pages
        tests.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
        if stop is not None:
            tests.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({stop},0)")))
    return sql.SQL(" AND ").join(tests) if tests else sql.SQL("true")


def _typed(table: Table, key: Key) -> Iterator[sql.Composed]:
    for value, kind in zip(key, table.order_types, strict=True):
        yield sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(kind))


def _parse(text: bytes, names: Sequence[str]) -> list[pa.Array]:
    """Return the columns of CSV as PostgreSQL writes it: a null is nothing, a text is quoted."""
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
            check_utf8=False,  # the server has looked
        ),
    )
    return [column.combine_chunks() for column in table.columns]


LOOK_AGAIN_SECS = 0.1
SAY_AFTER_SECS = 5.0
FLUSH_SECS = 1.0

EXPORT = """
SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text,
       (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8
"""
FLUSHED = "SELECT (pg_catalog.pg_current_wal_flush_lsn() - '0/0')::int8"
NEWEST_ID = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8"
OLDEST_ID = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8"
# A table that was written anew, e.g. for a column's new type, is empty in a view that is older, and
# the log does not tell. The view shows the file that the table had, the function the one it has.
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
# They belong to no process any more.
OLDEST_PREPARED = """
SELECT gid, owner::text, database::text, extract(epoch FROM now() - prepared)::int8
FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 1
"""


class Snapshot:
    """One view of the database, which other sessions can share while this one lives.

    Attributes:
        id: by which they share it.
        seen: which transactions it sees, as `pg_snapshot` writes it.
        lsn: where in the log it was taken: nothing that it sees comes later.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.id, self.seen, self.lsn = session.row(EXPORT)
        self._await_flush()

    @classmethod
    def open(cls, server: Server) -> Snapshot:
        """Take a view that sees everything the slot and the publication do not tell of.

        What was open when they were made may be in neither, so its end is waited for.
        """
        session = server.connect()
        try:
            await_open_transactions(session)
            return cls(session)
        except BaseException:
            session.close()
            raise

    def _await_flush(self) -> None:
        """Wait until no crash of the server can undo what it sees.

        A transaction that does not wait for its log (`synchronous_commit = off`) is visible
        before the log is on disk. The server writes it within three of its delays. After that
        the two differ by no more than the header of a page.
        """
        deadline = time.monotonic() + FLUSH_SECS
        while self._session.row(FLUSHED)[0] < self.lsn and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_SECS / 10)

    def is_alive(self) -> bool:
        """Tell whether other sessions can still share it."""
        if self._session.is_broken:
            return False
        try:
            self._session.row("SELECT 1")
        except IcestreamError:
            return False
        return True

    def shows(self, tables: Iterable[Table]) -> bool:
        """Tell whether it sees the rows of tables: none of them was written anew since."""
        return not _is_rewritten(self._session, tables)

    def close(self) -> None:
        """Let go of it."""
        self._session.close()


def await_open_transactions(session: Session) -> None:
    """Wait until every transaction that writes, and is open now, has ended."""
    (newest,) = session.row(NEWEST_ID)
    say_at = time.monotonic() + SAY_AFTER_SECS
    while session.row(OLDEST_ID)[0] < newest:
        if time.monotonic() > say_at:
            _say_what_is_open(session)
            say_at = time.monotonic() + 2 * SAY_AFTER_SECS
        time.sleep(LOOK_AGAIN_SECS)


def _say_what_is_open(session: Session) -> None:
    for pid, user, application, state, seconds in session.rows(LONGEST_RUNNING):
        _log.warning(
            "the snapshot waits for a transaction that has been open for %d s: process %d, "
            "user %s, application %s, %s",
            *(seconds, pid, user, application, state),
        )
    for name, user, database, seconds in session.rows(OLDEST_PREPARED):
        _log.warning(
            "the snapshot waits for transaction %r, which user %s prepared in database %s %d s "
            "ago; `COMMIT PREPARED` or `ROLLBACK PREPARED` ends it",
            *(name, user, database, seconds),
        )


def share(session: Session, snapshot: str, part: Range) -> None:
    """Begin a transaction in the view that the driver's session keeps open.

    A table with a key may be read in a newer one: its changes since come again from the log.

    Raises:
        TransientError: the view is gone or does not show the table, which has no key.
    """
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    session.rows(begin)
    if _enter(session, snapshot, part.table):
        return
    if not part.table.is_keyed:
        raise TransientError(
            f"the view of the database under which {part.table.label} is read is gone",
            where=session.server.where,
            todo="It is read again by the `restart` policy.",
        )
    session.rows("ROLLBACK")
    session.rows(begin)


def _enter(session: Session, snapshot: str, table: Table) -> bool:
    """Share a view, unless it is gone or does not show a table's rows."""
    try:
        session.rows(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except ConnectorError:
        return False
    # From here on nobody can write it anew.
    session.rows(sql.SQL("SELECT FROM {} LIMIT 0").format(sql.Identifier(*table.names)))
    return not _is_rewritten(session, [table])


def _is_rewritten(session: Session, tables: Iterable[Table]) -> bool:
    ids = [table.relation.id for table in tables]
    return bool(ids) and bool(session.row(IS_REWRITTEN, [ids])[0])
