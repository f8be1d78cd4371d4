"""Rows of a source that needs no decoder, and the columns that they are given."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from icestream.errors import SchemaMismatchError

_ORIGIN = b"icestream.origin"


def with_origin(batch: pa.RecordBatch, origin: str) -> pa.RecordBatch:
    """Return a batch that says where its rows came from, for an error: `file 'a.parquet'`."""
    return batch.replace_schema_metadata({_ORIGIN: origin.encode(errors="surrogateescape")})


def fit_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return a batch with exactly these columns; one that it lacks is null.

    Values are cast where none is lost, except for times, which are kept to the microsecond.

    Raises:
        SchemaMismatchError: a column does not fit.
    """
    arrays = []
    for field in columns:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            arrays.append(_cast(batch, index, field))
    return pa.RecordBatch.from_arrays(arrays, schema=columns.with_metadata(batch.schema.metadata))


def refused_column(batch: pa.RecordBatch, reason: str) -> SchemaMismatchError:
    """Return the error for rows with a column that the table cannot have."""
    return SchemaMismatchError(
        f"{_origin(batch)}: {reason}", todo="Or list the columns to read under `schema`."
    )


def _cast(batch: pa.RecordBatch, index: int, field: pa.Field) -> pa.Array:
    column = batch.column(index)
    if column.type == field.type:
        return column
    try:
        options = pc.CastOptions(target_type=field.type, allow_time_truncate=True)
        return column.cast(options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise SchemaMismatchError(
            f"{_origin(batch)}: column {field.name!r} is {column.type} and does not fit "
            f"{field.type}: {exc}",
            todo="Give the column's type under `schema`.",
        ) from exc


def _origin(batch: pa.RecordBatch) -> str:
    origin: bytes = (batch.schema.metadata or {}).get(_ORIGIN, b"the source")
    return origin.decode(errors="surrogateescape")
