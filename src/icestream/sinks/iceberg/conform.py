"""Gives Arrow columns the shape of a table: by name, with what the rows lack left null."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import ListType, MapType, StructType

from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType


def file_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a data file, with Iceberg's field ids at every level."""
    large = schema_to_pyarrow(schema, include_field_ids=True)
    return pa.schema([_small(column) for column in large])


def _small(field: pa.Field) -> pa.Field:
    """Use 32-bit offsets: 64-bit ones cost a copy of every text that comes in."""
    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_small(kind.field(index)) for index in range(kind.num_fields)])
    return field.with_type(kind)


def types_by_id(schema: Schema) -> dict[int, pa.DataType]:
    """Return the types of a table's columns as its data files should have them, by field id."""
    columns = zip(schema.fields, file_columns(schema), strict=True)
    return {field.field_id: column.type for field, column in columns}


def as_type(array: pa.Array, into: pa.DataType) -> pa.Array:
    """Return values as a primitive type; nanoseconds, where that has none, are cut off."""
    if array.type == into:
        return array
    return array.cast(into, safe=not pa.types.is_timestamp(into))


def conform(batch: pa.RecordBatch, schema: Schema, target: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly the columns of `target`.

    Args:
        batch: the rows, with the table's own names.
        schema: the table's schema.
        target: the same columns as the files have them; their names may be other ones, since not
            every name is fit for a file.

    Raises:
        SchemaMismatchError: a column that the table requires has no value in some row.
    """
    columns = []
    for column, into in zip(schema.fields, target, strict=True):
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            found = pa.nulls(batch.num_rows, into.type)
        else:
            found = _shaped(batch.column(index), column.field_type, into.type)
        if column.required and found.null_count:
            raise SchemaMismatchError(
                f"column {column.name!r} is required by the table, and a row has no value for it",
                todo="Leave such rows out with a `filter` transform, or make the column optional.",
            )
        columns.append(found)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _shaped(array: pa.Array, kind: IcebergType, into: pa.DataType) -> pa.Array:
    if array.type == into:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), into)
    if isinstance(kind, StructType):
        return _shaped_struct(array, kind, into)
    if isinstance(kind, ListType):
        array = _rebased(array)
        values = _shaped(array.values, kind.element_type, into.value_type)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=into, mask=array.is_null())
    if isinstance(kind, MapType):
        array = _rebased(array)
        keys = _shaped(array.keys, kind.key_type, into.key_type)
        items = _shaped(array.items, kind.value_type, into.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=into, mask=array.is_null())
    return as_type(array, into)


def _shaped_struct(array: pa.Array, kind: StructType, into: pa.DataType) -> pa.Array:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    members = dict(zip(names, array.flatten(), strict=True))
    fields = [into.field(index) for index in range(into.num_fields)]
    arrays = [
        _shaped(members[member.name], member.field_type, field.type)
        if member.name in members
        else pa.nulls(len(array), field.type)
        for member, field in zip(kind.fields, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())


def _rebased(array: pa.Array) -> pa.Array:
    """Return the array with offsets that begin at its own values, which a slice has not."""
    return array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
