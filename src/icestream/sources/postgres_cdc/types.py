"""Maps PostgreSQL types to Arrow types, and text in PostgreSQL's format to Arrow arrays."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from icestream.sources.postgres_cdc.options import Unrepresentable

    FromText = Callable[[pa.Array], pa.Array]


_BOUNDS = re.compile(r"^(\[[^\]]*\])+=")
_NEEDS_PARSER = r'["\\\[]|^.+\{'
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def parse_arrays(texts: pa.Array, delimiter: str) -> pa.ListArray:
    """Return the elements of each array as text; null for a multidimensional array.

    Args:
        texts: the arrays.
        delimiter: between elements: a comma for all types except `box`.
    """
    needs_parser = pc.match_substring_regex(texts, _NEEDS_PARSER)
    if pc.any(needs_parser).as_py():
        plain = _split_plain(pc.if_else(needs_parser, None, texts), delimiter)
        indexes = np.flatnonzero(needs_parser.fill_null(False).to_numpy(zero_copy_only=False))
        own = [_parse_array(texts[int(index)].as_py(), delimiter) for index in indexes]
        return _merge(plain, pa.array(own, pa.list_(pa.string())), indexes)
    return _split_plain(texts, delimiter)


def _split_plain(texts: pa.Array, delimiter: str) -> pa.ListArray:
    """Split arrays without quotes, escapes, bounds or nested arrays."""
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
    """Return lists with other values in place of those of `lists.flatten()`."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _merge(plain: pa.ListArray, own: pa.ListArray, indexes: npt.NDArray[np.intp]) -> pa.ListArray:
    order = np.arange(len(plain), dtype=np.int64)
    order[indexes] = len(plain) + np.arange(len(own))
    return pa.concat_arrays([plain, own]).take(pa.array(order))


def _parse_array(text: str, delimiter: str) -> list[str | None] | None:
    """Return the elements of one array; None if they are arrays themselves."""
    body = _BOUNDS.sub("", text)[1:-1]
    if not body:
        return []
    if body.startswith("{"):
        return None
    parsed: list[str | None] = []
    for quoted, plain in _element_pattern(delimiter).findall(body):
        if quoted:
            parsed.append(_ESCAPED.sub(r"\1", quoted[1:-1]))
        else:
            parsed.append(None if plain == "NULL" else _ESCAPED.sub(r"\1", plain))
    return parsed


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

# Iceberg and its readers support the years 1 to 9999. Anything else is printed differently: with
# more digits, ` BC`, or as `infinity`.
_DATE = r"\d{4}-\d\d-\d\d"
_CLOCK = r"([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,6})?"
_NUMBER = r"-?\d+(\.\d+)?"
_MONEY = r"^-?\$?\d[\d,]*\.\d\d$"
_UUID_LENGTH = 36
_UUID_HYPHENS = (8, 13, 18, 23)
_NIBBLES = np.zeros(256, np.uint8)
for _digit in b"0123456789abcdefABCDEF":
    _NIBBLES[_digit] = int(chr(_digit), 16)


def unchanged(texts: pa.Array) -> pa.Array:
    """Return strings unchanged."""
    return texts


def cast_to(kind: pa.DataType, pattern: str) -> FromText:
    """Return a function that casts texts to a type.

    Args:
        kind: the type.
        pattern: matches texts that the type can hold; used only if a cast fails.
    """

    def cast(texts: pa.Array) -> pa.Array:
        return _cast_matching(texts, kind, f"^{pattern}$")

    return cast


def numbers(kind: pa.DataType) -> FromText:
    """Return a function that parses numbers; `NaN` and `Infinity` only if the type has them."""
    return cast_to(kind, ".*" if pa.types.is_floating(kind) else _NUMBER)


def booleans(texts: pa.Array) -> pa.Array:
    """Parse `t` and `f`."""
    return pc.equal(texts, "t")


dates = cast_to(pa.date32(), _DATE)
timestamps = cast_to(pa.timestamp("us"), f"{_DATE} {_CLOCK}")
timestamps_in_utc = cast_to(pa.timestamp("us", "UTC"), rf"{_DATE} {_CLOCK}[+-]\d\d(:?\d\d)?")


