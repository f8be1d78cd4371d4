"""PostgreSQL's types as Arrow's, and texts of values as PostgreSQL prints them as Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

# Everything that a catalog needs to know of types: those asked for, their elements and bases.
TYPES_QUERY = """
WITH RECURSIVE needed AS (
    SELECT * FROM pg_catalog.pg_type WHERE oid = ANY(%s::oid[])
    UNION SELECT t.* FROM pg_catalog.pg_type t JOIN needed n ON t.oid IN (n.typelem, n.typbasetype)
)
SELECT oid::int8, typname::text, typtype::text, typcategory::text, typelem::int8,
       typbasetype::int8, typtypmod, typdelim::text
FROM needed
"""


class PgType(NamedTuple):
    """A row of pg_type, as `TYPES_QUERY` gives it."""

    oid: int
    name: str
    kind: str
    category: str
    element: int
    base: int
    typmod: int
    delimiter: str


class TypeCatalog:
    """The types of a database: those built in, and those it was told of.

    Args:
        rows: of `TYPES_QUERY`.
    """

    def __init__(self, rows: Iterable[PgType | tuple[object, ...]] = ()) -> None:
        raise NotImplementedError

    def add(self, rows: Iterable[PgType | tuple[object, ...]]) -> None:
        """Take note of rows of `TYPES_QUERY`."""
        raise NotImplementedError

    def unknown(self, oids: Iterable[int]) -> list[int]:
        """Return those types that are neither built in nor told of: ask `TYPES_QUERY` for them.

        A type that stays unknown is a string.
        """
        raise NotImplementedError

    def arrow_type(self, oid: int, typmod: int = -1) -> pa.DataType:
        """Return the Arrow type of a column."""
        raise NotImplementedError

    def from_text(self, texts: pa.Array, oid: int, typmod: int = -1) -> tuple[pa.Array, int]:
        """Turn strings into values of the column's Arrow type.

        Returns:
            The values, and how many of them are null because Arrow's type can't hold them.
        """
        raise NotImplementedError
