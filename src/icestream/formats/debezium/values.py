"""Converts Debezium's encoded values to Arrow types."""

from __future__ import annotations

import base64
import binascii
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats.values import nanos_since_epoch, parse_date, render_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import date

    Convert = Callable[[pa.Array], pa.Array]


class MalformedValueError(ValueError):
    """A value does not have the form that its type requires."""

    def __init__(self, value: Any, form: str) -> None:
        super().__init__(f"{render_value(value)} is not {form}")


def from_base64(text: str | None) -> bytes | None:
    """Return bytes that were written in base64.

    Raises:
        MalformedValueError: the text is not base64.
    """
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedValueError(text, "base64") from None


_MAX_PRECISION = 38
_BYTES = 16
# A PostgreSQL number has at most 131,072 digits before the decimal point and 16,383 after it.
_MAX_SCALE = 150_000
_EXACT = Context(prec=2 * _MAX_SCALE, Emax=MAX_EMAX, Emin=MIN_EMIN)


def decimals(parameters: Mapping[str, str], *, is_text: bool) -> tuple[pa.DataType, Convert]:
    """Return the type of decimals and their converter; text for those that no table can hold.

    Args:
        parameters: of the type: `scale`, and `connect.decimal.precision` if it is limited.
        is_text: whether the bytes are in base64.
    """
    scale = int(parameters.get("scale", 0))
    digits = int(parameters.get("connect.decimal.precision", _MAX_PRECISION))
    if not 0 < digits <= _MAX_PRECISION or not 0 <= scale <= digits:
        return pa.string(), lambda array: _texts(_unscaled(array, is_text=is_text), scale)
    kind, limit = pa.decimal128(digits, scale), 10**digits

    def read(array: pa.Array) -> pa.Array:
        values = list(_unscaled(array, is_text=is_text))
        for value in values:
            if value is not None and not -limit < value < limit:
                raise MalformedValueError(_plain_text(value, scale), f"a decimal({digits},{scale})")
        return _from_unscaled(values, kind)

    return kind, read


