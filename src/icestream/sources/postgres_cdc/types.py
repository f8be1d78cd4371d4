"""PostgreSQL's types as Arrow's, and texts of values as PostgreSQL prints them as Arrow arrays."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from icestream.sources.postgres_cdc.options import Unrepresentable

    FromText = Callable[[pa.Array], pa.Array]


_BOUNDS = re.compile(r"^(\[[^\]]*\])+=")
_IS_INTRICATE = r'["\\\[]|^.+\{'
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def elements(texts: pa.Array, delimiter: str) -> pa.ListArray:
    """Return the texts of each array's elements; null for an array of arrays.

    Args:
        texts: the arrays.
        delimiter: what stands between elements: a comma for all types but `box`.
    """
    is_intricate = pc.match_substring_regex(texts, _IS_INTRICATE)
    if pc.any(is_intricate).as_py():
        plain = _of_plain(pc.if_else(is_intricate, None, texts), delimiter)
        places = np.flatnonzero(is_intricate.fill_null(False).to_numpy(zero_copy_only=False))
        own = [_of_one(texts[int(place)].as_py(), delimiter) for place in places]
        return _merged(plain, pa.array(own, pa.list_(pa.string())), places)
    return _of_plain(texts, delimiter)


def _of_plain(texts: pa.Array, delimiter: str) -> pa.ListArray:
    """Split arrays without quotes, escapes, bounds and arrays inside."""
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    is_empty = pc.equal(inner, "").fill_null(False)
    lists = pc.split_pattern(inner, delimiter)
    if pc.any(is_empty).as_py():
        lists = pc.if_else(is_empty, pa.scalar([], pa.list_(pa.string())), lists)
    return _with_nulls(lists)


def _with_nulls(lists: pa.ListArray) -> pa.ListArray:
    values = lists.flatten()
    return with_values(lists, pc.if_else(pc.equal(values, "NULL"), None, values))


def with_values(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Return lists with other values in the places of those that `lists.flatten()` gives."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _merged(plain: pa.ListArray, own: pa.ListArray, places: npt.NDArray[np.intp]) -> pa.ListArray:
    order = np.arange(len(plain), dtype=np.int64)
    order[places] = len(plain) + np.arange(len(own))
    return pa.concat_arrays([plain, own]).take(pa.array(order))


def _of_one(text: str, delimiter: str) -> list[str | None] | None:
    """Return the elements of one array, or None if they are arrays themselves."""
    body = _BOUNDS.sub("", text)[1:-1]
    if not body:
        return []
    if body.startswith("{"):
        return None
    found: list[str | None] = []
    for quoted, bare in _element_pattern(delimiter).findall(body):
        if quoted:
            found.append(_ESCAPED.sub(r"\1", quoted[1:-1]))
        else:
            found.append(None if bare == "NULL" else _ESCAPED.sub(r"\1", bare))
    return found


def _element_pattern(delimiter: str) -> re.Pattern[str]:
    mark = re.escape(delimiter)
    return re.compile(
        rf'("(?:[^"\\]|\\.)*")(?:{mark}|$)|((?:[^"\\{mark}]|\\.)+)(?:{mark}|$)', re.DOTALL
    )


SESSION_SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
}

# What Iceberg and its readers can hold: years 1 to 9999. Anything else is printed in another form,
# with more digits, ` BC`, or as `infinity`.
_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,6})?"
_NUMBER = r"-?\d+(\.\d+)?"
_MONEY = r"^-?\$?\d[\d,]*\.\d\d$"
_UUID_LENGTH = 36
_UUID_HYPHENS = (8, 13, 18, 23)
_NIBBLES = np.zeros(256, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _NIBBLES[_digit] = int(chr(_digit), 16)


def same(texts: pa.Array) -> pa.Array:
    """Return strings as they are."""
    return texts


def by_cast(kind: pa.DataType, pattern: str) -> FromText:
    """Return what casts texts to a type.

    Args:
        kind: the type.
        pattern: what a text that the type can hold looks like; asked only when one is refused.
    """

    def cast(texts: pa.Array) -> pa.Array:
        return _cast_those(texts, kind, f"^{pattern}$")

    return cast


def numbers(kind: pa.DataType) -> FromText:
    """Return what reads numbers; `NaN` and `Infinity` only where the type has them."""
    return by_cast(kind, ".*" if pa.types.is_floating(kind) else _NUMBER)


def truths(texts: pa.Array) -> pa.Array:
    """Read `t` and `f`."""
    return pc.equal(texts, "t")


dates = by_cast(pa.date32(), _DATE)
timestamps = by_cast(pa.timestamp("us"), f"{_DATE} {_CLOCK}")
timestamps_in_utc = by_cast(pa.timestamp("us", "UTC"), rf"{_DATE} {_CLOCK}[+-]\d\d(:?\d\d)?")


def money(texts: pa.Array) -> pa.Array:
    """Read amounts such as `-$1,234.50`."""
    fits = pc.match_substring_regex(texts, _MONEY)
    plain = pc.replace_substring_regex(texts, r"[$,]", "")
    return pc.if_else(fits, plain, None).cast(pa.decimal128(19, 2))


def binaries(texts: pa.Array) -> pa.Array:
    r"""Read bytes in hexadecimal, such as `\x00ff`."""
    texts = pc.if_else(pc.starts_with(texts, "\\x"), texts, None)
    present = texts.drop_null()
    raw, ends = _raw(present)
    lengths = np.diff(ends)
    is_digit = np.ones(len(raw), np.bool_)
    is_digit[ends[:-1]] = is_digit[ends[:-1] + 1] = False
    offsets = np.zeros(len(ends), np.int32)
    np.cumsum((lengths - 2) // 2, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_from_hex(raw[is_digit]))]
    found = pa.Array.from_buffers(pa.binary(), len(present), buffers)
    return _where_present(found, texts)


def uuids(texts: pa.Array) -> pa.Array:
    """Read UUIDs."""
    present = texts.drop_null()
    raw, _ = _raw(present)
    digits = np.delete(raw.reshape(len(present), _UUID_LENGTH), _UUID_HYPHENS, axis=1)
    stored = [None, pa.py_buffer(_from_hex(digits.reshape(-1)))]
    found = pa.Array.from_buffers(pa.binary(16), len(present), stored)
    return pa.ExtensionArray.from_storage(pa.uuid(), _where_present(found, texts))


def _cast_those(texts: pa.Array, kind: pa.DataType, pattern: str) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(texts, pattern)
    try:
        return pc.if_else(fits, texts, None).cast(kind)
    except pa.ArrowInvalid:
        # A text of the right form that is out of range: a date such as 2021-02-30 in an array
        # of texts that someone made by hand.
        return pa.concat_arrays([_cast_one(text, kind) for text in texts])


def _cast_one(text: pa.Scalar, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([text.as_py()], pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _raw(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the bytes of strings without nulls, and where in them each begins, and the end."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or offsets is None or data is None:
        return np.zeros(0, np.uint8), np.zeros(1, np.int32)
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def _from_hex(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    nibbles = _NIBBLES[digits]
    return ((nibbles[0::2] << 4) | nibbles[1::2]).astype(np.uint8, copy=False)


def _where_present(values: pa.Array, texts: pa.Array) -> pa.Array:
    """Put values back to the places where texts are no nulls."""
    if texts.null_count == 0:
        return values
    is_present = texts.is_valid().to_numpy(zero_copy_only=False)
    places = np.cumsum(is_present) - 1
    return values.take(pa.array(places, pa.int64(), mask=~is_present))


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


_TEXT = _Kind(pa.string(), same)
_INT32 = _Kind(pa.int32(), numbers(pa.int32()))
_INT64 = _Kind(pa.int64(), numbers(pa.int64()))

# A time of day stays text: Spark can't read an Iceberg table that has a column of type `time`.
_SCALARS: dict[int, _Kind] = {
    16: _Kind(pa.bool_(), truths),
    17: _Kind(pa.binary(), binaries),
    20: _INT64,
    21: _INT32,
    23: _INT32,
    26: _INT64,
    700: _Kind(pa.float32(), numbers(pa.float32())),
    701: _Kind(pa.float64(), numbers(pa.float64())),
    790: _Kind(pa.decimal128(19, 2), money),
    1082: _Kind(pa.date32(), dates),
    1114: _Kind(pa.timestamp("us"), timestamps),
    1184: _Kind(pa.timestamp("us", "UTC"), timestamps_in_utc),
    2950: _Kind(pa.uuid(), uuids),
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
        lists = elements(texts, self._delimiter(element))
        values, nulled = self.from_text(lists.flatten(), element, typmod)
        nulled += lists.null_count - texts.null_count
        return with_values(lists, values), nulled

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
    return _Kind(kind, numbers(kind))


def _precision_and_scale(typmod: int) -> tuple[int, int]:
    return ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024
