"""Infers types from parsed JSON values, and merges them.

An inferred type holds every value that it was inferred from: a number that no double holds becomes
a decimal or text, and values that have no type in common become text.

Tasks infer types block by block, and the driver merges them. The result must not depend on how rows
are cut into blocks, so inferred types stay unresolved until everything is merged: they may say less
than a column needs (`NULL`, `EMPTY`) or more (a bigint that no double holds). `resolved_fields`
turns them into the types of columns.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.formats.exact_numbers import fits_double
from icestream.formats.values import TIMESTAMP, MisfitError, converter, micros_since_epoch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_BIGINT_LIMIT = 1 << 63
_DECIMAL_LIMIT = 10**38
_MAX_DEPTH = 50

NULL, TEXT, DAY = pa.null(), pa.string(), pa.date32()
ZONED, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
# Markers for unresolved types; no source has columns of these types.
# A bigint that no double holds: a bigint, but text together with a double.
_LONG = pa.dictionary(pa.int8(), pa.int64())
# Empty cells of CSV: text, or whatever type the other cells have.
EMPTY = pa.dictionary(pa.int8(), pa.null())
_DOUBLE, _WIDEST_DECIMAL = pa.float64(), pa.decimal128(38, 0)
_INTEGERS = (pa.int32(), pa.int64(), _LONG)
_DOUBLES = (pa.int32(), pa.int64(), pa.float32(), _DOUBLE)


def infer_type(value: Any, depth: int = 0) -> pa.DataType:
    """Return the type that holds one parsed JSON value; null for null."""
    if isinstance(value, (dict, list)):
        return TEXT if depth >= _MAX_DEPTH else _nested_type(value, depth + 1)
    if isinstance(value, str):
        return _text_type(value)
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return _integer_type(value)
    if isinstance(value, Decimal):
        return _DOUBLE if fits_double(value) else TEXT
    return NULL if value is None else _DOUBLE


def _integer_type(value: int) -> pa.DataType:
    if -_BIGINT_LIMIT <= value < _BIGINT_LIMIT:
        return pa.int64() if fits_double(value) else _LONG
    return _WIDEST_DECIMAL if abs(value) < _DECIMAL_LIMIT else TEXT


def _nested_type(value: dict[str, Any] | list[Any], depth: int) -> pa.DataType:
    if isinstance(value, dict):
        return pa.struct([(name, infer_type(item, depth)) for name, item in value.items()])
    inner = NULL
    for item in value:
        inner = merge(inner, infer_type(item, depth))
    return pa.list_(inner)


def _text_type(text: str) -> pa.DataType:
    # Most strings are not dates, so the cheap check comes first.
    if len(text) < 10 or text[4] != "-":
        return TEXT
    match = TIMESTAMP.fullmatch(text)
    if match is None:
        return TEXT
    try:
        micros_since_epoch(text)
    except ValueError:
        return TEXT
    if match[2] is None:
        return DAY
    return LOCAL if match[4] is None else ZONED


def merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds the values of both; text if there is no other.

    The result of merging several types does not depend on their order.
    """
    if one == other:
        return one
    for unknown in (NULL, EMPTY):
        if unknown in (one, other):
            return one if other == unknown else other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _merge_structs(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(one.value_field.with_type(merge(one.value_type, other.value_type)))
    return _wider_number(one, other) or TEXT


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=_INTEGERS.index)
    if one in _DOUBLES and other in _DOUBLES:  # a float holds few digits of an integer
        return _DOUBLE
    one, other = (_WIDEST_DECIMAL if kind in _INTEGERS else kind for kind in (one, other))
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other) and one.scale == other.scale:
        return max(one, other, key=lambda kind: int(kind.precision))
    return None


