"""The columns that rows of files have, as a table has them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds

from icestream.contracts.row_batches import fit_columns, with_origin

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
    """Return rows of a file with the columns of `schema`, or else with the file's own."""
    given = with_origin(batch, f"file {name!r}")
    return fit_columns(given, storable_columns(batch.schema) if schema is None else schema)
