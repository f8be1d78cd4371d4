"""The third pass of an upsert: the rows that count, written to data files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.sinks.iceberg.arrow_sort import in_order
from icestream.sinks.iceberg.modes.upsert.key_index import ROW_ID
from icestream.sinks.iceberg.modes.upsert.newest import FROM_TABLE, Newest
from icestream.sinks.iceberg.modes.upsert.staging import read_chunk
from icestream.sinks.iceberg.modes.upsert.table_rows import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from pyiceberg.schema import Schema

    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.sort import SortTerm
    from icestream.sinks.iceberg.writer import IcebergWriter

    Ints = npt.NDArray[np.int64]

ROW_ID_NAME = "_row_id"
ROWS_A_BATCH = 65_536


def with_row_ids(schema: Schema) -> Schema:
    """Return the schema of a data file that keeps the ids of rows which were there before."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    ids = NestedField(ROW_ID, ROW_ID_NAME, LongType(), required=False)
    return Schema(*schema.fields, ids, schema_id=schema.schema_id)


@dataclass(frozen=True)
class Rows:
    """The rows of one chunk that are written.

    Attributes:
        chunk: number of the chunk.
        keys: which keys of the batch they are.
        rows: which rows of the chunk, in the order they came.
        row_ids: the id of the row that each takes the place of, -1 for none; None before v3.
    """

    chunk: int
    keys: Ints
    rows: Ints
    row_ids: Ints | None


@dataclass(frozen=True)
class WriteTask:
    """Writes the rows of chunks.

    Attributes:
        chunks: where each chunk is.
        writer: of data files.
        batch: the newest change of each key, for columns that some were sent without.
        table_rows: values of the table's own rows, with the key that each is for.
        order: the sort order of the rows of a file.
        io_properties: how PyIceberg reaches the store, secrets included.
    """

    chunks: tuple[str, ...]
    writer: IcebergWriter
    batch: Newest | None
    table_rows: pa.Table | None
    order: tuple[SortTerm, ...]
    io_properties: Mapping[str, str]

    def __call__(self, piece: Rows) -> list[WrittenFile]:
        staged = read_chunk(self.chunks[piece.chunk], self.io_properties)
        rows = staged.take(pa.array(piece.rows))
        if self.batch is not None:
            rows = self._filled(rows, piece, self.batch)
        if piece.row_ids is not None:
            known = pa.array(piece.row_ids, mask=piece.row_ids < 0)
            rows = rows.append_column(ROW_ID_NAME, known)
        if self.order:
            rows = in_order(rows, self.order)
        return self.writer.write(rows.to_batches(max_chunksize=ROWS_A_BATCH))

    def _filled(self, rows: pa.Table, piece: Rows, batch: Newest) -> pa.Table:
        for name in batch.donors:
            lacking = batch.lacking[name][piece.keys]
            if not lacking.any():
                continue
            donors = batch.donors[name][piece.keys]
            column = rows.column(name).combine_chunks()
            column = self._from_table(column, name, piece.keys, lacking & (donors == FROM_TABLE))
            column = self._from_batch(column, name, batch, np.where(lacking, donors, -1))
            rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
        return rows

    def _from_table(
        self, column: pa.Array, name: str, keys: Ints, asked: npt.NDArray[np.bool_]
    ) -> pa.Array:
        rows = self.table_rows
        if rows is None or not asked.any() or name not in rows.schema.names:
            return column
        held = rows.column(KEY).combine_chunks()
        at = pc.index_in(pa.array(keys), held)
        # A key that the table lacks keeps what was sent, if only nulls.
        asked = asked & at.is_valid().to_numpy(zero_copy_only=False)
        values = rows.column(name).combine_chunks().cast(column.type).take(at)
        return _chosen(asked, values, column)

    def _from_batch(self, column: pa.Array, name: str, batch: Newest, donors: Ints) -> pa.Array:
        """Take values from earlier changes of the batch, which may be of another chunk."""
        for number in np.unique(batch.all_places.chunk[donors[donors >= 0]]):
            mine = donors >= 0
            mine[mine] = batch.all_places.chunk[donors[mine]] == number
            rows = batch.all_places.row[np.where(mine, donors, 0)]
            given = read_chunk(self.chunks[number], self.io_properties).column(name)
            rows = np.where(mine, rows, 0)
            values = given.combine_chunks().take(pa.array(rows))
            column = _chosen(mine, values, column)
        return column


def _chosen(flags: npt.NDArray[np.bool_], values: pa.Array, other: pa.Array) -> pa.Array:
    # By position, not `if_else`, which has no way with some types.
    own = np.arange(len(flags))
    return pa.concat_arrays([values, other]).take(pa.array(np.where(flags, own, own + len(own))))
