"""Converts parsed JSON values to the types of columns, and reads dates and times from text."""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.formats.exact_numbers import rounds_to_double, rounds_to_float
from icestream.schemas.spark_types import sql_type

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert = Callable[[Any], Any]


TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ]((?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.(\d{1,9}))?)?)?)"
    r"(Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.(\d{1,9}))?)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def nanos_since_epoch(text: str) -> int:
    """Return a timestamp in epoch nanoseconds; without a time zone, it is taken as UTC.

    Raises:
        ValueError: the text is not a timestamp.
    """
    match = TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, clock, fraction, zone = match.groups()
    try:
        seconds = (clock or "00").partition(".")[0]
        timestamp = datetime.fromisoformat(f"{day}T{seconds}+00:00") - _offset(zone)
    except OverflowError as exc:
        raise ValueError(text) from exc
    whole = (timestamp - _EPOCH) // timedelta(microseconds=1) * 1000
    return whole + int((fraction or "").ljust(9, "0"))


def micros_since_epoch(text: str) -> int:
    """Return a timestamp in epoch microseconds; without a time zone, it is taken as UTC.

    Raises:
        ValueError: the text is not a timestamp, or has a fraction of a microsecond.
    """
    micros, left = divmod(nanos_since_epoch(text), 1000)
    if left:
        raise ValueError(text)
    return micros


def parse_date(text: str) -> date:
    """Parse `YYYY-MM-DD`; raises ValueError for any other text."""
    if _DATE.fullmatch(text) is None:
        raise ValueError(text)
    return date.fromisoformat(text)


