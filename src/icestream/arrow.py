"""Arrow data in pieces of bounded size.

A text or binary column has 32-bit offsets, which end at 2 GiB: to join chunks, or to take rows of
them, fails beyond that. So whatever joins rows works on pieces, and memory stays bounded too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.errors import SchemaMismatchError
from icestream.formats.exact import cast_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Far below 2 GiB: values of other rows may be filled in, or take more room in another type.
PIECE_BYTES = 256 << 20


def cut(batch: pa.RecordBatch, most_bytes: int = PIECE_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in slices of at most `most_bytes`; a larger row is alone."""
    if batch.num_rows <= 1 or batch.nbytes <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half), most_bytes)
    yield from cut(batch.slice(half), most_bytes)


def pieces(
    batches: Iterable[pa.RecordBatch], most_bytes: int = PIECE_BYTES
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of batches, in order, in lists of at most `most_bytes` each."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part in cut(batch, most_bytes):
            if piece and size + part.nbytes > most_bytes:
                yield piece
                piece, size = [], 0
            piece.append(part)
            size += part.nbytes
    if piece:
        yield piece


Cast = Callable[[pa.Array, pa.DataType], pa.Array]
_LONGEST_VALUE = 100
_ORIGIN = b"icestream.origin"


def with_origin(batch: pa.RecordBatch, origin: str) -> pa.RecordBatch:
    """Return a batch that says where its rows came from, for an error: `file 'a.parquet'`."""
    return batch.replace_schema_metadata({_ORIGIN: origin.encode(errors="surrogateescape")})


def cast_losslessly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array as another type, with every value kept.

    Numbers and times follow the rules of `cast_exactly`, which rounds fractions in a float. Between
    other types, a cast is lossless if casting back gives the same values.

    Raises:
        pa.ArrowInvalid: a value is lost.
        pa.ArrowNotImplementedError: there is no such cast.
    """
    if array.offset and pa.types.is_nested(array.type):
        array = pa.concat_arrays([array])  # Arrow cannot rebuild slices of lists that have nulls
    try:
        return cast_exactly(array, kind)
    except pa.ArrowInvalid:
        result = array.cast(kind)
        if not result.cast(array.type).equals(array):
            raise
        return result


def fit_columns(
    batch: pa.RecordBatch, columns: pa.Schema, cast: Cast = cast_losslessly
) -> pa.RecordBatch:
    """Return a batch with exactly these columns; one that it lacks is null.

    Raises:
        SchemaMismatchError: a column does not fit, or two have the same name.
    """
    arrays = []
    for field in columns:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            arrays.append(_fit(batch, index, field, cast))
        elif field.name in batch.schema.names:
            raise SchemaMismatchError(
                f"{_origin(batch)}: two columns are called {field.name!r}",
                todo="Give every column a name of its own.",
            )
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns.with_metadata(batch.schema.metadata))


def refused_column(batch: pa.RecordBatch, reason: str) -> SchemaMismatchError:
    """Return the error for rows with a column that the table cannot have."""
    return SchemaMismatchError(
        f"{_origin(batch)}: {reason}", todo="Or list the columns to read under `schema`."
    )


def _fit(batch: pa.RecordBatch, index: int, field: pa.Field, cast: Cast) -> pa.Array:
    column = batch.column(index)
    if column.type == field.type:
        return column
    try:
        return cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        value = _first_misfit(column, field.type, cast)
        raise SchemaMismatchError(
            f"{_origin(batch)}: column {field.name!r} is {column.type} and does not fit "
            f"{field.type}: the value is {value}",
            todo="Declare a type under `schema` that holds every value, or correct the file. The "
            "transform `cast` converts values.",
        ) from exc


def _first_misfit(column: pa.Array, kind: pa.DataType, cast: Cast) -> str:
    """Return the first value that cannot be cast, as text."""
    while len(column) > 1:
        half = column.slice(0, len(column) // 2)
        try:
            cast(half, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = half
        else:
            column = column.slice(len(half))
    if pa.types.is_nested(column.type):
        with suppress(ValueError):  # Python has no nanoseconds
            return repr(column[0].as_py())[:_LONGEST_VALUE]
    return " ".join(column.to_string().split())[2:-2][:_LONGEST_VALUE]


def _origin(batch: pa.RecordBatch) -> str:
    origin: bytes = (batch.schema.metadata or {}).get(_ORIGIN, b"the source")
    return origin.decode(errors="surrogateescape")
