"""Which tables of the database are followed, and what PostgreSQL's catalog says of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from psycopg import sql

from icestream.sources.postgres_cdc.relation import FULL, INDEX, NOTHING, Column, Relation, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions, SyncMode
    from icestream.sources.postgres_cdc.server import Session

# A part of a partitioned table is no table of its own, unless somebody's publication says so. A
# column that the server works out is not in its log, so it is nowhere. A key that is looked at only
# when a transaction ends is none to the log.
TABLES_QUERY = """
SELECT c.oid::int8, n.nspname::text, c.relname::text,
       pg_catalog.format('%%I.%%I', n.nspname, c.relname),
       c.relreplident::text, c.relkind = 'p', c.relispartition,
       CASE WHEN c.reltuples > 0 THEN c.reltuples::int8
            ELSE pg_catalog.pg_relation_size(c.oid) / 100 END,
       (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(a.attnum, a.attname,
               a.atttypid::int8, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod),
               a.atthasmissing OR a.atthasdef OR a.attidentity <> '') ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''),
       (SELECT pg_catalog.jsonb_object_agg(
               CASE WHEN i.indisprimary THEN 'd' ELSE 'i' END,
               (SELECT pg_catalog.jsonb_agg(a.attname ORDER BY k.place)
                FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                JOIN pg_catalog.pg_attribute AS a
                     ON a.attrelid = c.oid AND a.attnum = k.number
                WHERE k.place <= i.indnkeyatts))
        FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) AND i.indisvalid
              AND i.indimmediate)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND {chosen}
ORDER BY 2, 3
"""
# Rows of a table that inherits are told by the log as rows of that table; those of a part are not.
ONLY = {True: sql.SQL("ONLY "), False: sql.SQL("")}
OF_USERS = r"n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%%'"


@dataclass(frozen=True)
class Table:
    """A table that is followed.

    Attributes:
        relation: its columns and its key.
        label: its name as SQL and positions write it, quoted where it must be.
        order: the columns of an index over its key, in the index's order; ranges are cut by them.
        order_types: their types, for casts.
        rows: about how many it has.
        mode: how it is read.
        is_partitioned: whether its rows are in other tables.
        row_filter: a condition that its publication names.
        last_column: the highest number of a column, published or not.
        newest_default: the highest number of a column with a default. Rows that were there when
            it was added have the default too, and the log does not tell.
        publication: which version of its publication it is in, see `Member.version`.
    """

    relation: Relation
    label: str
    order: tuple[str, ...]
    order_types: tuple[str, ...]
    rows: int
    mode: SyncMode
    is_partitioned: bool = False
    row_filter: str | None = None
    last_column: int = 0
    newest_default: int = 0
    publication: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """Schema and name."""
        return self.relation.table

    @property
    def reading_order(self) -> str:
        """The columns by which it is read in ranges, and their types: keys compare by both."""
        return ", ".join(map(" ".join, zip(self.order, self.order_types, strict=True)))

    @property
    def identity(self) -> str:
        """Which table it is, and by what its rows are told apart.

        A table that gets the name of another, or another key, is another table to a mirror.
        """
        relation = self.relation
        if not relation.has_row_key:
            return relation.row_identity
        # Rows are told apart by all their values, so those of other columns are other rows.
        told = [(column.number, column.type_oid, column.typmod) for column in relation.columns]
        return f"{relation.row_identity}/{crc32(repr(told).encode()):x}"

    @property
    def is_keyed(self) -> bool:
        """Whether rows have a key of their own, so that one read twice is the same row."""
        return bool(self.relation.key)

    @property
    def only_grows(self) -> bool:
        """Whether the log could not say which row was changed or deleted."""
        return not self.relation.block_key


@dataclass(frozen=True)
class Found:
    """A table as the catalog tells it, before it is known how it is published."""

    table: Table
    is_part: bool


def find_tables(session: Session, options: PostgresCdcOptions) -> dict[tuple[str, str], Found]:
    """Return every table that the options ask for, parts of partitioned ones included."""
    found: dict[tuple[str, str], Found] = {}
    for row in session.rows(TABLES_QUERY.format(chosen=OF_USERS)):
        mode = options.mode_of(row[1], row[2])
        if mode is not None and row[8]:
            found[row[1], row[2]] = Found(_table(row, mode), row[6])
    return found


def find_table(session: Session, oid: int) -> Table | None:
    """Return a table as the catalog has it now; None if it is gone."""
    query = TABLES_QUERY.format(chosen="c.oid = %s")
    rows = session.rows(query, [oid])
    return _table(rows[0], "incremental") if rows and rows[0][8] else None


def _table(row: tuple[Any, ...], mode: SyncMode) -> Table:
    oid, schema, name, label, identity, is_partitioned, _, count, columns, indexes = row
    keys = {kind: tuple(names) for kind, names in (indexes or {}).items()}
    index = keys.get("i", keys.get("d", ())) if identity == INDEX else keys.get("d", ())
    spelt = {column: spelling for _, column, _, _, spelling, _ in columns}
    if not set(index) <= set(spelt):
        # A key with a column that the log does not tell tells no row apart.
        index, keys = (), {}
        identity = FULL if identity == FULL else NOTHING
    told = tuple(
        Column(column, type_oid, typmod, identity == FULL or column in index, number)
        for number, column, type_oid, typmod, _, _ in columns
    )
    key = key_of(identity, told, tuple(c.name for c in told if c.name in keys.get("d", ())))
    order = index if key else ()
    return Table(
        relation=Relation(oid, schema, name, identity, told, key),
        label=label,
        order=order,
        order_types=tuple(spelt[column] for column in order),
        rows=count,
        mode=mode,
        is_partitioned=is_partitioned,
        last_column=max(each[0] for each in columns),
        newest_default=max((each[0] for each in columns if each[-1]), default=0),
    )


def narrowed(
    table: Table,
    columns: Iterable[str] | None,
    row_filter: str | None = None,
    publication: str = "",
) -> Table:
    """Return a table as its publication shows it: some of its columns, some of its rows."""
    relation = table.relation
    if columns is not None:
        shown = set(columns)
        kept = tuple(column for column in relation.columns if column.name in shown)
        relation = replace(relation, columns=kept)
    return replace(table, relation=relation, row_filter=row_filter, publication=publication)


def by_label(tables: Iterable[Table]) -> Mapping[str, Table]:
    """Return tables by their labels."""
    return {table.label: table for table in tables}
