"""The columns that rows of files have, as a table has them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.arrow import fit_columns, with_origin

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


def fit_file(batch: pa.RecordBatch, schema: pa.Schema | None, name: str) -> pa.RecordBatch:
    """Return rows of a file with the columns of `schema`, or else with the file's own.

    Only in the latter case are times truncated to microseconds.

    Raises:
        SchemaMismatchError: a column does not fit.
    """
    given = with_origin(batch, f"file {name!r}")
    if schema is None:
        return fit_columns(given, storable_columns(given.schema), _cast_and_truncate)
    declared = set(schema.names)
    given = given.select([i for i, each in enumerate(given.schema.names) if each in declared])
    return fit_columns(fit_columns(given, storable_columns(given.schema), _cast), schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to the type of `storable`, which holds every value but fractions of microseconds."""
    return array.cast(kind)


def _cast_and_truncate(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kinds.is_timestamp(array.type):
        # Arrow truncates toward zero: before 1970 that is the next microsecond.
        array = pc.floor_temporal(array, unit="microsecond")
    return array.cast(options=pc.CastOptions(target_type=kind, allow_time_truncate=True))
