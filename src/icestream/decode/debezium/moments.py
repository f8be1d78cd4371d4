"""Dates, times and timestamps, of the many ways in which Debezium writes them.

What no table can hold (infinity, years past 9999, fractions of a microsecond) is null. A time of
day is text: Spark has no type for it, MySQL's may be negative or longer than a day, and PostgreSQL
has 24:00.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.decode.debezium.faults import OddValueError
from icestream.decode.moments import nanos_since_epoch, parse_date

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

_DAY_MICROS = 86_400_000_000
_LOCAL, _ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
# From the year 1 to the year 9999: what lies outside is what connectors make of infinity.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_BEYOND = ("infinity", "-infinity")


def days(array: pa.Array) -> pa.Array:
    """Read days since 1970."""
    return _between(array, _FIRST_DAY, _LAST_DAY).cast(pa.date32())


def millis_of_day(array: pa.Array) -> pa.Array:
    """Read milliseconds since midnight as a time of day."""
    return micros_of_day(pc.multiply(array.cast(pa.int64()), 1000))


def micros_of_day(array: pa.Array) -> pa.Array:
    """Read microseconds since midnight as a time of day, of MySQL any time: `-838:59:59`."""
    times = [None if value is None else _clock(value) for value in array.to_pylist()]
    return pa.array(times, pa.string())


def nanos_of_day(array: pa.Array) -> pa.Array:
    """Read nanoseconds since midnight as a time of day."""
    times = [None if value is None else _clock(value, 9) for value in array.to_pylist()]
    return pa.array(times, pa.string())


def millis(array: pa.Array) -> pa.Array:
    """Read milliseconds since 1970."""
    first, last = _FIRST_DAY * 86_400_000, (_LAST_DAY + 1) * 86_400_000 - 1
    return _between(array, first, last).cast(pa.timestamp("ms")).cast(_LOCAL)


def micros(array: pa.Array) -> pa.Array:
    """Read microseconds since 1970."""
    first, last = _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1
    return _between(array, first, last).cast(_LOCAL)


def nanos(array: pa.Array) -> pa.Array:
    """Read nanoseconds since 1970; one with a fraction of a microsecond is null."""
    moments = array.cast(pa.timestamp("ns"))
    whole = moments.cast(_LOCAL, safe=False)
    is_exact = pc.equal(whole.cast(pa.timestamp("ns")), moments)
    return pc.if_else(is_exact, whole, pa.scalar(None, _LOCAL))


def zoned(array: pa.Array) -> pa.Array:
    """Read ISO texts with a zone."""
    try:
        return array.cast(_ZONED)
    except pa.ArrowInvalid:
        return _each(array, _moment, _ZONED)


def iso_days(array: pa.Array) -> pa.Array:
    """Read ISO dates, with a zone that means nothing."""
    return _each(array, _day, pa.date32())


def iso_times(array: pa.Array) -> pa.Array:
    """Read times of day, with a zone that means nothing."""
    return _each(array, lambda text: text.removesuffix("Z"), pa.string())


def iso_moments(array: pa.Array) -> pa.Array:
    """Read ISO texts whose zone means nothing."""
    return _each(array, _moment, _LOCAL)


def _clock(units: int, digits: int = 6) -> str:
    """Return a time of day that was written in units of the given decimals of a second."""
    seconds, left = divmod(abs(units), 10**digits)
    text = f"{'-' if units < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}"
    fraction = f".{left:0{digits}}".rstrip("0") if left else ""
    return f"{text}:{seconds % 60:02}{fraction}"


def _between(array: pa.Array, first: int, last: int) -> pa.Array:
    """Return numbers, null in place of those that lie outside."""
    found = pc.min_max(array)
    if found["min"].as_py() is None or (
        found["min"].as_py() >= first and found["max"].as_py() <= last
    ):
        return array
    is_inside = pc.and_(pc.greater_equal(array, first), pc.less_equal(array, last))
    return pc.if_else(is_inside, array, pa.scalar(None, array.type))


def _each(array: pa.Array, read: Callable[[str], object], kind: pa.DataType) -> pa.Array:
    texts = array.to_pylist()
    return pa.array([None if text is None else read(text) for text in texts], kind)


def _moment(text: str) -> int | None:
    if _is_beyond(text):
        return None
    try:
        micros, left = divmod(nanos_since_epoch(text), 1000)
    except ValueError:
        raise OddValueError(text, "a timestamp") from None
    return None if left else micros


def _is_beyond(text: str) -> bool:
    """Tell whether a text names a moment before the year 1 or after 9999, or none at all."""
    return text in _BEYOND or text[:1] in ("+", "-")


def _day(text: str) -> date | None:
    if _is_beyond(text):
        return None
    try:
        return parse_date(text.removesuffix("Z"))
    except ValueError:
        raise OddValueError(text, "a date") from None
