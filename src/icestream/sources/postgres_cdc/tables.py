"""Which tables of the database are followed, and what PostgreSQL's catalog says of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa
from psycopg import sql

from icestream.contracts.changes import COLUMN_ID, OP, UNCHANGED_COLUMNS, ChangeSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions, SyncMode
    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.types import TypeCatalog


# The key of a table that has none, where the log tells old rows in full: see `blocks.row_keys`.
ROW_KEY = "_row_key"

# Replica identities: what the log tells of a row that is changed or deleted.
DEFAULT, NOTHING, INDEX, FULL = "d", "n", "i", "f"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: what it is called now.
        type_oid: its type, a row of pg_type.
        typmod: the type's modifier, such as precision and scale; -1 for none.
        is_key: whether it is part of the replica identity (of every column if that is full).
        number: its attnum, which stays when it is renamed; None if the catalog lost it.
    """

    name: str
    type_oid: int
    typmod: int = -1
    is_key: bool = False
    number: int | None = None


@dataclass(frozen=True)
class Relation:
    """A table, with the columns that it has at one place of the log.

    Attributes:
        id: its oid.
        namespace: its schema.
        name: its own name.
        identity: `d` (primary key), `n` (nothing), `i` (an index) or `f` (whole rows).
        columns: in the order of their numbers.
        key: names of the columns that tell rows apart, see `key_of`.
        version: a place of the log where it had these columns.
        xid: the transaction that tells of it there, by the lower half of its id.
        is_whole: whether these are all the columns that it has had since.
    """

    id: int
    namespace: str
    name: str
    identity: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    version: int = field(default=0, compare=False)
    xid: int = field(default=0, compare=False)
    is_whole: bool = field(default=True, compare=False)

    @property
    def table(self) -> tuple[str, str]:
        """The table's names, outermost first."""
        return (self.namespace, self.name)

    @property
    def has_row_key(self) -> bool:
        """Whether its blocks have the column `ROW_KEY`, for want of a key."""
        return self.identity == FULL and not self.key

    @property
    def row_identity(self) -> str:
        """Which table it is, and by what its rows are told apart."""
        numbers = {column.name: str(column.number) for column in self.columns}
        key = "full" if self.has_row_key else ",".join(numbers[name] for name in self.key)
        return f"{self.id}:{key}"

    @property
    def block_key(self) -> tuple[str, ...]:
        """The key of its blocks."""
        return (ROW_KEY,) if self.has_row_key else self.key


def key_of(
    identity: str, columns: Iterable[Column], primary_key: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the key of a table: what the log tells of a row that goes must hold it.

    Args:
        identity: the replica identity.
        columns: with the flag `is_key`.
        primary_key: the table's own, asked of the catalog; only needed for identity `f`.
    """
    if identity == FULL:
        return primary_key
    if identity in (DEFAULT, INDEX):
        return tuple(column.name for column in columns if column.is_key)
    return ()


def block_columns(
    relation: Relation, types: TypeCatalog, *, snapshot: bool = False, first: bool = False
) -> pa.Schema:
    """Return the columns of a table's blocks, with their shape.

    Args:
        relation: the table.
        types: which knows the types of all its columns.
        snapshot: whether the rows are read as they are, not as changes.
        first: whether they replace what the Iceberg table holds.
    """
    fields = [_field(relation, column, types) for column in relation.columns]
    if relation.has_row_key:
        fields.append(pa.field(ROW_KEY, pa.string()))
    if not snapshot:
        fields += [pa.field(OP, pa.string()), pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))]
    shape = ChangeSchema(
        relation.table,
        relation.block_key,
        is_snapshot=snapshot,
        is_first=first,
        is_whole=relation.is_whole,
        version=relation.version,
    )
    return shape.on(pa.schema(fields))


def is_text_key(relation: Relation, column: Column, types: TypeCatalog) -> bool:
    """Tell whether a column is a text because it is part of a key that Iceberg could not have."""
    if column.name not in relation.key:
        return False
    kind = types.arrow_type(column.type_oid, column.typmod)
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _field(relation: Relation, column: Column, types: TypeCatalog) -> pa.Field:
    # With the table: one that is made anew under its name counts its columns from one again.
    number = column.number
    told = None if number is None else {COLUMN_ID: f"{relation.id}.{number}".encode()}
    is_text = is_text_key(relation, column, types)
    kind = pa.string() if is_text else types.arrow_type(column.type_oid, column.typmod)
    return pa.field(column.name, kind, metadata=told)


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
