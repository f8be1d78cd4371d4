"""Reads rows of the table's data files by Iceberg's field ids, which survive renames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema
from pyiceberg.schema import Schema

from icestream.errors import ConnectorError
from icestream.sinks.iceberg.upsert.staging import make_optional
from icestream.sinks.iceberg.writer import conform, file_columns

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow.parquet as pq
    from pyiceberg.io import FileIO

    Ints = npt.NDArray[np.int64]


def open_data_file(stream: Any) -> pq.ParquetFile:
    """Open a data file of the table, with INT96 timestamps as microseconds.

    As nanoseconds, Arrow's default, years outside of 1677 to 2262 would overflow.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")


def names_by_id(parquet: pq.ParquetFile, path: str) -> dict[int, str]:
    """Return the name of each top-level column in the file.

    Raises:
        ConnectorError: the file has no field ids, so its columns can't be identified.
    """
    names = {
        int(column.metadata[b"PARQUET:field_id"]): column.name
        for column in parquet.schema_arrow
        if column.metadata and b"PARQUET:field_id" in column.metadata
    }
    if not names:
        raise ConnectorError(
            f"upsert can't look for keys in {path}: its columns have no field ids, as in "
            "imported files",
            todo="Rewrite the table's files first, with `rewrite_data_files` and `rewrite-all`.",
        )
    return names


KEY = "__icestream_key"
ROWS_READ_AT_ONCE = 65_536


@dataclass(frozen=True)
class TableRowsFile:
    """Rows of the table in an Arrow file, each with the number of its key in the batch.

    Attributes:
        path: the file.
        row_bytes: approximate size of a row, where rows are largest.
    """

    path: str
    row_bytes: int


class TableRows:
    """Copies columns of selected rows from several data files to one Arrow file.

    Args:
        io: the store.
        columns: the columns as the table has them now; in a file, they and their members may have
            older names and narrower types.
        path: the Arrow file.
    """

    def __init__(self, io: FileIO, columns: Schema, path: str) -> None:
        self._io = io
        self._columns = make_optional(columns)
        self._arrow_columns = file_columns(self._columns)
        self._path = path
        self._row_bytes = 0
        self._stream: Any = None
        self._file: Any = None

    def read_rows(self, path: str, keys: Ints, positions: Ints) -> None:
        """Read the rows at `positions` of a data file, each for a key of the batch."""
        if not len(positions):
            return
        order = np.argsort(positions, kind="stable")
        keys, positions = keys[order], positions[order]
        with self._io.new_input(path).open() as stream:
            parquet = open_data_file(stream)
            names = names_by_id(parquet, path)
            present = [names[one.field_id] for one in self._columns.fields if one.field_id in names]
            if not present:
                self._add(pa.record_batch({KEY: pa.array(keys)}), keys)
                return
            end = 0
            for number in range(parquet.num_row_groups):
                start, end = end, end + parquet.metadata.row_group(number).num_rows
                first, last = np.searchsorted(positions, (start, end))
                if last > first:
                    at = positions[first:last] - start
                    self._read_row_group(parquet, number, present, keys[first:last], at)

    def close(self) -> TableRowsFile | None:
        """Return the file; None if no row was read."""
        if self._file is None:
            return None
        self._file.close()
        self._stream.close()
        return TableRowsFile(self._path, self._row_bytes)

    def _read_row_group(
        self, parquet: pq.ParquetFile, number: int, names: list[str], keys: Ints, at: Ints
    ) -> None:
        """Read rows of one row group, a few at a time."""
        # A writer may store nanoseconds where the table has microseconds.
        cut = not any(kind in str(self._columns) for kind in ("timestamp_ns", "timestamptz_ns"))
        end = 0
        for rows in parquet.iter_batches(ROWS_READ_AT_ONCE, row_groups=[number], columns=names):
            start, end = end, end + rows.num_rows
            first, last = np.searchsorted(at, (start, end))
            if last == first:
                continue
            chosen = rows.take(pa.array(at[first:last] - start))
            file_schema = pyarrow_to_schema(chosen.schema, downcast_ns_timestamp_to_us=cut)
            present = [
                one for one in self._columns.fields if one.field_id in file_schema._lazy_id_to_name
            ]
            conformed = _to_requested_schema(
                Schema(*present), file_schema, chosen, downcast_ns_timestamp_to_us=cut
            )
            self._add(conformed, keys[first:last])

    def _add(self, rows: pa.RecordBatch, keys: Ints) -> None:
        conformed = conform(rows, self._columns, self._arrow_columns)
        conformed = conformed.append_column(KEY, pa.array(keys))
        if self._file is None:
            self._stream = self._io.new_output(self._path).create()
            self._file = pa.ipc.new_file(pa.PythonFile(self._stream, mode="w"), conformed.schema)
        self._file.write_batch(conformed)
        self._row_bytes = max(self._row_bytes, -(-conformed.nbytes // conformed.num_rows))
