"""Reads Parquet files."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.sources.files.columns import fit_file, storable_columns
from icestream.sources.files.opened import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.sources.files.opened import FilePart

ROWS_A_BLOCK = 50_000


class RowGroup(NamedTuple):
    """What the footer of a file says of a row group; bytes are those of the unpacked values."""

    rows: int
    bytes: int


def row_groups_of(file: IO[bytes]) -> list[RowGroup]:
    """Return the row groups of a file; none if the file is broken."""
    try:
        found = pq.read_metadata(file)
    except pa.ArrowInvalid:
        # Reading the file reports what is wrong; here only its size is of interest.
        return []
    groups = (found.row_group(index) for index in range(found.num_row_groups))
    return [RowGroup(group.num_rows, group.total_byte_size) for group in groups]


def parquet_schema(file: IO[bytes], name: str) -> pa.Schema:
    """Return the columns of a file."""
    try:
        return storable_columns(pq.read_schema(file))
    except pa.ArrowInvalid as exc:
        raise unreadable(name, "parquet", exc) from exc


def read_parquet(
    file: IO[bytes], part: FilePart, name: str, schema: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `schema`.

    Args:
        file: the file, opened.
        part: which row groups to read.
        name: what the file is called in an error.
        schema: the columns to give, one that the file lacks is null; None for the file's own.
    """
    try:
        # As nanoseconds, Arrow's default, years outside of 1677 to 2262 become other years.
        reader = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        found = reader.schema_arrow.names
        wanted = found if schema is None else schema.names
        columns = [column for column in wanted if column in found]
        end = reader.num_row_groups if part.end is None else part.end
        for batch in reader.iter_batches(ROWS_A_BLOCK, [*range(part.start, end)], columns):
            yield fit_file(batch, schema, name)
    except (pa.ArrowInvalid, OSError) as exc:
        raise unreadable(name, "parquet", exc) from exc
