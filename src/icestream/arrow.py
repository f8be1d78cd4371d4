"""Arrow record batches: conformed to columns, and grouped so that their size is bounded.

A text or binary column has 32-bit offsets, which end at 2 GiB: concatenating chunks, or taking rows
of them, fails beyond that. So code that concatenates rows works on groups of bounded size, which
also bounds its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.errors import SchemaMismatchError
from icestream.formats.exact_numbers import cast_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Far below 2 GiB: values may be filled in from other rows, or need more bytes in another type.
GROUP_BYTES = 256 << 20


def split_by_bytes(batch: pa.RecordBatch, max_bytes: int = GROUP_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in slices of at most `max_bytes`, or of one larger row."""
    if batch.num_rows <= 1 or batch.nbytes <= max_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from split_by_bytes(batch.slice(0, half), max_bytes)
    yield from split_by_bytes(batch.slice(half), max_bytes)


def group_by_bytes(
    batches: Iterable[pa.RecordBatch], max_bytes: int = GROUP_BYTES
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the rows of batches, in order, in lists of at most `max_bytes` each."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part in split_by_bytes(batch, max_bytes):
            if piece and size + part.nbytes > max_bytes:
                yield piece
                piece, size = [], 0
            piece.append(part)
            size += part.nbytes
    if piece:
        yield piece


Cast = Callable[[pa.Array, pa.DataType], pa.Array]
Convert = Callable[[pa.Array, pa.Field], pa.Array]
_MAX_VALUE_CHARS = 100
_ORIGIN = b"icestream.origin"


def with_origin(batch: pa.RecordBatch, origin: str) -> pa.RecordBatch:
    """Return a batch that records where its rows came from, for errors: `file 'a.parquet'`."""
    return batch.replace_schema_metadata({_ORIGIN: origin.encode(errors="surrogateescape")})


def cast_losslessly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array to another type without losing a value.

    Numbers and times follow the rules of `cast_exactly`, which rounds fractions to a float. Between
    other types, a cast is lossless if casting back gives the same values.

    Raises:
        pa.ArrowInvalid: a value would be lost.
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


def conform(
    batch: pa.RecordBatch, columns: pa.Schema, convert: Convert | None = None
) -> pa.RecordBatch:
    """Return a batch with exactly these columns, matched by name; a missing column is null.

    Args:
        batch: the rows.
        columns: the columns to return, in order.
        convert: turns values of another type into those of a field; Arrow's own cast by default.
    """
    arrays = []
    for field in columns:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(index)
        if array.type != field.type:
            array = array.cast(field.type) if convert is None else convert(array, field)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def conform_source_rows(
    batch: pa.RecordBatch, columns: pa.Schema, cast: Cast = cast_losslessly
) -> pa.RecordBatch:
    """Conform rows of a source, and name the value that does not fit a column.

    Raises:
        SchemaMismatchError: a value does not fit its column, or two columns have the same name.
    """
    counts = Counter(batch.schema.names)
    for name in columns.names:
        if counts[name] > 1:
            raise SchemaMismatchError(
                f"{_origin(batch)}: two columns are called {name!r}",
                todo="Give every column a name of its own.",
            )

    def convert(array: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return cast(array, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            value = _first_misfit(array, field.type, cast)
            raise SchemaMismatchError(
                f"{_origin(batch)}: column {field.name!r} is {array.type} and does not fit "
                f"{field.type}: the value is {value}",
                todo="Declare a type under `schema` that holds every value, or correct the file. "
                "The transform `cast` converts values.",
            ) from exc

    return conform(batch, columns.with_metadata(batch.schema.metadata), convert)


def refused_column_error(batch: pa.RecordBatch, reason: str) -> SchemaMismatchError:
    """Return the error for rows with a column that the table cannot have."""
    return SchemaMismatchError(
        f"{_origin(batch)}: {reason}", todo="Or list the columns to read under `schema`."
    )


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
            return repr(column[0].as_py())[:_MAX_VALUE_CHARS]
    return " ".join(column.to_string().split())[2:-2][:_MAX_VALUE_CHARS]


def _origin(batch: pa.RecordBatch) -> str:
    origin: bytes = (batch.schema.metadata or {}).get(_ORIGIN, b"the source")
    return origin.decode(errors="surrogateescape")
