"""The replicated tables, as PostgreSQL's catalog describes them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa

from icestream.contracts.changes import COLUMN_ID, OP, UNCHANGED_COLUMNS, ChangeSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions, SyncMode
    from icestream.sources.postgres_cdc.server import PgSession
    from icestream.sources.postgres_cdc.types import TypeCatalog


# The key of a table without one whose replica identity is full: see `blocks.row_keys`.
ROW_KEY = "_row_key"

# Replica identities: what the log holds of a row that is updated or deleted.
DEFAULT, NOTHING, INDEX, FULL = "d", "n", "i", "f"


@dataclass(frozen=True)
class PgColumn:
    """A column of a table.

    Attributes:
        name: its current name.
        type_oid: its type, a row of pg_type.
        typmod: the type's modifier, such as precision and scale; -1 for none.
        is_key: whether it is part of the replica identity (of every column if that is full).
        number: its attnum, which survives a rename; None if it is unknown.
    """

    name: str
    type_oid: int
    typmod: int = -1
    is_key: bool = False
    number: int | None = None


@dataclass(frozen=True)
class Relation:
    """A table, with its columns at one LSN.

    Attributes:
        id: its oid.
        namespace: its schema.
        name: its own name.
        identity: `d` (primary key), `n` (nothing), `i` (an index) or `f` (whole rows).
        columns: in the order of their numbers.
        key: names of the key columns, see `replica_key`.
        version: an LSN at which it had these columns.
        xid: lower 32 bits of the id of the transaction that described it there.
        is_whole: whether no column was added since.
    """

    id: int
    namespace: str
    name: str
    identity: str
    columns: tuple[PgColumn, ...]
    key: tuple[str, ...] = ()
    version: int = field(default=0, compare=False)
    xid: int = field(default=0, compare=False)
    is_whole: bool = field(default=True, compare=False)

    @property
    def table(self) -> tuple[str, str]:
        """Schema and name of the table."""
        return (self.namespace, self.name)

    @property
    def has_row_key(self) -> bool:
        """Whether its blocks have the column `ROW_KEY` because it has no key."""
        return self.identity == FULL and not self.key

    @property
    def row_identity(self) -> str:
        """The oid, and the column numbers of the key."""
        numbers = {column.name: str(column.number) for column in self.columns}
        key = "full" if self.has_row_key else ",".join(numbers[name] for name in self.key)
        return f"{self.id}:{key}"

    @property
    def block_key(self) -> tuple[str, ...]:
        """The key of its blocks."""
        return (ROW_KEY,) if self.has_row_key else self.key


def replica_key(
    identity: str, columns: Iterable[PgColumn], primary_key: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the key of a table, which the log must contain for each deleted row.

    Args:
        identity: the replica identity.
        columns: with the flag `is_key`.
        primary_key: from the catalog; needed only for identity `f`.
    """
    if identity == FULL:
        return primary_key
    if identity in (DEFAULT, INDEX):
        return tuple(column.name for column in columns if column.is_key)
    return ()


def block_schema(
    relation: Relation,
    types: TypeCatalog,
    *,
    snapshot: bool = False,
    first: bool = False,
    size: int | None = None,
) -> pa.Schema:
    """Return the schema of a table's blocks, with the metadata of `ChangeSchema`.

    Args:
        relation: the table.
        types: must know the types of all its columns.
        snapshot: whether the rows come from a snapshot, not from the log.
        first: whether they replace the content of the Iceberg table.
        size: about how many bytes the table has, if it is known.
    """
    fields = [_field(relation, column, types) for column in relation.columns]
    if relation.has_row_key:
        fields.append(pa.field(ROW_KEY, pa.string()))
    if not snapshot:
        fields += [pa.field(OP, pa.string()), pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))]
    schema = ChangeSchema(
        relation.table,
        relation.block_key,
        is_snapshot=snapshot,
        is_first=first,
        is_whole=relation.is_whole,
        version=relation.version,
        source_bytes=size,
    )
    return schema.on(pa.schema(fields))


def is_text_key(relation: Relation, column: PgColumn, types: TypeCatalog) -> bool:
    """Tell whether a key column is stored as text since Iceberg allows no key of its type."""
    if column.name not in relation.key:
        return False
    kind = types.arrow_type(column.type_oid, column.typmod)
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _field(relation: Relation, column: PgColumn, types: TypeCatalog) -> pa.Field:
    # With the oid: a table that is recreated numbers its columns from one again.
    number = column.number
    metadata = None if number is None else {COLUMN_ID: f"{relation.id}.{number}".encode()}
    is_text = is_text_key(relation, column, types)
    kind = pa.string() if is_text else types.arrow_type(column.type_oid, column.typmod)
    return pa.field(column.name, kind, metadata=metadata)


# A partition is not a table of its own, unless someone's publication lists it. Generated columns
# are not in the log, so they are left out. The log ignores deferrable keys.
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
               (SELECT pg_catalog.jsonb_agg(a.attname ORDER BY k.ordinal)
                FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, ordinal)
                JOIN pg_catalog.pg_attribute AS a
                     ON a.attrelid = c.oid AND a.attnum = k.number
                WHERE k.ordinal <= i.indnkeyatts))
        FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) AND i.indisvalid
              AND i.indimmediate)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND {chosen}
