"""Checks whether a number fits a double or a float, and casts without changing values.

Inference is strict. A decimal text keeps its value in a double if the double, written with as many
digits as the text has, gives the text back: `0.1` and `0.10000000000000001` do. An integer, which
may be an id, keeps its value only if the double is exactly that number: `9007199254740993` is not.

A column that was declared `double` or `float` rounds a number with a decimal point or an exponent
to the nearest value, but never to infinity or zero. An integer must be exact there too, or be the
shortest way to write the value: JavaScript writes 2^60 as `1152921504606847000`.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Ints = npt.NDArray[np.int64]


_EXACT_DOUBLES = 2.0**53
# Every text of at most 15 digits keeps its value in a double of at least this size.
_TINY = 1e-290
_LONG = 16
_MAX_RUN = 64
_STRIDE = 4
_DECIMAL_DIGITS = 38
_ZERO, _DOT, _NINE = ord("0"), ord("."), ord("9")
_NUMBER = r"^[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_WHOLE = r"^-?[0-9]+$"
# An exponent that ends a JSON number, quoted or not: of two digits but not `05`, or of more.
_SMALL_POWER = re.compile(rb"(?!0[0-9][^0-9])[0-9]+(?![^,}\]\s\"])")
_TINY_POWER = re.compile(rb"[0-9]+(?![^,}\]\s])")
_TINY_DECIMAL = r"[eE]-(?:[1-9][0-9]|0[0-9]{2})|0{38}"
# With this many zeros after the decimal point, a two-digit exponent makes a number zero.
_MANY_ZEROS = b"0" * 200


def fits_double(number: Decimal | int) -> bool:
    """Return whether a number keeps its value as a double."""
    if isinstance(number, int):
        return abs(number) <= _EXACT_DOUBLES or (number.bit_length() < 1024 and _is_exact(number))
    try:
        double = float(number)
    except OverflowError:  # a whole number of more than 308 digits
        return False
    if Decimal(repr(double)) == number:
        return True
    digits = len(number.as_tuple().digits)
    return number.is_finite() and Decimal(f"{double:.{digits - 1}e}") == number


def _is_exact(number: int) -> bool:
    return int(float(number)) == number


def rounds_to_double(number: Decimal | int) -> bool:
    """Return whether a column that was declared `double` takes a number.

    Args:
        number: an `int` if it was written with digits alone.
    """
    try:
        double = float(number)
    except OverflowError:
        return False
    if isinstance(number, Decimal):
        return math.isfinite(double) and (double != 0 or number == 0)
    return int(double) == number or Decimal(repr(double)) == number


def rounds_to_float(number: Decimal | float) -> bool:
    """Return whether a column that was declared `float` takes a number that rounds to a double."""
    if isinstance(number, Decimal):
        with np.errstate(over="ignore", under="ignore"):
            single = np.float32(float(number))
        return bool(np.isfinite(single)) and (single != 0 or number == 0)
    return floats_fit(pa.array([float(number)]))


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays that hold the values of an array: itself, or those of its members."""
    if pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from leaves(array.field(index))
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from leaves(array.values)
    elif pa.types.is_map(array.type):
        yield from leaves(array.keys)
        yield from leaves(array.items)
    else:
        yield array


def doubles_in(columns: Iterable[pa.ChunkedArray]) -> list[pa.Array]:
    """Return the doubles of columns, also those within structs and lists."""
    chunks = (chunk for column in columns for chunk in column.chunks)
    return [leaf for chunk in chunks for leaf in leaves(chunk) if pa.types.is_float64(leaf.type)]


def floats_fit(doubles: pa.Array) -> bool:
    """Return whether every double may become a float.

    Fractions are rounded. A whole number must be exact, or the shortest way to write the float.
    """
    with np.errstate(over="ignore", under="ignore"):
        values = _numpy(doubles)
        singles = values.astype(np.float32)
    is_changed = (values != singles) & (values == values)  # noqa: PLR0124 - not a number
    if not is_changed.any():
        return True
    values, singles = values[is_changed], singles[is_changed]
    if (np.isinf(singles) | (singles == 0)).any():
        return False
    is_whole = values == np.trunc(values)
    shortest = singles[is_whole].astype(str).astype(np.float64)
    return bool((shortest == values[is_whole]).all())


def doubles_round(text: pa.Buffer, arrays: list[pa.Array]) -> bool:
    """Return whether columns that were declared `double` take the numbers that Arrow read.

    Costs little: only zero, and integers of 16 digits or more, can differ from the number in the
    text. False also in case of doubt: then the slow path decides.

    Args:
        text: the text that Arrow read.
        arrays: the doubles of all columns.
    """
    values = [_numpy(array) for array in arrays if len(array)]
    if any((doubles == 0).any() for doubles in values) and (
        _has_exponent(text, 3, _TINY_POWER) or _MANY_ZEROS in memoryview(text).tobytes()
    ):
        return False
    data = np.frombuffer(text, np.uint8)
    if not any((np.abs(doubles) >= _EXACT_DOUBLES).any() for doubles in values):
        return True
    return _integers_fit(data, _long_runs(data), values, rounds_to_double)


