"""PostgreSQL's types as Arrow's, and texts of values as PostgreSQL prints them as Arrow arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from psycopg import postgres

from icestream.sources.postgres_cdc import arrays, text_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.sources.postgres_cdc.options import Unrepresentable
    from icestream.sources.postgres_cdc.text_values import FromText

# Everything that a catalog needs to know of types: those asked for, their elements and bases.
TYPES_QUERY = """
WITH RECURSIVE needed AS (
    SELECT oid, typname, typtype, typcategory, typelem, typbasetype, typtypmod, typdelim
    FROM pg_catalog.pg_type WHERE oid = ANY(%s::oid[])
    UNION
    SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typelem, t.typbasetype, t.typtypmod,
           t.typdelim
    FROM pg_catalog.pg_type t JOIN needed n ON t.oid IN (n.typelem, n.typbasetype)
)
SELECT oid::int8, typname::text, typtype::text, typcategory::text, typelem::int8,
       typbasetype::int8, typtypmod, typdelim::text
FROM needed
"""

NUMERIC = 1700
# The greatest precision of Iceberg's decimals.
MAX_PRECISION = 38
# `int2vector` and `oidvector` call themselves arrays, and are printed otherwise.
_VECTORS = (22, 30)
_DOMAIN, _ARRAY = "d", "A"


class _Kind(NamedTuple):
    arrow: pa.DataType
    from_text: FromText


_TEXT = _Kind(pa.string(), text_values.same)
_INT32 = _Kind(pa.int32(), text_values.numbers(pa.int32()))
_INT64 = _Kind(pa.int64(), text_values.numbers(pa.int64()))

# A time of day stays text: Spark can't read an Iceberg table that has a column of type `time`.
_SCALARS: dict[int, _Kind] = {
    16: _Kind(pa.bool_(), text_values.truths),
    17: _Kind(pa.binary(), text_values.binaries),
    20: _INT64,
    21: _INT32,
    23: _INT32,
    26: _INT64,
    700: _Kind(pa.float32(), text_values.numbers(pa.float32())),
    701: _Kind(pa.float64(), text_values.numbers(pa.float64())),
    790: _Kind(pa.decimal128(19, 2), text_values.money),
    1082: _Kind(pa.date32(), text_values.dates),
    1114: _Kind(pa.timestamp("us"), text_values.timestamps),
    1184: _Kind(pa.timestamp("us", "UTC"), text_values.timestamps_in_utc),
    2950: _Kind(pa.uuid(), text_values.uuids),
}

# Arrays that need not be asked for, and what their elements are: text, char, varchar, json, jsonb
# and inet, and everything above.
_ARRAYS = {
    1000: 16,
    1001: 17,
    1016: 20,
    1005: 21,
    1007: 23,
    1028: 26,
    1021: 700,
    1022: 701,
    791: 790,
    1182: 1082,
    1183: 1083,
    1115: 1114,
    1185: 1184,
    2951: 2950,
    1231: NUMERIC,
    1009: 25,
    1014: 1042,
    1015: 1043,
    199: 114,
    3807: 3802,
    1041: 869,
}
# Types with values that Arrow's type can't hold; so are all arrays, which may have dimensions.
_LIMITED = {NUMERIC, 1082, 1114, 1184}
_BUILT_IN = {*_SCALARS, *_ARRAYS, *_ARRAYS.values()}


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
        unrepresentable: what becomes of values that Arrow's type can't hold.
    """

    def __init__(
        self,
        rows: Iterable[PgType | tuple[object, ...]] = (),
        unrepresentable: Unrepresentable = "null",
    ) -> None:
        self.unrepresentable = unrepresentable
        self._told: dict[int, PgType] = {}
        self.add(rows)

    def add(self, rows: Iterable[PgType | tuple[object, ...]]) -> None:
        """Take note of rows of `TYPES_QUERY`."""
        for row in rows:
            told = PgType(*row)
            self._told[told.oid] = told

    def unknown(self, oids: Iterable[int]) -> list[int]:
        """Return those types that are neither built in nor told of: ask `TYPES_QUERY` for them.

        A type that stays unknown is a string.
        """
        return sorted(set(oids) - _BUILT_IN - self._told.keys())

    def arrow_type(self, oid: int, typmod: int = -1) -> pa.DataType:
        """Return the Arrow type of a column."""
        oid, typmod = self._base(oid, typmod)
        element = self._element(oid)
        if self._stays_text(oid):
            return pa.string()
        if element is not None:
            return pa.list_(self.arrow_type(element, typmod))
        return _scalar(oid, typmod).arrow

    def name_of(self, oid: int, typmod: int = -1) -> str:
        """Return the name that PostgreSQL has for a type, e.g. `numeric(10,2)` or `date[]`."""
        told, element = self._told.get(oid), self._element(oid)
        if element is not None:
            return f"{self.name_of(element, typmod)}[]"
        if oid == NUMERIC and typmod >= 0:
            return "numeric({},{})".format(*_precision_and_scale(typmod))
        if told is not None:
            return told.name
        known = postgres.types.get(oid)
        return str(oid) if known is None else known.regtype

    def from_text(self, texts: pa.Array, oid: int, typmod: int = -1) -> tuple[pa.Array, int]:
        """Turn strings into values of the column's Arrow type.

        Returns:
            The values, and how many of them are null because Arrow's type can't hold them.
        """
        oid, typmod = self._base(oid, typmod)
        element = self._element(oid)
        if self._stays_text(oid):
            return texts, 0
        if element is None:
            found = _scalar(oid, typmod).from_text(texts)
            return found, found.null_count - texts.null_count
        lists = arrays.elements(texts, self._delimiter(element))
        values, nulled = self.from_text(lists.flatten(), element, typmod)
        nulled += lists.null_count - texts.null_count
        return arrays.with_values(lists, values), nulled

    def _stays_text(self, oid: int) -> bool:
        is_limited = oid in _LIMITED or self._element(oid) is not None
        return self.unrepresentable == "text" and is_limited

    def _base(self, oid: int, typmod: int) -> tuple[int, int]:
        """Return what a domain is made of, with the precision that the domain gives it."""
        told = self._told.get(oid)
        while told is not None and told.kind == _DOMAIN:
            oid, typmod = told.base, told.typmod if told.typmod >= 0 else typmod
            told = self._told.get(oid)
        return oid, typmod

    def _element(self, oid: int) -> int | None:
        told = self._told.get(oid)
        if told is None:
            return _ARRAYS.get(oid)
        is_array = told.category == _ARRAY and told.element and oid not in _VECTORS
        return told.element if is_array else None

    def _delimiter(self, element: int) -> str:
        told = self._told.get(self._base(element, -1)[0])
        return "," if told is None else told.delimiter


@lru_cache(maxsize=1000)
def _scalar(oid: int, typmod: int) -> _Kind:
    if oid != NUMERIC:
        return _SCALARS.get(oid, _TEXT)
    if typmod < 0:
        return _TEXT
    precision, scale = _precision_and_scale(typmod)
    if precision > MAX_PRECISION or not 0 <= scale <= precision:
        return _TEXT
    kind = pa.decimal128(precision, scale)
    return _Kind(kind, text_values.numbers(kind))


def _precision_and_scale(typmod: int) -> tuple[int, int]:
    return ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024
