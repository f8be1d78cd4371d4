"""Columns of a data file by Iceberg's field ids, which outlive every rename."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.errors import ConnectorError

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def open_data_file(stream: Any) -> pq.ParquetFile:
    """Open a data file of the table, with INT96 timestamps as microseconds.

    As nanoseconds, which is Arrow's default, years outside of 1677 to 2262 become other years.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")


def names_by_id(parquet: pq.ParquetFile, path: str) -> dict[int, str]:
    """Return the name of each top-level column in the file.

    Raises:
        ConnectorError: the file has no ids, so it can't be told which column is which.
    """
    names = {
        int(column.metadata[b"PARQUET:field_id"]): column.name
        for column in parquet.schema_arrow
        if column.metadata and b"PARQUET:field_id" in column.metadata
    }
    if not names:
        raise ConnectorError(
            f"upsert can't look for keys in {path}: its columns have no field ids, as those of "
            "files that were imported",
            todo="Rewrite the table's files first, with `rewrite_data_files` and `rewrite-all`.",
        )
    return names
