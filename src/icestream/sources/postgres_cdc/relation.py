"""A table of PostgreSQL as a Relation message or its catalog tells it, and the block it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.contracts.changes import COLUMN_ID, OP, UNSENT, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        fields += [pa.field(OP, pa.string()), pa.field(UNSENT, pa.list_(pa.string()))]
    shape = Shape(
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
