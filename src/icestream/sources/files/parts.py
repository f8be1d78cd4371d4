"""Opens a file of a batch, and checks that it is unchanged since the batch was planned."""

from __future__ import annotations

import gzip
import os
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from icestream.arrow import conform_source_rows, with_origin
from icestream.errors import BadRecordError, RefusedError
from icestream.sources.files.offset import changed_file_error

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class FilePart:
    """A file to read, or a part of it.

    Attributes:
        path: its path below the folder.
        mtime_ns: its modification time when the batch was planned.
        size: its size then.
        start: where the part starts: a byte, or a row group of a Parquet file.
        end: where it ends; None for the end of the file.
        line: the number of lines before it.
    """

    path: str
    mtime_ns: int
    size: int
    start: int = 0
    end: int | None = None
    line: int = 0


@contextmanager
def open_part(folder: str, part: FilePart) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if its name ends in `.gz`.

    Raises:
        SourceChangedError: it has changed since the batch was planned, or changes while it is read.
        RefusedError: there is no read permission.
        BadRecordError: it is not a valid gzip file.
    """
    name = str(Path(folder, part.path))
    try:
        raw = open(name, "rb")  # noqa: PTH123, SIM115 - closed below, after the last check
    except FileNotFoundError as exc:
        raise changed_file_error(name, "was removed before its rows were written") from exc
    except PermissionError as exc:
        raise RefusedError(
            f"permission denied for file {name!r}",
            todo="Give the user that runs the pipeline read permission.",
        ) from exc
    with raw:
        _verify_unchanged(raw, part, name)
        try:
            if part.path.endswith(".gz"):
                with gzip.open(raw) as unpacked:
                    yield cast("IO[bytes]", unpacked)
            else:
                yield raw
        except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
            raise unreadable_error(name, "gzip", exc) from exc
        _verify_unchanged(raw, part, name)


def unreadable_error(name: str, kind: str, cause: Exception) -> BadRecordError:
    """Return the error for a corrupt file."""
    reason = " ".join(str(cause).split())
    return BadRecordError(
        f"file {name!r} cannot be read as {kind}: {reason}",
        todo="Fix the file, or move it out of the folder and use `icestream run --resume`.",
    )


def _verify_unchanged(raw: IO[bytes], part: FilePart, name: str) -> None:
    status = os.fstat(raw.fileno())
    if (status.st_mtime_ns, status.st_size) != (part.mtime_ns, part.size):
        raise changed_file_error(name, "changed before its rows were written")


_STORED_TYPES = {
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


def storable_type(kind: pa.DataType) -> pa.DataType:
    """Return the column type of a table for values of `kind`."""
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if kinds.is_time(kind):
        return pa.time64("us")
    if kinds.is_dictionary(kind):
        return storable_type(kind.value_type)
    if kinds.is_nested(kind):
        return _storable_nested(kind)
    return _STORED_TYPES.get(kind, kind)


def _storable_nested(kind: pa.DataType) -> pa.DataType:
    if kinds.is_struct(kind):
        members = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([(member.name, storable_type(member.type)) for member in members])
    if kinds.is_map(kind):
        return pa.map_(storable_type(kind.key_type), storable_type(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(storable_type(kind.value_type))
    return kind


def storable_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table for rows of `schema`."""
    return pa.schema([(field.name, storable_type(field.type)) for field in schema])


def fit_file(batch: pa.RecordBatch, schema: pa.Schema | None, name: str) -> pa.RecordBatch:
    """Return rows of a file with the columns of `schema`; without one, with the file's own.

    Times are truncated to microseconds only without a schema.

    Raises:
        SchemaMismatchError: a column has an incompatible type.
    """
    rows = with_origin(batch, f"file {name!r}")
    if schema is None:
        return conform_source_rows(rows, storable_columns(rows.schema), _cast_and_truncate)
    declared = set(schema.names)
    rows = rows.select([i for i, column in enumerate(rows.schema.names) if column in declared])
    return conform_source_rows(
        conform_source_rows(rows, storable_columns(rows.schema), _cast), schema
    )


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a `storable_type`, which loses nothing but fractions of microseconds."""
    return array.cast(kind)


def _cast_and_truncate(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kinds.is_timestamp(array.type):
        # Arrow truncates toward zero, which is the next microsecond before 1970.
        array = pc.floor_temporal(array, unit="microsecond")
    return array.cast(options=pc.CastOptions(target_type=kind, allow_time_truncate=True))
