"""Reads changes from the replication slot. Runs in a task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from icestream.errors import SourceChangedError
from icestream.sources.postgres_cdc import slot
from icestream.sources.postgres_cdc.pgoutput import ChangeFilter, ChangeParser, Visibility
from icestream.sources.postgres_cdc.publication import find_members, find_names
from icestream.sources.postgres_cdc.tables import (
    FULL,
    NOTHING,
    ONLY,
    PgTable,
    as_published,
    find_table,
    replica_key,
)
from icestream.sources.postgres_cdc.timeline import format_lsn
from icestream.sources.postgres_cdc.tuples import Messages
from icestream.sources.postgres_cdc.types import TYPES_QUERY, TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from psycopg import sql

    from icestream.sources.postgres_cdc.publication import Member
    from icestream.sources.postgres_cdc.server import PgServer, PgSession
    from icestream.sources.postgres_cdc.tables import PgColumn, Relation
    from icestream.sources.postgres_cdc.timeline import Anchor


# The catalog has the lower 32 bits of transaction ids, as the log does.
DROPPED_QUERY = """
SELECT attnum, xmin::text::int8,
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8
FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND attisdropped
"""
_XID_MODULUS = 1 << 32


def find_dropped_columns(session: PgSession, table: int, xid: int) -> dict[int, bool]:
    """Return the columns that a transaction, or a later one, dropped; and whether it was later."""
    found = {}
    for number, dropped_by, now in session.rows(DROPPED_QUERY, [table]):
        later = (dropped_by - xid) % _XID_MODULUS
        if later <= (now - xid) % _XID_MODULUS:
            found[number] = later > 0
    return found


def assign_numbers(
    columns: Sequence[PgColumn], known: Sequence[PgColumn], dropped: Mapping[int, bool]
) -> tuple[PgColumn, ...]:
    """Return the columns of a message with their numbers; None where a number is unknown.

    Args:
        columns: the columns of the message.
        known: the current columns of the table.
        dropped: numbers of columns that the message's own transaction dropped (False), before or
            after the message, or a later one (True).
    """
    later = {number for number, is_later in dropped.items() if is_later}
    for among in (later, set(dropped)):
        candidates: list[PgColumn | int] = sorted([*known, *among], key=_number)
        if len(candidates) >= len(columns) and _are_renames(columns, candidates, known):
            return tuple(
                replace(column, number=_number(candidate))
                for column, candidate in zip(columns, candidates, strict=False)
            )
    return _match_by_name(columns, known)


def _number(candidate: PgColumn | int) -> int:
    return candidate if isinstance(candidate, int) else candidate.number or 0


def _are_renames(
    columns: Sequence[PgColumn], candidates: Sequence[PgColumn | int], known: Sequence[PgColumn]
) -> bool:
    """Tell whether columns whose names differ now were renamed, and are not different ones."""
    names = {column.name for column in known}
    for column, candidate in zip(columns, candidates, strict=False):
        if isinstance(candidate, int) or candidate.name == column.name:
            continue
        if candidate.type_oid != column.type_oid and column.name in names:
            return False
    return True


def _match_by_name(columns: Sequence[PgColumn], known: Sequence[PgColumn]) -> tuple[PgColumn, ...]:
    """Match names in the order of numbers, as for a publication with a column list."""
    by_name = {column.name: column for column in known}
    last = 0
    matched = []
    for column in columns:
        other = by_name.get(column.name)
        number = other.number if other is not None else None
        if number is not None and number <= last:
            number = None
        last = number or last
        matched.append(replace(column, number=number))
    return tuple(matched)


BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class ChangesSplit:
    """Changes between two LSNs, read by one task.

    Attributes:
        start: transactions committed here or later.
        end: transactions committed before.
        tables: the replicated tables, each with the snapshot, as text, that already contains some
            of its changes.
        identities: the tables and their keys when they were read, see `Relation.row_identity`.
        anchor: what the server must have.
    """

    start: int
    end: int
    tables: Mapping[tuple[str, str], str | None]
    identities: Mapping[tuple[str, str], str] = field(default_factory=dict)
    anchor: Anchor | None = None

    def follows(self, relation: Relation) -> bool:
        """Tell whether a table is the one that was read; another one is reloaded next."""
        identity = self.identities.get(relation.table)
        return identity is None or identity.partition("/")[0] == relation.row_identity


def peek_query(
    session: PgSession, end: int, columns: str = "lsn, xid, data", most: int | None = None
) -> sql.Composed:
    """Return the query for the slot's messages up to an LSN, or for the first `most` of them."""
    from psycopg import sql

    options = session.server.options
    return sql.SQL(
        "SELECT {} FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}::pg_lsn, {},"
        " 'proto_version', '1', 'publication_names', {})"
    ).format(
        sql.SQL(columns),
        sql.Literal(options.slot),
        sql.Literal(format_lsn(end)),
        sql.Literal(most),
        sql.Literal(_identifier_list(find_names(session, options))),
    )