def money(texts: pa.Array) -> pa.Array:
    """Parse amounts such as `-$1,234.50`."""
    fits = pc.match_substring_regex(texts, _MONEY)
    plain = pc.replace_substring_regex(texts, r"[$,]", "")
    return pc.if_else(fits, plain, None).cast(pa.decimal128(19, 2))


def binaries(texts: pa.Array) -> pa.Array:
    r"""Parse bytes in hexadecimal, such as `\x00ff`."""
    texts = pc.if_else(pc.starts_with(texts, "\\x"), texts, None)
    present = texts.drop_null()
    raw, ends = _string_bytes(present)
    lengths = np.diff(ends)
    is_digit = np.ones(len(raw), np.bool_)
    is_digit[ends[:-1]] = is_digit[ends[:-1] + 1] = False
    offsets = np.zeros(len(ends), np.int32)
    np.cumsum((lengths - 2) // 2, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_from_hex(raw[is_digit]))]
    found = pa.Array.from_buffers(pa.binary(), len(present), buffers)
    return _restore_nulls(found, texts)


def uuids(texts: pa.Array) -> pa.Array:
    """Parse UUIDs."""
    present = texts.drop_null()
    raw, _ = _string_bytes(present)
    digits = np.delete(raw.reshape(len(present), _UUID_LENGTH), _UUID_HYPHENS, axis=1)
    stored = [None, pa.py_buffer(_from_hex(digits.reshape(-1)))]
    found = pa.Array.from_buffers(pa.binary(16), len(present), stored)
    return pa.ExtensionArray.from_storage(pa.uuid(), _restore_nulls(found, texts))


def _cast_matching(texts: pa.Array, kind: pa.DataType, pattern: str) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(texts, pattern)
    try:
        return pc.if_else(fits, texts, None).cast(kind)
    except pa.ArrowInvalid:
        # The right form, but out of range: a date such as 2021-02-30 in a handwritten array.
        return pa.concat_arrays([_cast_one(text, kind) for text in texts])


def _cast_one(text: pa.Scalar, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array([text.as_py()], pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _string_bytes(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the bytes of strings without nulls, and the offsets of each, and of the end."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or offsets is None or data is None:
        return np.zeros(0, np.uint8), np.zeros(1, np.int32)
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def _from_hex(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    nibbles = _NIBBLES[digits]
    return ((nibbles[0::2] << 4) | nibbles[1::2]).astype(np.uint8, copy=False)


def _restore_nulls(values: pa.Array, texts: pa.Array) -> pa.Array:
    """Spread values over the rows whose text is not null."""
    if texts.null_count == 0:
        return values
    is_present = texts.is_valid().to_numpy(zero_copy_only=False)
    indexes = np.cumsum(is_present) - 1
    return values.take(pa.array(indexes, pa.int64(), mask=~is_present))


# The requested types, with their element and base types.
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
# The highest precision of Iceberg's decimals.
MAX_PRECISION = 38
# The catalog calls `int2vector` and `oidvector` arrays, but they are printed differently.
_VECTORS = (22, 30)
_DOMAIN, _ARRAY = "d", "A"


class _TypeMapping(NamedTuple):
    arrow: pa.DataType
    from_text: FromText


_TEXT = _TypeMapping(pa.string(), unchanged)
_INT32 = _TypeMapping(pa.int32(), numbers(pa.int32()))
_INT64 = _TypeMapping(pa.int64(), numbers(pa.int64()))

# A time of day stays text: Spark cannot read Iceberg tables with a column of type `time`.
_SCALARS: dict[int, _TypeMapping] = {
    16: _TypeMapping(pa.bool_(), booleans),
    17: _TypeMapping(pa.binary(), binaries),
    20: _INT64,
    21: _INT32,
    23: _INT32,
    26: _INT64,
    700: _TypeMapping(pa.float32(), numbers(pa.float32())),
    701: _TypeMapping(pa.float64(), numbers(pa.float64())),
    790: _TypeMapping(pa.decimal128(19, 2), money),
    1082: _TypeMapping(pa.date32(), dates),
    1114: _TypeMapping(pa.timestamp("us"), timestamps),
    1184: _TypeMapping(pa.timestamp("us", "UTC"), timestamps_in_utc),
    2950: _TypeMapping(pa.uuid(), uuids),
}

# Built-in arrays, and their element types: text, char, varchar, json, jsonb and inet, and
# everything above.
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
# Types with values that the Arrow type cannot hold. Arrays are limited too: to one dimension.
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
    """The types of a database: built-in ones, and those that were added.

    Args:
        rows: of `TYPES_QUERY`.
        unrepresentable: what to do with values that the Arrow type cannot hold.
    """

    def __init__(
        self,
        rows: Iterable[PgType | tuple[object, ...]] = (),
        unrepresentable: Unrepresentable = "null",
    ) -> None:
        self.unrepresentable = unrepresentable
        self._types: dict[int, PgType] = {}
        self.add(rows)

    def add(self, rows: Iterable[PgType | tuple[object, ...]]) -> None:
        """Add rows of `TYPES_QUERY`."""
        for row in rows:
            pg_type = PgType(*row)
            self._types[pg_type.oid] = pg_type

    def unknown(self, oids: Iterable[int]) -> list[int]:
        """Return the types that are neither built in nor added: query them with `TYPES_QUERY`.

        A type that stays unknown becomes a string.
        """
        return sorted(set(oids) - _BUILT_IN - self._types.keys())

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
        """Return PostgreSQL's name of a type, e.g. `numeric(10,2)` or `date[]`."""
        from psycopg import postgres

        pg_type, element = self._types.get(oid), self._element(oid)
        if element is not None:
            return f"{self.name_of(element, typmod)}[]"
        if oid == NUMERIC and typmod >= 0:
            return "numeric({},{})".format(*_precision_and_scale(typmod))
        if pg_type is not None:
            return pg_type.name
        known = postgres.types.get(oid)
        return str(oid) if known is None else known.regtype

    def from_text(self, texts: pa.Array, oid: int, typmod: int = -1) -> tuple[pa.Array, int]:
        """Convert strings to values of the column's Arrow type.

        Returns:
            The values, and how many became null because the Arrow type cannot hold them.
        """
        oid, typmod = self._base(oid, typmod)
        element = self._element(oid)
        if self._stays_text(oid):
            return texts, 0
        if element is None:
            found = _scalar(oid, typmod).from_text(texts)
            return found, found.null_count - texts.null_count
        lists = parse_arrays(texts, self._delimiter(element))
        values, nulled = self.from_text(lists.flatten(), element, typmod)
        nulled += lists.null_count - texts.null_count
        return with_values(lists, values), nulled

    def _stays_text(self, oid: int) -> bool:
        is_limited = oid in _LIMITED or self._element(oid) is not None
        return self.unrepresentable == "text" and is_limited

    def _base(self, oid: int, typmod: int) -> tuple[int, int]:
        """Return the base type of a domain, with the domain's type modifier."""
        pg_type = self._types.get(oid)
        while pg_type is not None and pg_type.kind == _DOMAIN:
            oid, typmod = pg_type.base, pg_type.typmod if pg_type.typmod >= 0 else typmod
            pg_type = self._types.get(oid)
        return oid, typmod

    def _element(self, oid: int) -> int | None:
        pg_type = self._types.get(oid)
        if pg_type is None:
            return _ARRAYS.get(oid)
        is_array = pg_type.category == _ARRAY and pg_type.element and oid not in _VECTORS
        return pg_type.element if is_array else None

    def _delimiter(self, element: int) -> str:
        pg_type = self._types.get(self._base(element, -1)[0])
        return "," if pg_type is None else pg_type.delimiter


@lru_cache(maxsize=1000)
def _scalar(oid: int, typmod: int) -> _TypeMapping:
    if oid != NUMERIC:
        return _SCALARS.get(oid, _TEXT)
    if typmod < 0:
        return _TEXT
    precision, scale = _precision_and_scale(typmod)
    if precision > MAX_PRECISION or not 0 <= scale <= precision:
        return _TEXT
    kind = pa.decimal128(precision, scale)
    return _TypeMapping(kind, numbers(kind))


def _precision_and_scale(typmod: int) -> tuple[int, int]:
    return ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024