def doubles_are_exact(text: pa.Buffer, arrays: list[pa.Array]) -> bool:
    """Return whether the numbers of a text keep their value in the doubles that Arrow read.

    Costs little: only a number of 16 digits or more can lose digits, or one that is too close to
    zero or too large. False also for a block that has such a number elsewhere, such as in a string:
    then the slow path decides.

    Args:
        text: the text that Arrow read.
        arrays: the doubles of all columns.
    """
    values = [_numpy(array) for array in arrays if len(array)]
    if not values:
        return True
    if any(np.isinf(doubles).any() for doubles in values):  # `2e308`
        return False
    data = np.frombuffer(text, np.uint8)
    is_tiny = any((np.abs(doubles) < _TINY).any() for doubles in values)
    if is_tiny and _has_exponent(text, 3, _TINY_POWER):
        return False
    begins = _long_runs(data)
    if not len(begins):
        return True
    return _integers_fit(data, begins, values, fits_double) and _fractions_are_exact(data, begins)


def decimals_are_safe(text: pa.Buffer) -> bool:
    """Return whether Arrow can safely read decimals from a text.

    A number too close to zero, such as `1e-999999999`, crashes the process (pyarrow 26), also as
    a string, and with letters that are escaped.
    """
    content = text.to_pybytes()
    if b"0" * 38 in content or b"\\u00" in content:
        return False
    return not _has_exponent(text, 2, _SMALL_POWER)


def cast_decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as decimals; raises `pa.ArrowInvalid` if one does not fit, or may not."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    # Arrow parses within 128 bits, where a 39th digit makes another number.
    if longest > _DECIMAL_DIGITS or pc.any(pc.match_substring_regex(texts, _TINY_DECIMAL)).as_py():
        raise pa.ArrowInvalid("a number with too many digits, or too close to zero")
    # So does an exponent, whatever the type.
    if wraps_around(kind) or pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        largest = np.abs(_numpy(texts.cast(pa.float64()).drop_null()))
        if (largest >= 10.0 ** (kind.precision - kind.scale)).any():
            raise pa.ArrowInvalid(f"a number that may be too large for {kind}")
    return texts.cast(kind)


def wraps_around(kind: pa.DataType) -> bool:
    """Return whether Arrow may misread a number that is too large for a decimal type.

    Arrow 26 multiplies by the scale within 128 bits, and checks the precision before or after
    that: `4e20` becomes 59717633079061536536.6 as `decimal(38,18)`. With 256 bits it never does.
    """
    return bool(pa.types.is_decimal128(kind) and kind.precision + kind.scale > _DECIMAL_DIGITS)


def _has_exponent(text: pa.Buffer, digits: int, power: re.Pattern[bytes]) -> bool:
    """Return whether a text has a number with a negative exponent of at least this many digits.

    Args:
        text: JSON.
        digits: how many digits.
        power: matches the exponent and what follows it; in a UUID that is another dash.
    """
    data = np.frombuffer(text, np.uint8)
    signs = np.flatnonzero(data[2 : len(data) - digits] == ord("-")) + 2
    # `| 32` turns an upper-case letter into a lower-case one.
    signs = signs[(data[signs - 1] | 32) == ord("e")]
    for step in (-2, *range(1, digits + 1)):
        signs = signs[_is_digit(data[signs + step])]
    view = memoryview(text)
    return any(power.match(view, sign + 1) is not None for sign in signs.tolist())


