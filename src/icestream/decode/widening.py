"""Columns that would have to be wider for a value to fit: the steps that Iceberg can take.

An `int` may become a `bigint`, a `float` a `double`, a decimal may gain digits before its point,
and a required column may become optional. Nothing else can be changed in a table that has rows.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.decode.values import MisfitError, converter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_DIGITS = 38


def widest(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the wider of two types, if one can become the other; else None."""
    if one == other:
        return one
    pair = {one, other}
    for wide, narrow in ((pa.int64(), pa.int32()), (pa.float64(), pa.float32())):
        if pair == {wide, narrow}:
            return wide
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other):
        return max(one, other, key=_digits) if one.scale == other.scale else None
    return _widest_nested(one, other)


def _digits(kind: pa.DataType) -> int:
    return int(kind.precision)


def _widest_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _widest_struct(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = widest_field(one.value_field, other.value_field)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(one) and pa.types.is_map(other) and one.key_type == other.key_type:
        item = widest_field(one.item_field, other.item_field)
        return None if item is None else pa.map_(one.key_field, item)
    return None


def _widest_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the struct with its members widened; members that only `other` has are no part."""
    members = []
    for index in range(one.num_fields):
        member = one.field(index)
        place = other.get_field_index(member.name)
        grown = member if place < 0 else widest_field(member, other.field(place))
        if grown is None:
            return None
        members.append(grown)
    return pa.struct(members)


def widest_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    """Return the first of two fields, as wide as either; None if they do not join."""
    kind = widest(one.type, other.type)
    if kind is None:
        return None
    return one.with_type(kind).with_nullable(one.nullable or other.nullable)


def join_columns(one: Mapping[str, pa.Field], other: Mapping[str, pa.Field]) -> dict[str, pa.Field]:
    """Return the columns of both; one that both have is as wide as either."""
    joined = dict(one)
    for name, field in other.items():
        known = joined.get(name)
        grown = field if known is None else widest_field(known, field)
        joined[name] = field if grown is None else grown
    return joined


def wider_columns(columns: pa.Schema, declared: Mapping[str, pa.DataType]) -> dict[str, pa.Field]:
    """Return the columns that are narrower than the type which the writer of a record declared."""
    wider = {}
    for field in columns:
        kind = declared.get(field.name)
        grown = None if kind is None else widest(field.type, kind)
        if grown is not None and grown != field.type:
            wider[field.name] = field.with_type(grown)
    return wider


def columns_for(columns: Iterable[pa.Field], record: Mapping[str, Any]) -> dict[str, pa.Field]:
    """Return the columns as they must be for a parsed JSON record; none if it can't be helped."""
    wider = {}
    for field in columns:
        grown = _field_for(field, record.get(field.name))
        if grown is None:
            return {}
        if grown != field:
            wider[field.name] = grown
    return wider


def _field_for(field: pa.Field, value: Any) -> pa.Field | None:
    if value is None:
        return field.with_nullable(True)
    kind = _type_for(field.type, value)
    return None if kind is None else field.with_type(kind)


def _type_for(kind: pa.DataType, value: Any) -> pa.DataType | None:
    try:
        converter(kind)(value)
    except MisfitError:
        return _grown(kind, value)
    return _nested(kind, value)


def _grown(kind: pa.DataType, value: Any) -> pa.DataType | None:
    if pa.types.is_int32(kind):
        return _type_for(pa.int64(), value)
    if pa.types.is_float32(kind):
        return _type_for(pa.float64(), value)
    if pa.types.is_decimal128(kind):
        digits = _digits_of(value, kind.scale)
        return pa.decimal128(digits, kind.scale) if 0 < digits <= _MOST_DIGITS else None
    return _nested(kind, value) if pa.types.is_nested(kind) else None


def _digits_of(value: Any, scale: int) -> int:
    """Return how many digits a number has with `scale` of them behind the point; 0 for none."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return 0
    number = Decimal(value)
    if not number.is_finite() or int(number.as_tuple().exponent) < -scale:
        return 0
    return max(number.adjusted() + 1, 1) + scale


def _nested(kind: pa.DataType, value: Any) -> pa.DataType | None:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        members = [kind.field(index) for index in range(kind.num_fields)]
        grown = [_field_for(member, value.get(member.name)) for member in members]
        return None if any(member is None for member in grown) else pa.struct(grown)
    if pa.types.is_list(kind) and isinstance(value, list):
        element = _fields_for(kind.value_field, value)
        return None if element is None else pa.list_(element)
    if pa.types.is_map(kind) and isinstance(value, dict):
        item = _fields_for(kind.item_field, list(value.values()))
        return None if item is None else pa.map_(kind.key_field, item)
    return None if pa.types.is_nested(kind) else kind


def _fields_for(field: pa.Field, values: list[Any]) -> pa.Field | None:
    for value in values:
        grown = _field_for(field, value)
        if grown is None:
            return None
        field = grown
    return field