ORDER BY 2, 3
"""
# The partitions of a partitioned table, or the table itself; with large values, without indexes.
SIZES_QUERY = """
SELECT chosen.id::int8, coalesce(
    (SELECT sum(pg_catalog.pg_table_size(part.relid))
     FROM pg_catalog.pg_partition_tree(chosen.id) AS part),
    pg_catalog.pg_table_size(chosen.id), 0)::int8
FROM unnest(%s::oid[]) AS chosen (id)
"""
# The log names an inheriting table as the table of its rows, but not a partition.
ONLY = {True: "ONLY ", False: ""}
USER_TABLES = r"n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%%'"


@dataclass(frozen=True)
class PgTable:
    """A replicated table.

    Attributes:
        relation: its columns and its key.
        qualified_name: its name as in SQL and in offsets, quoted where needed.
        order: the key columns in the order of their index; snapshots are split by them.
        order_types: their types, for casts.
        rows: about how many it has.
        mode: its `sync_mode`.
        is_partitioned: whether its rows are in partitions.
        row_filter: the condition of its publication.
        last_column: the highest column number, published or not.
        newest_default: the highest number of a column with a default. Existing rows got the
            default when the column was added, which the log does not contain.
        publication: the version of its publication, see `Member.version`.
    """

    relation: Relation
    qualified_name: str
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
        """The key columns and their types: both decide how keys compare."""
        return ", ".join(map(" ".join, zip(self.order, self.order_types, strict=True)))

    @property
    def identity(self) -> str:
        """The table and its key.

        To a mirror, a table with a new key, or another table under the same name, is a new table.
        """
        relation = self.relation
        if not relation.has_row_key:
            return relation.row_identity
        # All values together identify a row, so other columns make other rows.
        columns = [(column.number, column.type_oid, column.typmod) for column in relation.columns]
        return f"{relation.row_identity}/{crc32(repr(columns).encode()):x}"

    @property
    def is_keyed(self) -> bool:
        """Whether it has a key, so that a row read twice is recognised."""
        return bool(self.relation.key)

    @property
    def is_insert_only(self) -> bool:
        """Whether the log cannot identify updated and deleted rows."""
        return not self.relation.block_key


@dataclass(frozen=True)
class CatalogTable:
    """A table from the catalog, before its publication is applied."""

    table: PgTable
    is_partition: bool


def find_tables(
    session: PgSession, options: PostgresCdcOptions
) -> dict[tuple[str, str], CatalogTable]:
    """Return every configured table, including partitions."""
    found: dict[tuple[str, str], CatalogTable] = {}
    for row in session.rows(TABLES_QUERY.format(chosen=USER_TABLES)):
        mode = options.mode_of(row[1], row[2])
        if mode is not None and row[8]:
            found[row[1], row[2]] = CatalogTable(_table(row, mode), row[6])
    return found


def find_table(session: PgSession, oid: int) -> PgTable | None:
    """Return a table as it is in the catalog now; None if it was dropped."""
    query = TABLES_QUERY.format(chosen="c.oid = %s")
    rows = session.rows(query, [oid])
    return _table(rows[0], "incremental") if rows and rows[0][8] else None


def find_sizes(session: PgSession, tables: Iterable[PgTable]) -> dict[int, int]:
    """Return the bytes that tables take on the server's disk, by oid."""
    oids = [table.relation.id for table in tables]
    return dict(session.rows(SIZES_QUERY, [oids])) if oids else {}


def _table(row: tuple[Any, ...], mode: SyncMode) -> PgTable:
    oid, schema, name, label, identity, is_partitioned, _, count, columns, indexes = row
    keys = {kind: tuple(names) for kind, names in (indexes or {}).items()}
    index = keys.get("i", keys.get("d", ())) if identity == INDEX else keys.get("d", ())
    type_names = {column: spelling for _, column, _, _, spelling, _ in columns}
    if not set(index) <= set(type_names):
        # A key with a column that is not in the log identifies no row.
        index, keys = (), {}
        identity = FULL if identity == FULL else NOTHING
    pg_columns = tuple(
        PgColumn(column, type_oid, typmod, identity == FULL or column in index, number)
        for number, column, type_oid, typmod, _, _ in columns
    )
    key = replica_key(
        identity, pg_columns, tuple(c.name for c in pg_columns if c.name in keys.get("d", ()))
    )
    order = index if key else ()
    return PgTable(
        relation=Relation(oid, schema, name, identity, pg_columns, key),
        qualified_name=label,
        order=order,
        order_types=tuple(type_names[column] for column in order),
        rows=count,
        mode=mode,
        is_partitioned=is_partitioned,
        last_column=max(each[0] for each in columns),
        newest_default=max((each[0] for each in columns if each[-1]), default=0),
    )


def as_published(
    table: PgTable,
    columns: Iterable[str] | None,
    row_filter: str | None = None,
    publication: str = "",
) -> PgTable:
    """Return a table restricted to the columns and rows that its publication includes."""
    relation = table.relation
    if columns is not None:
        published = set(columns)
        kept = tuple(column for column in relation.columns if column.name in published)
        relation = replace(relation, columns=kept)
    return replace(table, relation=relation, row_filter=row_filter, publication=publication)


def by_qualified_name(tables: Iterable[PgTable]) -> Mapping[str, PgTable]:
    """Index tables by their qualified names."""
    return {table.qualified_name: table for table in tables}