def _from_unscaled(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Build decimals from unscaled integers, four times as fast as Arrow does from `Decimal`."""
    data = b"".join([(value or 0).to_bytes(_BYTES, "little", signed=True) for value in values])
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])


def any_scale(*, is_text: bool) -> Convert:
    """Return the converter of numbers that carry their scale, to text with all their digits."""

    def read(array: pa.Array) -> pa.Array:
        scales = array.field("scale").to_pylist()
        values = list(_unscaled(array.field("value"), is_text=is_text))
        if array.null_count:
            valid = array.is_valid().to_pylist()
            values = [
                value if is_valid else None for value, is_valid in zip(values, valid, strict=True)
            ]
        texts = [
            None if value is None else _plain_text(value, scale)
            for value, scale in zip(values, scales, strict=True)
        ]
        return pa.array(texts, pa.string())

    return read


def as_bytes(value: Any, scale: int) -> bytes:
    """Return the bytes of a number with a scale.

    Raises:
        MalformedValueError: it has more decimal places, or far too many digits before the point.
    """
    number = Decimal(value)
    if not number.is_finite() or number.adjusted() > _MAX_SCALE:
        raise MalformedValueError(value, f"a decimal of scale {scale}")
    whole = number.scaleb(scale, _EXACT)
    if whole != whole.to_integral_value(context=_EXACT):
        raise MalformedValueError(value, f"a decimal of scale {scale}")
    digits = int(whole)
    return digits.to_bytes(digits.bit_length() // 8 + 1, "big", signed=True)


def _unscaled(array: pa.Array, *, is_text: bool) -> Iterable[int | None]:
    raw: list[bytes | None] = array.to_pylist()
    if is_text:
        raw = [from_base64(text) for text in array.to_pylist()]
    return [None if value is None else int.from_bytes(value, "big", signed=True) for value in raw]


def _texts(values: Iterable[int | None], scale: int) -> pa.Array:
    return pa.array(
        [None if value is None else _plain_text(value, scale) for value in values], pa.string()
    )


def _plain_text(value: int, scale: int | None) -> str:
    """Write a number as PostgreSQL does: all digits, no exponent.

    Raises:
        MalformedValueError: no database has such a scale, or so many digits.
    """
    if scale is None or abs(scale) > _MAX_SCALE:
        raise MalformedValueError(scale, "a scale")
    if value.bit_length() > 3 * _MAX_SCALE:
        raise MalformedValueError(f"{value.bit_length()} bits", "a decimal")
    return f"{Decimal(value).scaleb(-scale, _EXACT):f}"


_DAY_MICROS = 86_400_000_000
_LOCAL, _ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
# The years 1 to 9999. Connectors write infinity as a date outside of them.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_INFINITIES = ("infinity", "-infinity")


def days(array: pa.Array) -> pa.Array:
    """Read epoch days."""
    return _between(array, _FIRST_DAY, _LAST_DAY).cast(pa.date32())


def millis_of_day(array: pa.Array) -> pa.Array:
    """Read milliseconds since midnight as a time of day."""
    return micros_of_day(pc.multiply(array.cast(pa.int64()), 1000))


def micros_of_day(array: pa.Array) -> pa.Array:
    """Read microseconds since midnight as a time of day; MySQL's range goes to `-838:59:59`."""
    times = [None if value is None else _time_text(value) for value in array.to_pylist()]
    return pa.array(times, pa.string())


def nanos_of_day(array: pa.Array) -> pa.Array:
    """Read nanoseconds since midnight as a time of day."""
    times = [None if value is None else _time_text(value, 9) for value in array.to_pylist()]
    return pa.array(times, pa.string())


def millis(array: pa.Array) -> pa.Array:
    """Read epoch milliseconds."""
    first, last = _FIRST_DAY * 86_400_000, (_LAST_DAY + 1) * 86_400_000 - 1
    return _between(array, first, last).cast(pa.timestamp("ms")).cast(_LOCAL)


def micros(array: pa.Array) -> pa.Array:
    """Read epoch microseconds."""
    first, last = _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1
    return _between(array, first, last).cast(_LOCAL)


def nanos(array: pa.Array) -> pa.Array:
    """Read epoch nanoseconds; values with a fraction of a microsecond become null."""
    timestamps = array.cast(pa.timestamp("ns"))
    whole = timestamps.cast(_LOCAL, safe=False)
    is_exact = pc.equal(whole.cast(pa.timestamp("ns")), timestamps)
    return pc.if_else(is_exact, whole, pa.scalar(None, _LOCAL))


def zoned(array: pa.Array) -> pa.Array:
    """Read ISO timestamps with a time zone."""
    try:
        return array.cast(_ZONED)
    except pa.ArrowInvalid:
        return _each(array, _timestamp, _ZONED)


def iso_days(array: pa.Array) -> pa.Array:
    """Read ISO dates, ignoring their time zone."""
    return _each(array, _date, pa.date32())


def iso_times(array: pa.Array) -> pa.Array:
    """Read times of day, ignoring their time zone."""
    return _each(array, lambda text: text.removesuffix("Z"), pa.string())


def iso_timestamps(array: pa.Array) -> pa.Array:
    """Read ISO timestamps, ignoring their time zone."""
    return _each(array, _timestamp, _LOCAL)


def _time_text(units: int, digits: int = 6) -> str:
    """Return a time of day from its units since midnight; `digits` are a unit's decimal places."""
    seconds, left = divmod(abs(units), 10**digits)
    text = f"{'-' if units < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}"
    fraction = f".{left:0{digits}}".rstrip("0") if left else ""
    return f"{text}:{seconds % 60:02}{fraction}"


def _between(array: pa.Array, first: int, last: int) -> pa.Array:
    """Return numbers, with null in place of those out of range."""
    bounds = pc.min_max(array)
    if bounds["min"].as_py() is None or (
        bounds["min"].as_py() >= first and bounds["max"].as_py() <= last
    ):
        return array
    is_inside = pc.and_(pc.greater_equal(array, first), pc.less_equal(array, last))
    return pc.if_else(is_inside, array, pa.scalar(None, array.type))


def _each(array: pa.Array, read: Callable[[str], object], kind: pa.DataType) -> pa.Array:
    texts = array.to_pylist()
    return pa.array([None if text is None else read(text) for text in texts], kind)


def _timestamp(text: str) -> int | None:
    if _is_out_of_range(text):
        return None
    try:
        micros, left = divmod(nanos_since_epoch(text), 1000)
    except ValueError:
        raise MalformedValueError(text, "a timestamp") from None
    return None if left else micros


def _is_out_of_range(text: str) -> bool:
    """Return whether a text is a timestamp before the year 1 or after 9999, or infinite."""
    return text in _INFINITIES or text[:1] in ("+", "-")


def _date(text: str) -> date | None:
    if _is_out_of_range(text):
        return None
    try:
        return parse_date(text.removesuffix("Z"))
    except ValueError:
        raise MalformedValueError(text, "a date") from None
