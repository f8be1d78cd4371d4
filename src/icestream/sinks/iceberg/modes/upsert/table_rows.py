"""Rows of the table at given positions: for changes that were sent without some columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyiceberg.io import FileIO

    Ints = npt.NDArray[np.int64]

KEY = "__key"


class TableRows:
    """Gathers columns of chosen rows, from one data file after the other.

    Args:
        io: the store.
        fields: field ids of the columns; they are the columns' names in what comes out, since a
            data file may know a column by an older name.
    """

    def __init__(self, io: FileIO, fields: tuple[int, ...]) -> None:
        self._io = io
        self._fields = fields
        self._parts: list[pa.Table] = []

    def take(self, path: str, keys: Ints, positions: Ints) -> None:
        """Read the rows at `positions` of a data file, each for a key of the batch."""
        if not len(positions):
            return
        order = np.argsort(positions, kind="stable")
        keys, positions = keys[order], positions[order]
        with self._io.new_input(path).open() as stream:
            parquet = pq.ParquetFile(stream)
            names = {
                int(column.metadata[b"PARQUET:field_id"]): column.name
                for column in parquet.schema_arrow
                if column.metadata and b"PARQUET:field_id" in column.metadata
            }
            known = [field for field in self._fields if field in names]
            offset = 0
            for number in range(parquet.num_row_groups):
                end = offset + parquet.metadata.row_group(number).num_rows
                first, last = np.searchsorted(positions, (offset, end))
                if last > first:
                    rows = parquet.read_row_group(number, columns=[names[f] for f in known])
                    chosen = rows.take(pa.array(positions[first:last] - offset))
                    part = chosen.select([names[f] for f in known]).rename_columns(
                        [str(field) for field in known]
                    )
                    self._parts.append(part.append_column(KEY, pa.array(keys[first:last])))
                offset = end

    def all(self) -> pa.Table | None:
        """Return everything taken; a column that a file lacks is null there."""
        if not self._parts:
            return None
        bare = [part.replace_schema_metadata(None) for part in self._parts]
        return pa.concat_tables(bare, promote_options="permissive").combine_chunks()
