"""Fits the columns of a file to those of the pipeline."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.errors import SchemaMismatchError

_SIMPLER = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}


def storable(kind: pa.DataType) -> pa.DataType:
    """Return the type that a table's column has for values of `kind`."""
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if kinds.is_time(kind):
        return pa.time64("us")
    if kinds.is_dictionary(kind):
        return storable(kind.value_type)
    if kinds.is_nested(kind):
        return _storable_nested(kind)
    return _SIMPLER.get(kind, kind)


def _storable_nested(kind: pa.DataType) -> pa.DataType:
    if kinds.is_struct(kind):
        members = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([(member.name, storable(member.type)) for member in members])
    if kinds.is_map(kind):
        return pa.map_(storable(kind.key_type), storable(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(storable(kind.value_type))
    return kind


def storable_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table has for rows of `schema`."""
    return pa.schema([(field.name, storable(field.type)) for field in schema])


def refuse_new_columns(found: list[str], schema: pa.Schema, name: str) -> None:
    """Raise if a file has columns that nobody expects: leaving them out would lose them."""
    known = set(schema.names)
    new = [column for column in found if column not in known]
    if new:
        raise SchemaMismatchError(
            f"file {name!r} has columns that the first files lack: {', '.join(new)}",
            todo="Start the pipeline again to take them in, or list the columns to read under "
            "`schema`.",
        )


def fit(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """Return a batch with exactly the columns of `schema`.

    Values are cast where none is lost, but for times, which are kept to the microsecond.

    Raises:
        SchemaMismatchError: a column does not fit.
    """
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(_cast(batch.column(place), field, name))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, name: str) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        options = pc.CastOptions(target_type=field.type, allow_time_truncate=True)
        return column.cast(options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise SchemaMismatchError(
            f"file {name!r}: column {field.name!r} is {column.type} and does not fit "
            f"{field.type}: {exc}",
            todo="Give the column's type under `schema`.",
        ) from exc
