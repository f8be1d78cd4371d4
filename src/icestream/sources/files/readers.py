"""Reads Parquet, Avro and text files."""

from __future__ import annotations

import json
import struct
import zlib
from io import SEEK_CUR
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.errors import BadRecordError, DependencyError
from icestream.sources.files.parts import fit_file, storable_columns, unreadable_error
from icestream.sources.files.text import parse_header, read_first_line, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.decoder import Records
    from icestream.formats.avro_types import AvroFields
    from icestream.sources.files.options import FilesOptions
    from icestream.sources.files.parts import FilePart


ROWS_PER_BLOCK = 50_000


class RowGroup(NamedTuple):
    """The size of a row group from the file's footer; bytes are uncompressed."""

    rows: int
    bytes: int


def read_row_groups(file: IO[bytes]) -> list[RowGroup]:
    """Return the row groups of a file; none if the file is broken."""
    try:
        metadata = pq.read_metadata(file)
    except pa.ArrowInvalid:
        # Reading the file later reports the fault.
        return []
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    return [RowGroup(group.num_rows, group.total_byte_size) for group in groups]


def parquet_schema(file: IO[bytes], name: str) -> pa.Schema:
    """Return the columns of a file."""
    try:
        return storable_columns(pq.read_schema(file))
    except pa.ArrowInvalid as exc:
        raise unreadable_error(name, "parquet", exc) from exc