def parse_time(text: str) -> time:
    """Parse `HH:MM[:SS[.ffffff]]`; raises ValueError for any other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(text)
    micros, left = divmod(int((match[2] or "").ljust(9, "0")), 1000)
    if left:
        raise ValueError(text)
    return time.fromisoformat(text.partition(".")[0]).replace(microsecond=micros)


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone == "Z":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -size if zone[0] == "-" else size


_MAX_LENGTH = 60
# A number as JSON writes it. `007`, `+7`, `1_000` and ` 7` are not numbers but text.
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# A number in a text, for a column that was declared to be a decimal.
_DIGITS = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WIDE = Context(prec=60)
_LOSSY = "its value would change"
_FINER = "Declare the column as `string` and cast it in a `select`"


class MisfitError(ValueError):
    """A value does not fit the type of its column; `path` leads to it from the column."""

    def __init__(self, value: Any, kind: str, path: str = "") -> None:
        super().__init__(kind)
        self.value, self.kind, self.path = value, kind, path

    def reason(self, column: str) -> str:
        """Return what is wrong, worded the same for the same fault."""
        article = "an" if self.kind[0] in "ai" else "a"
        value = render_value(self.value)
        return f"column {column + self.path!r}: {value} is not {article} {self.kind}"


def render_value(value: Any) -> str:
    """Return a value as text that is short enough for a message."""
    try:
        text = repr(value) if isinstance(value, str) else json_text(value)
    except RecursionError:
        text = "[[..."
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "..."


def json_text(value: Any) -> str:
    """Return a parsed JSON value as JSON text; numbers keep their digits, members their order."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        members = (f"{json_text(name)}:{json_text(item)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join([json_text(item) for item in value]) + "]"
    return json.dumps(value, ensure_ascii=False)


def type_name(kind: pa.DataType) -> str:
    """Return what a value of a type is written as, for messages."""
    name = sql_type(kind)
    return "binary in base64" if name == "binary" else name


@lru_cache(maxsize=1024)
def converter(kind: pa.DataType) -> Convert:
    """Return a function that makes a parsed JSON value fit `kind` or raises `MisfitError`."""
    for is_kind, build in _BUILDERS:
        if is_kind(kind):
            convert = build(kind)
            return lambda value: None if value is None else convert(value)
    raise TypeError(f"no JSON value becomes {kind}")


def _integer(kind: pa.DataType) -> Convert:
    name, bits = type_name(kind), kind.bit_width
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        number = value
        if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < 20:
            number = int(value) if value == value.to_integral_value() else value
        if type(number) is not int or not lowest <= number <= highest:
            raise MisfitError(value, name)
        return number

    return convert


def _floating(kind: pa.DataType) -> Convert:
    name, is_single = type_name(kind), not pa.types.is_float64(kind)

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise MisfitError(value, name)
        if not isinstance(value, float) and not rounds_to_double(value):
            raise MisfitError(value, f"{name}: {_LOSSY}")
        if is_single and not rounds_to_float(value):
            raise MisfitError(value, f"{name}: {_LOSSY}")
        return float(value)

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    name, unit = type_name(kind), Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if isinstance(value, str) and _DIGITS.fullmatch(value) is None:
            raise MisfitError(value, name)
        if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
            raise MisfitError(value, name)
        try:
            number = Decimal(value).quantize(unit, context=_WIDE)
        except (InvalidOperation, ValueError):
            raise MisfitError(value, name) from None
        if number != Decimal(value) or len(number.as_tuple().digits) > kind.precision:
            raise MisfitError(value, name)
        return number

    return convert


def _boolean(kind: pa.DataType) -> Convert:
    name = type_name(kind)

    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise MisfitError(value, name)
        return value

    return convert


def _text(kind: pa.DataType) -> Convert:
    name = type_name(kind)

    def convert(value: Any) -> str:
        # A producer may turn a string field into a number: its text loses nothing.
        text = value if isinstance(value, str) else json_text(value)
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON's escapes can write
            raise MisfitError(ascii(text), name) from None
        return text

    return convert


def _binary(kind: pa.DataType) -> Convert:
    name = type_name(kind)
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None

    def convert(value: Any) -> bytes:
        try:
            raw = base64.b64decode(value, validate=True) if isinstance(value, str) else None
        except (binascii.Error, ValueError):
            raw = None
        if raw is None or (width is not None and len(raw) != width):
            raise MisfitError(value, name)
        return raw

    return convert


def _timestamp(kind: pa.DataType) -> Convert:
    digits = {"ns": 9, "us": 6, "ms": 3, "s": 0}[kind.unit]
    nanos: int = 10 ** (9 - digits)

    def parse(text: str) -> int:
        # Arrow's converter takes whole numbers of the type's own unit for timestamps.
        units, left = divmod(nanos_since_epoch(text), nanos)
        if left:
            raise MisfitError(
                text, f"{type_name(kind)}: it has more than {digits} decimals. {_FINER}"
            )
        if not -(1 << 63) <= units < 1 << 63:  # nanoseconds go from 1677 to 2262
            raise ValueError(text)
        return units

    return _from_text(kind, parse)


def _date(kind: pa.DataType) -> Convert:
    return _from_text(kind, parse_date)


def _time(kind: pa.DataType) -> Convert:
    return _from_text(kind, parse_time)


def _from_text(kind: pa.DataType, parse: Callable[[str], Any]) -> Convert:
    name = type_name(kind)

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            raise MisfitError(value, name)
        try:
            return parse(value)
        except MisfitError:
            raise
        except ValueError:
            raise MisfitError(value, name) from None

    return convert


def _list(kind: pa.DataType) -> Convert:
    name, inner = type_name(kind), converter(kind.value_type)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise MisfitError(value, name)
        try:
            return [inner(item) for item in value]
        except MisfitError as exc:
            raise MisfitError(exc.value, exc.kind, "[]" + exc.path) from None

    return convert


def _map(kind: pa.DataType) -> Convert:
    name, key, inner = type_name(kind), map_key(kind.key_type), converter(kind.item_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise MisfitError(value, name)
        try:
            return [(key(name), inner(item)) for name, item in value.items()]
        except MisfitError as exc:
            raise MisfitError(exc.value, exc.kind, "{}" + exc.path) from None

    return convert


def map_key(kind: pa.DataType) -> Convert:
    """Return a function that makes a map's key, always text in JSON, fit `kind`."""
    convert = converter(kind)
    if not pa.types.is_integer(kind):
        return convert
    whole = re.compile(r"0|-?[1-9][0-9]{0,18}")
    return lambda text: convert(int(text) if whole.fullmatch(text) else text)


def _struct(kind: pa.DataType) -> Convert:
    name, members = type_name(kind), [kind.field(index) for index in range(kind.num_fields)]
    inner = [(member.name, converter(member.type)) for member in members]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise MisfitError(value, name)
        row = {}
        for member, convert_member in inner:
            try:
                row[member] = convert_member(value.get(member))
            except MisfitError as exc:  # noqa: PERF203 - adds the member to the error's path
                raise MisfitError(exc.value, exc.kind, f".{member}{exc.path}") from None
        return row

    return convert


_BUILDERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Convert]], ...] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _text),
    (pa.types.is_large_string, _text),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_time, _time),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_large_list, _list),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_fixed_size_binary, _binary),
)