def _merge_structs(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    members = {member.name: member for member in one}
    for member in other:
        first = members.setdefault(member.name, member)
        if first.type != member.type:
            members[member.name] = first.with_type(merge(first.type, member.type))
    return pa.struct(list(members.values()))


def merge_fields(
    one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    """Return the fields of both; those of `one` first, in their order."""
    merged = dict(one)
    for name, kind in other.items():
        merged[name] = merge(merged[name], kind) if name in merged else kind
    return merged


def infer_fields(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """Return the unresolved types of the fields, merged over all rows."""
    types: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            kind = infer_type(value)
            before = types.get(name, NULL)
            if before is not kind:
                types[name] = merge(before, kind)
    return types


def resolved_fields(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return unresolved types as types of columns; fields of unknown type are left out."""
    resolved = {name: resolved_type(kind) for name, kind in types.items()}
    return {name: kind for name, kind in resolved.items() if kind is not None}


def resolved_type(kind: pa.DataType) -> pa.DataType | None:
    """Return an unresolved type as the type of a column, without members of unknown type.

    None if nothing is left.
    """
    if kind == NULL:
        return None
    if kind in (_LONG, EMPTY):
        return pa.int64() if kind == _LONG else TEXT
    if pa.types.is_list(kind):
        inner = resolved_type(kind.value_type)
        return None if inner is None else pa.list_(kind.value_field.with_type(inner))
    if pa.types.is_struct(kind):
        resolved = [(member, resolved_type(member.type)) for member in kind]
        members = [member.with_type(part) for member, part in resolved if part is not None]
        return pa.struct(members) if members else None
    return kind


def new_columns(
    columns: Iterable[pa.Field], types: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    """Return the columns to add for fields of unresolved types; see `unknown_fields`."""
    return unknown_fields(columns, resolved_fields(types))


def unknown_fields(
    columns: Iterable[pa.Field], types: Mapping[str, pa.DataType]
) -> dict[str, pa.DataType]:
    """Return the fields of `types` that `columns` lacks.

    A struct column with new members appears under its own name with all members, the existing ones
    first, so that the result can be joined to a table's schema by name.
    """
    by_name = {field.name: field.type for field in columns}
    unknown: dict[str, pa.DataType] = {}
    for name, kind in types.items():
        column_type = by_name.get(name)
        widened = kind if column_type is None else _add_members(column_type, kind)
        if widened != column_type:
            unknown[name] = widened
    return unknown


def _add_members(column: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a column's type with the struct members, at any depth, that only `other` has."""
    if pa.types.is_struct(column) and pa.types.is_struct(other):
        members = [column.field(index) for index in range(column.num_fields)]
        new = unknown_fields(members, _members(other))
        kept = [
            member.with_type(new.pop(member.name)) if member.name in new else member
            for member in members
        ]
        return pa.struct([*kept, *(pa.field(name, kind) for name, kind in new.items())])
    if pa.types.is_list(column) and pa.types.is_list(other):
        inner = _add_members(column.value_type, other.value_type)
        return pa.list_(column.value_field.with_type(inner))
    return column


def _members(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {
        member.name: member.type
        for member in (kind.field(index) for index in range(kind.num_fields))
    }


_MAX_PRECISION = 38


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
    """Return the struct with its members widened, without members that only `other` has."""
    members = []
    for index in range(one.num_fields):
        member = one.field(index)
        position = other.get_field_index(member.name)
        wider = member if position < 0 else widest_field(member, other.field(position))
        if wider is None:
            return None
        members.append(wider)
    return pa.struct(members)


def widest_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    """Return the first of two fields, as wide as either; None if neither type can widen."""
    kind = widest(one.type, other.type)
    if kind is None:
        return None
    return one.with_type(kind).with_nullable(one.nullable or other.nullable)


def join_columns(one: Mapping[str, pa.Field], other: Mapping[str, pa.Field]) -> dict[str, pa.Field]:
    """Return the columns of both; a column that both have is as wide as either."""
    joined = dict(one)
    for name, field in other.items():
        wider = widest_field(joined[name], field) if name in joined else None
        joined[name] = field if wider is None else wider
    return joined


def wider_columns(columns: pa.Schema, declared: Mapping[str, pa.DataType]) -> dict[str, pa.Field]:
    """Return the columns whose type is narrower than declared, with the declared type."""
    wider = {}
    for field in columns:
        kind = declared.get(field.name)
        widened = None if kind is None else widest(field.type, kind)
        if widened is not None and widened != field.type:
            wider[field.name] = field.with_type(widened)
    return wider


def columns_for(columns: Iterable[pa.Field], record: Mapping[str, Any]) -> dict[str, pa.Field]:
    """Return the columns, widened, that a parsed JSON record needs; none if it fits no widening."""
    wider = {}
    for field in columns:
        widened = _field_for(field, record.get(field.name))
        if widened is None:
            return {}
        if widened != field:
            wider[field.name] = widened
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
        return _widen_type(kind, value)
    return _nested(kind, value)


def _widen_type(kind: pa.DataType, value: Any) -> pa.DataType | None:
    if pa.types.is_int32(kind):
        return _type_for(pa.int64(), value)
    if pa.types.is_float32(kind):
        return _type_for(pa.float64(), value)
    if pa.types.is_decimal128(kind):
        digits = _digits_of(value, kind.scale)
        return pa.decimal128(digits, kind.scale) if 0 < digits <= _MAX_PRECISION else None
    return _nested(kind, value) if pa.types.is_nested(kind) else None


def _digits_of(value: Any, scale: int) -> int:
    """Return the precision that a number needs at a scale; 0 if it is no such decimal."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return 0
    number = Decimal(value)
    if not number.is_finite() or int(number.as_tuple().exponent) < -scale:
        return 0
    return max(number.adjusted() + 1, 1) + scale


def _nested(kind: pa.DataType, value: Any) -> pa.DataType | None:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        members = [kind.field(index) for index in range(kind.num_fields)]
        widened = [_field_for(member, value.get(member.name)) for member in members]
        return None if any(member is None for member in widened) else pa.struct(widened)
    if pa.types.is_list(kind) and isinstance(value, list):
        element = _fields_for(kind.value_field, value)
        return None if element is None else pa.list_(element)
    if pa.types.is_map(kind) and isinstance(value, dict):
        item = _fields_for(kind.item_field, list(value.values()))
        return None if item is None else pa.map_(kind.key_field, item)
    return None if pa.types.is_nested(kind) else kind


def _fields_for(field: pa.Field, values: list[Any]) -> pa.Field | None:
    for value in values:
        widened = _field_for(field, value)
        if widened is None:
            return None
        field = widened
    return field