def cast_exactly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array cast to another type of the same family, with every value unchanged.

    Members of structs are matched by name; those that the array lacks are null.

    Raises:
        pa.ArrowInvalid: a value does not fit, or the types are of different families.
    """
    if array.type == kind or pa.types.is_null(array.type):
        return array if array.type == kind else pa.nulls(len(array), kind)
    if pa.types.is_nested(array.type) and type(array.type) is type(kind):
        return _cast_nested(array, kind)
    if not any(is_member(array.type) and is_member(kind) for is_member in _FAMILIES):
        raise pa.ArrowInvalid(f"{array.type} is not {kind}")
    if pa.types.is_float32(kind):
        array = array.cast(pa.float64())
        if not floats_fit(array):
            raise pa.ArrowInvalid(f"a value is not {kind}")
    if wraps_around(kind):
        array = array.cast(pa.decimal256(kind.precision, kind.scale))
    return array.cast(kind)


def _cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        members = [
            pa.nulls(len(array), member.type)
            if (index := array.type.get_field_index(member.name)) < 0
            else cast_exactly(array.field(index), member.type)
            for member in kind
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys = cast_exactly(array.keys, kind.key_type)
        items = cast_exactly(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    values = cast_exactly(array.values, kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_digits(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


# Families of types between which values are cast; Arrow's cast then refuses any loss.
_FAMILIES = (_is_number, _is_digits, _is_binary, pa.types.is_timestamp)


def _numpy(array: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)


def _is_digit(data: Bytes) -> npt.NDArray[np.bool_]:
    """Flag the bytes that are digits, points or, for the sake of speed, slashes."""
    return (data - np.uint8(_DOT)) <= _NINE - _DOT


def _long_runs(data: Bytes) -> Ints:
    """Return where runs of at least 16 digits and points begin.

    A run of 16 covers four bytes that are four apart, so most of the text is never read.
    """
    if len(data) < _LONG:
        return np.empty(0, np.int64)
    sampled = _is_digit(data[::_STRIDE])
    four = sampled[:-3] & sampled[1:-2] & sampled[2:-1] & sampled[3:]
    samples = np.flatnonzero(four) * _STRIDE
    for step in (2, 6, 10, 1, 3, 5, 7, 9, 11):
        samples = samples[_is_digit(data[samples + step])]
    begins = samples
    for _ in range(_STRIDE):
        before = np.maximum(begins - 1, 0)
        begins = np.where(_is_digit(data[before]), before, begins)
    # The first sample of a run represents the rest of it.
    begins = begins[samples - begins < _STRIDE]
    last = np.minimum(begins + _LONG - 1, len(data) - 1)
    is_long = last - begins == _LONG - 1
    for step in range(13, _LONG):
        is_long &= _is_digit(data[np.minimum(begins + step, last)])
    runs: Ints = begins[is_long]
    return runs


def _run_ends(data: Bytes, begins: Ints, parts: bytes) -> Ints | None:
    """Return where runs of these bytes end; None if one is very long."""
    is_part = np.zeros(256, np.bool_)
    is_part[list(parts)] = True
    ends = begins + _LONG
    growing = np.arange(len(begins))
    for _ in range(_MAX_RUN):
        growing = growing[ends[growing] < len(data)]
        growing = growing[is_part[data[ends[growing]]]]
        if not len(growing):
            return ends
        ends[growing] += 1
    return None


def _fractions_are_exact(data: Bytes, begins: Ints) -> bool:
    ends = _run_ends(data, begins, b"0123456789")
    if ends is None:
        return False
    # Most long numbers are integers: no decimal point within the first digits, nor after the last.
    is_fraction = np.isin(data[np.minimum(ends, len(data) - 1)], list(b".eE"))
    for step in range(_LONG):
        is_fraction |= data[begins + step] == _DOT
    begins = begins[is_fraction]
    ends = _run_ends(data, begins, b"0123456789.eE+-")
    if ends is None:
        return False
    texts = _texts(data, begins, ends)
    return _all_fit(texts.filter(pc.match_substring_regex(texts, _NUMBER)))


def _integers_fit(
    data: Bytes,
    begins: Ints,
    values: list[npt.NDArray[np.float64]],
    fits: Callable[[int], bool],
) -> bool:
    """Return whether the integers of a text that became these doubles fit them.

    Args:
        data: the text.
        begins: where its long numbers begin.
        values: the doubles.
        fits: tells whether an integer fits its double.
    """
    large = np.concatenate([doubles[np.abs(doubles) >= _EXACT_DOUBLES] for doubles in values])
    if not len(large):
        return True
    ends = _run_ends(data, begins, b"0123456789.eE")
    if ends is None or np.isinf(large).any():
        return False
    texts = _texts(data, begins, ends)
    texts = texts.filter(pc.match_substring_regex(texts, _WHOLE))
    # Other columns hold other integers, such as ids.
    is_large = np.isin(_numpy(texts.cast(pa.float64())), np.unique(np.abs(large)))
    integers = texts.filter(pa.array(is_large)).unique().to_pylist()
    return all(fits(int(text)) for text in integers)


def texts_fit_doubles(texts: pa.Array) -> bool:
    """Return whether numbers, written as JSON writes them, keep their value as doubles."""
    is_doubtful = pc.or_(
        pc.greater_equal(pc.utf8_length(texts), _LONG), pc.match_substring_regex(texts, "[eE]")
    )
    return _all_fit(texts.filter(is_doubtful, null_selection_behavior="drop"))


def _all_fit(texts: pa.Array) -> bool:
    written = texts.cast(pa.float64()).cast(pa.string())
    is_whole = pc.match_substring_regex(texts, _WHOLE)
    if not all(fits_double(int(text)) for text in texts.filter(is_whole).to_pylist()):
        return False
    doubtful = texts.filter(pc.and_not(pc.not_equal(texts, written), is_whole)).to_pylist()
    return all(fits_double(Decimal(text)) for text in doubtful)


def _texts(data: Bytes, begins: Ints, ends: Ints) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int32)
    positions = np.repeat(begins - offsets[:-1], ends - begins) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[positions])]
    return pa.Array.from_buffers(pa.string(), len(begins), buffers)
