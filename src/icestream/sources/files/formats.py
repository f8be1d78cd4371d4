"""One way of reading for each format."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from icestream.sources.files.avro import avro_schema, read_avro
from icestream.sources.files.csv import header_of
from icestream.sources.files.lines import first_line, read_lines
from icestream.sources.files.parquet import parquet_schema, read_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from icestream.contracts.decoder import Records
    from icestream.sources.files.opened import FilePart
    from icestream.sources.files.options import FilesOptions


def schema_of(file: IO[bytes], name: str, kind: str) -> pa.Schema:
    """Return the columns of a Parquet or Avro file."""
    return parquet_schema(file, name) if kind == "parquet" else avro_schema(file, name)


def read_part(
    file: IO[bytes], part: FilePart, name: str, options: FilesOptions, schema: pa.Schema | None
) -> Iterator[Records | pa.RecordBatch]:
    """Yield the rows of a file, or of a part of it.

    Args:
        file: the file, opened.
        part: which part of it.
        name: what the file is called in an error.
        options: those of the source.
        schema: the columns to give, for formats that have columns; None for the file's own.
    """
    if options.format in {"json", "csv"}:
        yield from _read_lines(file, part, name, options)
    elif options.format == "parquet":
        yield from read_parquet(file, part, name, schema)
    else:
        yield from read_avro(file, part, name, schema)


def _read_lines(
    file: IO[bytes], part: FilePart, name: str, options: FilesOptions
) -> Iterator[Records]:
    line, start = part.line, part.start
    context: dict[str, Any] = {}
    if options.format == "csv" and options.options.header:
        header = first_line(file)
        if header:
            context = {"header": list(header_of(header, name, options.options.delimiter))}
        if not start:
            line, start = 1, file.tell()
    if part.start:
        file.seek(start)
    size = None if part.end is None else part.end - start
    yield from read_lines(file, name, line=line, size=size, context=context)
