"""Rows of the table at given positions: for changes that were sent without some columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema
from pyiceberg.schema import Schema

from icestream.sinks.iceberg.modes.upsert.parquet_fields import names_by_id

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyiceberg.io import FileIO

    Ints = npt.NDArray[np.int64]

KEY = "__icestream_key"


class TableRows:
    """Gathers columns of chosen rows, from one data file after the other.

    Args:
        io: the store.
        columns: the columns, as the table has them now; a file may know them, and what they are
            made of, by older names and narrower types.
    """

    def __init__(self, io: FileIO, columns: Schema) -> None:
        self._io = io
        self._columns = columns
        self._parts: list[pa.Table] = []

    def take(self, path: str, keys: Ints, positions: Ints) -> None:
        """Read the rows at `positions` of a data file, each for a key of the batch."""
        if not len(positions):
            return
        order = np.argsort(positions, kind="stable")
        keys, positions = keys[order], positions[order]
        with self._io.new_input(path).open() as stream:
            parquet = pq.ParquetFile(stream)
            names = names_by_id(parquet, path)
            known = [names[one.field_id] for one in self._columns.fields if one.field_id in names]
            offset = 0
            for number in range(parquet.num_row_groups):
                end = offset + parquet.metadata.row_group(number).num_rows
                first, last = np.searchsorted(positions, (offset, end))
                if last > first:
                    rows = self._read(parquet, number, known, positions[first:last] - offset)
                    self._parts.append(rows.append_column(KEY, pa.array(keys[first:last])))
                offset = end

    def all(self) -> pa.Table | None:
        """Return everything taken; a column that a file lacks is null there."""
        if not self._parts:
            return None
        return pa.concat_tables(self._parts, promote_options="permissive").combine_chunks()

    def _read(self, parquet: pq.ParquetFile, number: int, known: list[str], at: Ints) -> pa.Table:
        if not known:
            return pa.table({KEY: pa.array(at)}).select([])
        chosen = parquet.read_row_group(number, columns=known).take(pa.array(at))
        held = pyarrow_to_schema(chosen.schema)
        there = [one for one in self._columns.fields if one.field_id in held._lazy_id_to_name]
        fitting = [
            _to_requested_schema(Schema(*there), held, batch, downcast_ns_timestamp_to_us=False)
            for batch in chosen.combine_chunks().to_batches()
        ]
        return pa.Table.from_batches(fitting)
