"""Texts of single values, as PostgreSQL prints them, as Arrow arrays: a column at a step.

Each function takes strings and returns values of its type, with null for a text that the type can't
hold. Sessions print as `SESSION_SETTINGS` say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    FromText = Callable[[pa.Array], pa.Array]

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
