"""Reads changes from the slot, in a task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from icestream.errors import SourceChangedError
from icestream.sources.postgres_cdc import slot
from icestream.sources.postgres_cdc.pgoutput import ChangeParser, Visibility, Wanted
from icestream.sources.postgres_cdc.publication import members, told_by
from icestream.sources.postgres_cdc.tables import (
    FULL,
    NOTHING,
    ONLY,
    Table,
    find_table,
    key_of,
    narrowed,
)
from icestream.sources.postgres_cdc.timeline import as_lsn
from icestream.sources.postgres_cdc.tuples import Messages
from icestream.sources.postgres_cdc.types import TYPES_QUERY, TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from icestream.sources.postgres_cdc.publication import Member
    from icestream.sources.postgres_cdc.server import Server, Session
    from icestream.sources.postgres_cdc.tables import Column, Relation
    from icestream.sources.postgres_cdc.timeline import Anchor


# The catalog holds the lower half of ids of transactions, as the log does.
DROPPED_QUERY = """
SELECT attnum, xmin::text::int8,
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8
FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND attisdropped
"""
_CIRCLE = 1 << 32


def find_dropped(session: Session, table: int, xid: int) -> dict[int, bool]:
    """Return the columns that a transaction dropped, or a later one; and whether it was later."""
    found = {}
    for number, dropped_by, now in session.rows(DROPPED_QUERY, [table]):
        later = (dropped_by - xid) % _CIRCLE
        if later <= (now - xid) % _CIRCLE:
            found[number] = later > 0
    return found


def numbered(
    told: Sequence[Column], known: Sequence[Column], dropped: Mapping[int, bool]
) -> tuple[Column, ...]:
    """Return the columns of a message with their numbers; None where that can't be told.

    Args:
        told: the columns of the message.
        known: the columns that the table has now.
        dropped: numbers of columns that were dropped by the message's own transaction (False),
            before or after the message, or by a later one (True).
    """
    later = {number for number, is_later in dropped.items() if is_later}
    for among in (later, set(dropped)):
        places: list[Column | int] = sorted([*known, *among], key=_number)
        if len(places) >= len(told) and _may_be(told, places, known):
            return tuple(
                replace(column, number=_number(place))
                for column, place in zip(told, places, strict=False)
            )
    return _by_name(told, known)


def _number(place: Column | int) -> int:
    return place if isinstance(place, int) else place.number or 0


def _may_be(
    told: Sequence[Column], places: Sequence[Column | int], known: Sequence[Column]
) -> bool:
    """Tell whether columns that go by another name now were renamed, and are no others."""
    names = {column.name for column in known}
    for column, place in zip(told, places, strict=False):
        if isinstance(place, int) or place.name == column.name:
            continue
        if place.type_oid != column.type_oid and column.name in names:
            return False
    return True


def _by_name(told: Sequence[Column], known: Sequence[Column]) -> tuple[Column, ...]:
    """Match names in the order of numbers, as where a publication leaves columns out."""
    by_name = {column.name: column for column in known}
    last = 0
    columns = []
    for column in told:
        other = by_name.get(column.name)
        number = other.number if other is not None else None
        if number is not None and number <= last:
            number = None
        last = number or last
        columns.append(replace(column, number=number))
    return tuple(columns)


BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Changes:
    """Changes between two places of the log.

    Attributes:
        start: transactions that were committed here or later.
        end: transactions that were committed before.
        tables: the tables that are followed; with the snapshot, as text, that holds some of the
            changes to it already.
        identities: which tables they were when they were read, see `Relation.row_identity`.
        anchor: what the server must have.
    """

    start: int
    end: int
    tables: Mapping[tuple[str, str], str | None]
    identities: Mapping[tuple[str, str], str] = field(default_factory=dict)
    anchor: Anchor | None = None

    def follows(self, relation: Relation) -> bool:
        """Tell whether a table is the one that was read; another one is read anew next."""
        noted = self.identities.get(relation.table)
        return noted is None or noted.partition("/")[0] == relation.row_identity


def peek(
    session: Session, end: int, columns: str = "lsn, xid, data", most: int | None = None
) -> sql.Composed:
    """Return the query for what the slot tells up to a place, or in the first so many messages."""
    options = session.server.options
    return sql.SQL(
        "SELECT {} FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}::pg_lsn, {},"
        " 'proto_version', '1', 'publication_names', {})"
    ).format(
        sql.SQL(columns),
        sql.Literal(options.slot),
        sql.Literal(as_lsn(end)),
        sql.Literal(most),
        sql.Literal(_listed(told_by(session, options))),
    )


def read_changes(server: Server, asked: Changes) -> Iterator[pa.RecordBatch]:
    """Yield blocks of changes, whole transactions in the order of the log."""
    types = TypeCatalog(unrepresentable=server.options.unrepresentable)
    with server.connect() as session, _Catalog(server, types, asked) as catalog:
        wanted = Wanted(
            start=asked.start,
            end=asked.end,
            has_table=lambda table: table in asked.tables,
            seen={name: Visibility.parse(seen) for name, seen in asked.tables.items() if seen},
        )
        parser = ChangeParser(wanted, types, catalog)
        _refuse_overtaken(session, asked.start)
        copy = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(peek(session, asked.end))
        for rows in _copied(session, copy):
            yield from parser.parse(Messages.of_copy(rows))
        # What the slot let go of in between was not among what it told.
        _refuse_overtaken(session, asked.start)


def _refuse_overtaken(session: Session, start: int) -> None:
    found = slot.usable(session)
    if found.confirmed > start:
        raise slot.overtaken(session.server, start, found.confirmed)


def _copied(session: Session, copy: sql.Composed) -> Iterator[list[bytes]]:
    """Yield the rows of a copy in blocks, once nobody else reads the slot."""
    while True:
        slot.await_free(session)
        has_begun = False
        try:
            for rows in session.copied(copy, BLOCK_BYTES, passing=psycopg.errors.ObjectInUse):
                has_begun = True
                yield rows
        except psycopg.errors.ObjectInUse:
            if has_begun:
                raise
        else:
            return


def load_types(session: Session, types: TypeCatalog, columns: Sequence[Column]) -> None:
    """Add the types of columns to a catalog that does not know them yet."""
    unknown = types.unknown({column.type_oid for column in columns})
    if unknown:
        types.add(session.rows(TYPES_QUERY, [unknown]))


def _key_now(now: Table, columns: Sequence[Column]) -> tuple[str, ...]:
    """Return those columns of a message that are the key of the table now."""
    numbers = {column.number for column in now.relation.columns if column.name in now.order}
    return tuple(column.name for column in columns if column.number in numbers)


def _listed(publications: Sequence[str]) -> str:
    """Return names as pgoutput reads them: a list of identifiers."""
    return ",".join(sql.Identifier(name).as_string() for name in publications)


class _Catalog:
    """Answers the parser's questions by a session of its own: the other is busy sending."""

    def __init__(self, server: Server, types: TypeCatalog, asked: Changes) -> None:
        self._server = server
        self._asked = asked
        self._types = types
        self._opened: Session | None = None

    def __enter__(self) -> _Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _session(self) -> Session:
        if self._opened is None:
            self._opened = self._server.connect()
        return self._opened

    @cached_property
    def _members(self) -> Mapping[tuple[str, str], Member]:
        return members(self._session, self._server.options)

    def describe(self, relation: Relation) -> Relation | None:
        """Return a table with the numbers of its columns and its key, None if it is left out."""
        load_types(self._session, self._types, relation.columns)
        now = find_table(self._session, relation.id)
        if now is None:
            # By what its rows were told apart is not known any more where the log flags them all.
            return None if relation.identity == FULL else relation
        member = self._members.get(now.names)
        now = narrowed(now, None if member is None else member.columns)
        dropped = find_dropped(self._session, relation.id, relation.xid)
        columns = numbered(relation.columns, now.relation.columns, dropped)
        key = relation.key
        if relation.identity == FULL:
            # The log flags every column; which ones are the key is told by their numbers.
            key = key_of(FULL, columns, _key_now(now, columns))
        elif now.relation.identity == NOTHING:  # the log may flag a key that lacks a column
            key = ()
        # An older row says nothing of a column that was added since, least of all that it is gone.
        last = max((column.number or 0 for column in columns), default=0)
        is_whole = all((column.number or 0) <= last for column in now.relation.columns)
        found = replace(relation, columns=columns, key=key, is_whole=is_whole)
        if self._asked.follows(found):
            return found
        if not self._asked.follows(now.relation):
            return None  # it is another table by now, and is read anew next
        if not now.relation.key:
            return found
        if found.key:
            raise SourceChangedError(
                f"table {now.label} had another key for a while ({', '.join(found.key)}), and "
                "updates and deletes of that time name rows by it",
                where=self._server.where,
                todo="They can't be applied by the key that it has now: load the tables again with "
                "`icestream run --start-over`.",
            )
        # It had no key for a while, so that its application could only insert.
        return replace(found, key=_key_now(now, columns))

    def values_now(
        self, relation: Relation, columns: Sequence[str], keys: Sequence[tuple[str, ...]]
    ) -> Sequence[tuple[str | None, ...] | None]:
        """Return the values that rows have now, by their keys."""
        now = find_table(self._session, relation.id)
        known = {} if now is None else {c.number: c for c in now.relation.columns}
        numbers = {c.name: c.number for c in relation.columns}
        if now is None or not {numbers[name] for name in (*columns, *relation.key)} <= set(known):
            return [None] * len(keys)
        return self._looked_up(
            now,
            [known[numbers[name]].name for name in columns],
            [known[numbers[name]].name for name in relation.key],
            keys,
        )

    def _looked_up(
        self,
        table: Table,
        columns: Sequence[str],
        key: Sequence[str],
        keys: Sequence[tuple[str, ...]],
    ) -> Sequence[tuple[str | None, ...] | None]:
        spelt = dict(zip(table.order, table.order_types, strict=True))
        if not set(key) <= set(spelt):
            return [None] * len(keys)
        asked = [f"k{place}" for place in range(len(key))]
        query = sql.SQL(
            "SELECT asked.place, {columns} FROM unnest({arrays}) WITH ORDINALITY AS asked"
            " ({asked}, place) JOIN {only}{table} AS now ON {same}"
        ).format(
            columns=sql.SQL(", ").join(
                sql.SQL("now.{}::text").format(sql.Identifier(column)) for column in columns
            ),
            arrays=sql.SQL(", ").join(
                sql.SQL("{}::text[]").format(sql.Literal(list(values)))
                for values in zip(*keys, strict=True)
            ),
            asked=sql.SQL(", ").join(map(sql.Identifier, asked)),
            only=ONLY[not table.is_partitioned],
            table=sql.Identifier(*table.names),
            same=sql.SQL(" AND ").join(
                sql.SQL("now.{} = asked.{}::{}").format(
                    sql.Identifier(column),
                    sql.Identifier(name),
                    sql.SQL(spelt[column]),
                )
                for column, name in zip(key, asked, strict=True)
            ),
        )
        found = {row[0]: row[1:] for row in self._session.rows(query)}
        return [found.get(place) for place in range(1, len(keys) + 1)]
