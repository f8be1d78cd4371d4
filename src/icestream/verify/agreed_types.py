"""The type in which a column is compared, where its two sides have one each."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

WIDEST_DECIMAL = 38


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both, None if there is no such type."""
    one, other = plain_type(one), plain_type(other)
    if one == other:
        return one
    for kind, widest in ((pa.types.is_integer, pa.int64()), (pa.types.is_floating, pa.float64())):
        if kind(one) and kind(other):
            return widest
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale)
        fits = scale + digits <= WIDEST_DECIMAL
        return pa.decimal128(scale + digits, scale) if fits else None
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = common_type(one.value_type, other.value_type)
        return None if element is None else pa.list_(element)
    return None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what does not matter to a value: offsets' width, zone, extension."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in a type that `common_type` gave."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.type == kind:
        return values
    if pa.types.is_list(kind):
        # Arrow casts no extension type inside a list.
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        elements = converted(values.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, elements, mask=values.is_null())
    return pc.cast(values, kind)