def read_parquet(
    file: IO[bytes], part: FilePart, name: str, schema: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `schema`.

    Args:
        file: the open file.
        part: which row groups to read.
        name: the file's name for errors.
        schema: the columns to return, null if the file lacks them; None for the file's own.
    """
    try:
        # Nanoseconds, Arrow's default, overflow for years before 1677 or after 2262.
        reader = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        names = reader.schema_arrow.names
        selected = names if schema is None else schema.names
        columns = [column for column in selected if column in names]
        end = reader.num_row_groups if part.end is None else part.end
        for batch in reader.iter_batches(ROWS_PER_BLOCK, [*range(part.start, end)], columns):
            yield fit_file(batch, schema, name)
    except (pa.ArrowInvalid, OSError) as exc:
        raise unreadable_error(name, "parquet", exc) from exc


AVRO_ROWS_PER_BLOCK = 20_000
_SYNC_BYTES = 16
# What fastavro raises for a corrupt file, which it does not validate first.
_FAULTS = (
    EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, zlib.error,
)  # fmt: skip


def avro_schema(file: IO[bytes], name: str) -> pa.Schema:
    """Return the columns of a file."""
    return storable_columns(_fields(_reader(file, name)).columns)


def cut_blocks(
    file: IO[bytes], start: int, max_rows: int, max_bytes: int, name: str
) -> tuple[int, int] | None:
    """Return the end byte of a run of blocks from `start`, and its number of rows.

    The run has at most `max_rows` rows and `max_bytes` bytes, but at least one block. None if it
    reaches the end of the file.
    """
    end = rows = 0
    try:
        for offset, size, count in _scan_blocks(file, start):
            if end and (rows + count > max_rows or offset + size - start > max_bytes):
                return end, rows
            end, rows = offset + size, rows + count
    except _FAULTS as exc:
        raise unreadable_error(name, "avro", exc) from exc
    return None


def _scan_blocks(file: IO[bytes], start: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start, bytes and rows of each block from `start` on, without reading its content.

    A block consists of its number of rows, its length, its content and the file's sync marker,
    which also ends the header.
    """
    if not start:
        file.seek(0)
        _fastavro().block_reader(file)  # reads the header
        start = file.tell()
    file.seek(start - _SYNC_BYTES)
    sync = file.read(_SYNC_BYTES)
    while (rows := _read_long(file)) is not None:
        length = _read_long(file)
        if rows < 0 or length is None or length < 0:
            raise ValueError(f"the block at byte {start} has no valid length")
        file.seek(length, SEEK_CUR)
        if file.read(_SYNC_BYTES) != sync:
            raise ValueError(f"the block at byte {start} does not end with the sync marker")
        end = file.tell()
        yield start, end - start, rows
        start = end


def _read_long(file: IO[bytes]) -> int | None:
    """Read a number in Avro's variable-length encoding; None at the end of the file."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a number has more than 10 bytes")


def first_block_row_bytes(file: IO[bytes]) -> float | None:
    """Return the mean row length of the first block in bytes; None if it cannot be read."""
    try:
        _, size, rows = next(_block_extents(file, ""), (0, 0, 0))
    except BadRecordError:
        return None  # reading the file later reports the fault
    return size / rows if rows else None


def read_avro(
    file: IO[bytes], part: FilePart, name: str, schema: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `schema`.

    Args:
        file: the open file.
        part: which blocks to read.
        name: the file's name for errors.
        schema: the columns to return, null if the file lacks them; None for the file's own.
    """
    reader = _reader(_AvroPart(file, part, name) if part.start or part.end else file, name)
    fields = _fields(reader)
    while records := _next_records(reader, name):
        try:
            batch = _batch(records, fields)
        except pa.ArrowInvalid as exc:  # a decimal with more digits than its schema allows
            raise unreadable_error(name, "avro", exc) from exc
        yield fit_file(batch, schema, name)


class _AvroPart:
    """The header of a file and some of its blocks, as a file object for fastavro."""

    def __init__(self, file: IO[bytes], part: FilePart, name: str) -> None:
        self._header = b""
        if part.start:
            first, _, _ = next(_block_extents(file, name))
            file.seek(0)
            self._header = file.read(first)
        file.seek(part.start)
        self._file = file
        self._remaining = (part.size if part.end is None else part.end) - part.start

    def read(self, size: int) -> bytes:
        header, self._header = self._header[:size], self._header[size:]
        more = self._file.read(min(size - len(header), self._remaining))
        self._remaining -= len(more)
        return header + more


def _block_extents(file: IO[bytes], name: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start, bytes and rows of each block."""
    file.seek(0)
    try:
        for block in _fastavro().block_reader(file):
            yield block.offset, block.size, block.num_records
    except _FAULTS as exc:
        raise unreadable_error(name, "avro", exc) from exc


def _reader(file: Any, name: str) -> Any:
    from icestream.formats.avro_types import reader_arguments

    fastavro = _fastavro()
    try:
        return fastavro.reader(file, **reader_arguments())
    except _FAULTS as exc:
        raise unreadable_error(name, "avro", exc) from exc


def _fastavro() -> Any:
    try:
        import fastavro
    except ModuleNotFoundError as exc:
        raise DependencyError(
            "source 'files' needs the package fastavro for Avro, which is not installed",
            todo="pip install 'icestream[avro]'",
        ) from exc
    return fastavro


def _fields(reader: Any) -> AvroFields:
    from icestream.formats.avro_types import AvroFields

    return AvroFields(json.loads(reader.metadata["avro.schema"]))


def _next_records(reader: Any, name: str) -> list[dict[str, Any]]:
    try:
        return list(islice(reader, AVRO_ROWS_PER_BLOCK))
    except _FAULTS as exc:
        raise unreadable_error(name, "avro", exc) from exc


def _batch(records: list[dict[str, Any]], fields: AvroFields) -> pa.RecordBatch:
    arrays = []
    for field in fields.columns:
        values = [record[field.name] for record in records]
        if (adapt := fields.adapt.get(field.name)) is not None:
            values = [adapt(value) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=fields.columns)


def read_file_schema(file: IO[bytes], name: str, kind: str) -> pa.Schema:
    """Return the columns of a Parquet or Avro file."""
    return parquet_schema(file, name) if kind == "parquet" else avro_schema(file, name)


def read_part(
    file: IO[bytes], part: FilePart, name: str, options: FilesOptions, schema: pa.Schema | None
) -> Iterator[Records | pa.RecordBatch]:
    """Yield the rows of a file, or of a part of it.

    Args:
        file: the open file.
        part: the part to read.
        name: the file's name for errors.
        options: the source's options.
        schema: the columns to return, for Parquet and Avro; None for the file's own.
    """
    if options.format == "parquet":
        yield from read_parquet(file, part, name, schema)
    elif options.format == "avro":
        yield from read_avro(file, part, name, schema)
    else:
        yield from _read_lines(file, part, name, options)


def _read_lines(
    file: IO[bytes], part: FilePart, name: str, options: FilesOptions
) -> Iterator[Records]:
    line, start = part.line, part.start
    context: dict[str, Any] = {}
    if options.format == "csv" and options.options.header:
        header = read_first_line(file)
        if header:
            context = {"header": list(parse_header(header, name, options.options.delimiter))}
        if not start:
            line, start = 1, file.tell()
    if part.start:
        file.seek(start)
    size = None if part.end is None else part.end - start
    yield from read_lines(file, name, line=line, size=size, context=context)