def read_changes(server: PgServer, split: ChangesSplit) -> Iterator[pa.RecordBatch]:
    """Yield blocks of changes: whole transactions, in the order of the log."""
    from psycopg import sql

    types = TypeCatalog(unrepresentable=server.options.unrepresentable)
    with server.connect() as session, _CatalogLookup(server, types, split) as catalog:
        changes = ChangeFilter(
            start=split.start,
            end=split.end,
            has_table=lambda table: table in split.tables,
            snapshots={name: Visibility.parse(text) for name, text in split.tables.items() if text},
        )
        parser = ChangeParser(changes, types, catalog)
        _refuse_moved_slot(session, split.start)
        copy = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(peek_query(session, split.end))
        for rows in _copy_when_free(session, copy):
            yield from parser.parse(Messages.from_copy(rows))
        # If the slot advanced meanwhile, some changes may be missing from what it returned.
        _refuse_moved_slot(session, split.start)


def _refuse_moved_slot(session: PgSession, start: int) -> None:
    found = slot.find_usable(session)
    if found.confirmed > start:
        raise slot.moved_error(session.server, start, found.confirmed)


def _copy_when_free(session: PgSession, copy: sql.Composed) -> Iterator[list[bytes]]:
    """Yield the rows of a COPY in blocks, once the slot is free."""
    import psycopg

    while True:
        slot.await_free(session)
        has_begun = False
        try:
            for rows in session.copy_rows(copy, BLOCK_BYTES, reraise=psycopg.errors.ObjectInUse):
                has_begun = True
                yield rows
        except psycopg.errors.ObjectInUse:
            if has_begun:
                raise
        else:
            return


def load_types(session: PgSession, types: TypeCatalog, columns: Sequence[PgColumn]) -> None:
    """Add the types of columns that a type catalog does not know yet."""
    unknown = types.unknown({column.type_oid for column in columns})
    if unknown:
        types.add(session.rows(TYPES_QUERY, [unknown]))


def _current_key(now: PgTable, columns: Sequence[PgColumn]) -> tuple[str, ...]:
    """Return the columns of a message that are the table's current key."""
    numbers = {column.number for column in now.relation.columns if column.name in now.order}
    return tuple(column.name for column in columns if column.number in numbers)


def _identifier_list(publications: Sequence[str]) -> str:
    """Return names as pgoutput expects them: a list of identifiers."""
    from psycopg import sql

    return ",".join(sql.Identifier(name).as_string() for name in publications)


