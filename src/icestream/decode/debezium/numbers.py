"""Decimal numbers, which Connect writes as the bytes of a whole number and a scale."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.decode.debezium.faults import OddValueError, from_base64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Convert = Callable[[pa.Array], pa.Array]

_MOST_DIGITS = 38
_BYTES = 16
# PostgreSQL's numbers have at most 131,072 digits before the point and 16,383 behind it.
_LARGEST_SCALE = 150_000
_EXACT = Context(prec=2 * _LARGEST_SCALE, Emax=MAX_EMAX, Emin=MIN_EMIN)


def decimals(told: Mapping[str, str], *, is_text: bool) -> tuple[pa.DataType, Convert]:
    """Return the type of decimals and what reads them; text for those that no table can hold.

    Args:
        told: the type's parameters: `scale`, and `connect.decimal.precision` if it is limited.
        is_text: the bytes are in base64.
    """
    scale = int(told.get("scale", 0))
    digits = int(told.get("connect.decimal.precision", _MOST_DIGITS))
    if not 0 < digits <= _MOST_DIGITS or not 0 <= scale <= digits:
        return pa.string(), lambda array: _texts(_whole(array, is_text=is_text), scale)
    kind, limit = pa.decimal128(digits, scale), 10**digits

    def read(array: pa.Array) -> pa.Array:
        values = list(_whole(array, is_text=is_text))
        for value in values:
            if value is not None and not -limit < value < limit:
                raise OddValueError(_plain(value, scale), f"a decimal({digits},{scale})")
        return _from_whole(values, kind)

    return kind, read


def _from_whole(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Build decimals from their digits; Arrow's own way, over Decimal, takes four times as long."""
    held = b"".join([(value or 0).to_bytes(_BYTES, "little", signed=True) for value in values])
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(held)])


def any_scale(*, is_text: bool) -> Convert:
    """Return what reads numbers that bring their scale, as text with all their digits."""

    def read(array: pa.Array) -> pa.Array:
        scales = array.field("scale").to_pylist()
        values = list(_whole(array.field("value"), is_text=is_text))
        if array.null_count:
            is_there = array.is_valid().to_pylist()
            values = [
                value if there else None for value, there in zip(values, is_there, strict=True)
            ]
        texts = [
            None if value is None else _plain(value, scale)
            for value, scale in zip(values, scales, strict=True)
        ]
        return pa.array(texts, pa.string())

    return read


def as_bytes(value: Any, scale: int) -> bytes:
    """Return the bytes of a number with a scale.

    Raises:
        OddValueError: it has more digits behind the point, or far too many before it.
    """
    number = Decimal(value)
    if not number.is_finite() or number.adjusted() > _LARGEST_SCALE:
        raise OddValueError(value, f"a decimal of scale {scale}")
    whole = number.scaleb(scale, _EXACT)
    if whole != whole.to_integral_value(context=_EXACT):
        raise OddValueError(value, f"a decimal of scale {scale}")
    digits = int(whole)
    return digits.to_bytes(digits.bit_length() // 8 + 1, "big", signed=True)


def _whole(array: pa.Array, *, is_text: bool) -> Iterable[int | None]:
    raw: list[bytes | None] = array.to_pylist()
    if is_text:
        raw = [from_base64(text) for text in array.to_pylist()]
    return [None if value is None else int.from_bytes(value, "big", signed=True) for value in raw]


def _texts(values: Iterable[int | None], scale: int) -> pa.Array:
    return pa.array(
        [None if value is None else _plain(value, scale) for value in values], pa.string()
    )


def _plain(value: int, scale: int | None) -> str:
    """Write a number as PostgreSQL does: all digits, no exponent.

    Raises:
        OddValueError: no database has such a scale, or so many digits.
    """
    if scale is None or abs(scale) > _LARGEST_SCALE:
        raise OddValueError(scale, "a scale")
    if value.bit_length() > 3 * _LARGEST_SCALE:
        raise OddValueError(f"{value.bit_length()} bits", "a decimal")
    return f"{Decimal(value).scaleb(-scale, _EXACT):f}"
