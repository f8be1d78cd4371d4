"""Conforms Arrow columns to a table, and finds rows that lack required values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.types import ListType, MapType, StructType

from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from icestream.sinks.iceberg.options import IcebergOptions


@dataclass(frozen=True)
class MissingValues:
    """Tells in a task, before the writer would refuse them, which rows lack a value.

    Attributes:
        required: columns that every row must have a value for, each with its role.
        required_unless_deleted: those that a delete, or a row that was sent without them, may
            lack.
        op: column that marks the rows that are deletes; None if none is.
        ignores_deletes: whether deletes are passed over, whatever they have.
    """

    required: tuple[tuple[str, str], ...]
    required_unless_deleted: tuple[tuple[str, str], ...]
    op: str | None = None
    ignores_deletes: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return a reason for each row that is bad; None if no row is."""
        wanted = [(name, role, False) for name, role in self.required]
        wanted += [(name, role, True) for name, role in self.required_unless_deleted]
        # A column that no row has is no fault of a row: the writer reports it.
        missing = [
            (name, role, may_be_deleted)
            for name, role, may_be_deleted in wanted
            if name in batch.schema.names and batch.column(name).null_count
        ]
        if not missing:
            return None
        reasons = pa.nulls(batch.num_rows, pa.string())
        excused = self._exempt_rows(batch, {name: may_be for name, _, may_be in missing})
        for name, role, _ in missing:
            is_bad = batch.column(name).is_null()
            if name in excused:
                is_bad = pc.and_not(is_bad, pa.array(excused[name]))
            reason = f"column {name!r} is {role}, and the row has no value for it"
            reasons = pc.if_else(pc.and_(is_bad, reasons.is_null()), reason, reasons)
        return reasons if reasons.null_count < batch.num_rows else None

    def _exempt_rows(
        self, batch: pa.RecordBatch, missing: Mapping[str, bool]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Return by column which rows may lack it, given whether rows that are deleted may."""
        excusable = [name for name, may_be in missing.items() if may_be or self.ignores_deletes]
        if not excusable:
            return {}
        from icestream.sinks.iceberg.upsert.staging import delete_flags, unchanged_flags

        deletes, unsent = delete_flags(batch, self.op), unchanged_flags(batch)
        return {
            name: deletes | unsent[name] if missing[name] and name in unsent else deletes
            for name in excusable
        }


def missing_values(schema: Schema | None, options: IcebergOptions) -> MissingValues | None:
    """Return what finds rows that lack a value; None if they may lack any.

    Args:
        schema: the table's, None while there is no table.
        options: the sink's.
    """
    columns = schema.fields if schema is not None else ()
    required = [column.name for column in columns if column.required]
    if options.commit_mode != "upsert":
        always = tuple((name, "required by the table") for name in required)
        return MissingValues(always, ()) if always else None
    keys = [(name, "part of the key") for name in options.key_fields]
    if options.sequence_field is not None:
        keys.append((options.sequence_field, "the sequence field"))
    own = {name for name, _ in keys}
    return MissingValues(
        tuple(keys),
        tuple((name, "required by the table") for name in required if name not in own),
        op=options.op_field,
        ignores_deletes=options.delete_mode == "ignore",
    )


def file_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a data file, with Iceberg's field ids at every level."""
    large = schema_to_pyarrow(schema, include_field_ids=True)
    return pa.schema([_with_32_bit_offsets(column) for column in large])


def _with_32_bit_offsets(field: pa.Field) -> pa.Field:
    """Use 32-bit offsets: 64-bit ones cost a copy of every text that comes in."""
    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_with_32_bit_offsets(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_32_bit_offsets(kind.key_field), _with_32_bit_offsets(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct(
            [_with_32_bit_offsets(kind.field(index)) for index in range(kind.num_fields)]
        )
    return field.with_type(kind)


def types_by_id(schema: Schema) -> dict[int, pa.DataType]:
    """Return the types of a table's columns as its data files should have them, by field id."""
    columns = zip(schema.fields, file_columns(schema), strict=True)
    return {field.field_id: column.type for field, column in columns}


def cast_array(array: pa.Array, into: pa.DataType) -> pa.Array:
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
            found = _conform_array(batch.column(index), column.field_type, into.type)
        if column.required and found.null_count:
            raise SchemaMismatchError(
                f"column {column.name!r} is required by the table, and a row has no value for it",
                todo="Leave such rows out with a `filter` transform, or make the column optional.",
            )
        columns.append(found)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _conform_array(array: pa.Array, kind: IcebergType, into: pa.DataType) -> pa.Array:
    if array.type == into:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), into)
    if isinstance(kind, StructType):
        return _conform_struct(array, kind, into)
    if isinstance(kind, ListType):
        array = _rebase_offsets(array)
        values = _conform_array(array.values, kind.element_type, into.value_type)
        offsets = array.offsets.cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=into, mask=array.is_null())
    if isinstance(kind, MapType):
        array = _rebase_offsets(array)
        keys = _conform_array(array.keys, kind.key_type, into.key_type)
        items = _conform_array(array.items, kind.value_type, into.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=into, mask=array.is_null())
    return cast_array(array, into)


def _conform_struct(array: pa.Array, kind: StructType, into: pa.DataType) -> pa.Array:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    members = dict(zip(names, array.flatten(), strict=True))
    fields = [into.field(index) for index in range(into.num_fields)]
    arrays = [
        _conform_array(members[member.name], member.field_type, field.type)
        if member.name in members
        else pa.nulls(len(array), field.type)
        for member, field in zip(kind.fields, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())


def _rebase_offsets(array: pa.Array) -> pa.Array:
    """Return the array with offsets that begin at its own values, which a slice has not."""
    return array.take(pa.array(range(len(array)), pa.int64())) if array.offset else array
