"""Reads Parquet files."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.sources.files.columns import fit, refuse_new_columns, storable_columns
from icestream.sources.files.opened import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.sources.files.opened import FilePart

ROWS_A_BLOCK = 50_000


def rows_in_groups(file: IO[bytes]) -> list[int]:
    """Return how many rows each row group of a file has; empty if the file is broken."""
    try:
        found = pq.read_metadata(file)
    except pa.ArrowInvalid:
        # Whoever reads the file tells; here only its size is asked for.
        return []
    return [found.row_group(group).num_rows for group in range(found.num_row_groups)]


def parquet_schema(file: IO[bytes], name: str) -> pa.Schema:
    """Return the columns of a file."""
    try:
        return storable_columns(pq.read_schema(file))
    except pa.ArrowInvalid as exc:
        raise unreadable(name, "parquet", exc) from exc


def read_parquet(
    file: IO[bytes], part: FilePart, name: str, schema: pa.Schema, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the columns of `schema`.

    Args:
        file: the file, opened.
        part: which row groups to read.
        name: what the file is called in an error.
        schema: the columns to give; one that the file lacks is null.
        strict: whether a column that `schema` lacks is an error.
    """
    try:
        reader = pq.ParquetFile(file)
        found = reader.schema_arrow
        if strict:
            refuse_new_columns(found.names, schema, name)
        columns = [column for column in schema.names if column in found.names]
        for batch in reader.iter_batches(ROWS_A_BLOCK, part.row_groups, columns):
            yield fit(batch, schema, name)
    except (pa.ArrowInvalid, OSError) as exc:
        raise unreadable(name, "parquet", exc) from exc