class _CatalogLookup:
    """Answers the parser's lookups over a second session: the first is busy with COPY."""

    def __init__(self, server: PgServer, types: TypeCatalog, split: ChangesSplit) -> None:
        self._server = server
        self._split = split
        self._types = types
        self._open_session: PgSession | None = None

    def __enter__(self) -> _CatalogLookup:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open_session is not None:
            self._open_session.close()

    @property
    def _session(self) -> PgSession:
        if self._open_session is None:
            self._open_session = self._server.connect()
        return self._open_session

    @cached_property
    def _members(self) -> Mapping[tuple[str, str], Member]:
        return find_members(self._session, self._server.options)

    def describe(self, relation: Relation) -> Relation | None:
        """Return a table with its column numbers and key; None to skip its changes."""
        load_types(self._session, self._types, relation.columns)
        now = find_table(self._session, relation.id)
        if now is None:
            # With identity `f` the log flags every column, and the key is no longer known.
            return None if relation.identity == FULL else relation
        member = self._members.get(now.names)
        now = as_published(now, None if member is None else member.columns)
        dropped = find_dropped_columns(self._session, relation.id, relation.xid)
        columns = assign_numbers(relation.columns, now.relation.columns, dropped)
        key = relation.key
        if relation.identity == FULL:
            # The log flags every column; the numbers tell which ones are the key.
            key = replica_key(FULL, columns, _current_key(now, columns))
        elif now.relation.identity == NOTHING:  # the log may flag an incomplete key
            key = ()
        # An older row lacks a column that was added since; that does not mean it was dropped.
        last = max((column.number or 0 for column in columns), default=0)
        is_whole = all((column.number or 0) <= last for column in now.relation.columns)
        found = replace(relation, columns=columns, key=key, is_whole=is_whole)
        if self._split.follows(found):
            return found
        if not self._split.follows(now.relation):
            return None  # it is another table now, and is reloaded next
        if not now.relation.key:
            return found
        if found.key:
            raise SourceChangedError(
                f"table {now.qualified_name} had another key for a while "
                f"({', '.join(found.key)}), and the log identifies rows by it in updates and "
                "deletes of that time",
                where=self._server.where,
                todo="They cannot be applied with the current key: reload the tables with "
                "`icestream run --start-over`.",
            )
        # It had no key for a while, so its application could only insert.
        return replace(found, key=_current_key(now, columns))

    def current_values(
        self, relation: Relation, columns: Sequence[str], keys: Sequence[tuple[str, ...]]
    ) -> Sequence[tuple[str | None, ...] | None]:
        """Return the current values of rows, by key."""
        now = find_table(self._session, relation.id)
        known = {} if now is None else {c.number: c for c in now.relation.columns}
        numbers = {c.name: c.number for c in relation.columns}
        if now is None or not {numbers[name] for name in (*columns, *relation.key)} <= set(known):
            return [None] * len(keys)
        return self._fetch_values(
            now,
            [known[numbers[name]].name for name in columns],
            [known[numbers[name]].name for name in relation.key],
            keys,
        )

    def _fetch_values(
        self,
        table: PgTable,
        columns: Sequence[str],
        key: Sequence[str],
        keys: Sequence[tuple[str, ...]],
    ) -> Sequence[tuple[str | None, ...] | None]:
        from psycopg import sql

        type_names = dict(zip(table.order, table.order_types, strict=True))
        if not set(key) <= set(type_names):
            return [None] * len(keys)
        aliases = [f"k{index}" for index in range(len(key))]
        query = sql.SQL(
            "SELECT wanted.ordinal, {columns} FROM unnest({arrays}) WITH ORDINALITY AS wanted"
            " ({aliases}, ordinal) JOIN {only}{table} AS now ON {same}"
        ).format(
            columns=sql.SQL(", ").join(
                sql.SQL("now.{}::text").format(sql.Identifier(column)) for column in columns
            ),
            arrays=sql.SQL(", ").join(
                sql.SQL("{}::text[]").format(sql.Literal(list(values)))
                for values in zip(*keys, strict=True)
            ),
            aliases=sql.SQL(", ").join(map(sql.Identifier, aliases)),
            only=sql.SQL(ONLY[not table.is_partitioned]),
            table=sql.Identifier(*table.names),
            same=sql.SQL(" AND ").join(
                sql.SQL("now.{} = wanted.{}::{}").format(
                    sql.Identifier(column),
                    sql.Identifier(name),
                    sql.SQL(type_names[column]),
                )
                for column, name in zip(key, aliases, strict=True)
            ),
        )
        found = {row[0]: row[1:] for row in self._session.rows(query)}
        return [found.get(ordinal) for ordinal in range(1, len(keys) + 1)]
