"""The tasks of an upsert's write pass: they write the staged rows of a chunk to data files.

Values that a row was sent without are filled in from earlier changes of the batch and from the
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icestream.arrow import GROUP_BYTES
from icestream.sinks.iceberg.upsert.latest_changes import (
    FROM_TABLE,
    NOWHERE,
    RowAddress,
    map_distinct,
)
from icestream.sinks.iceberg.upsert.staging import read_staged_rows
from icestream.sinks.iceberg.upsert.table_rows import KEY
from icestream.sinks.iceberg.writer import sort_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.partition_terms import SortTerm
    from icestream.sinks.iceberg.upsert.latest_changes import LatestChanges
    from icestream.sinks.iceberg.upsert.table_rows import TableRowsFile
    from icestream.sinks.iceberg.writer import IcebergWriter

    Ints = npt.NDArray[np.int64]
    Indexes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]


ROW_ID_NAME = "_row_id"
ROWS_PER_BATCH = 65_536


@dataclass(frozen=True)
class Donors:
    """Where the missing values of a chunk's rows come from.

    Attributes:
        by_column: for each row, an index into `addresses`, `FROM_TABLE`, or `NOWHERE` for a value
            that stays as it is. Only columns that some row was sent without.
        addresses: the changes of the batch that supply values.
    """

    by_column: Mapping[str, Indexes]
    addresses: RowAddress

    @classmethod
    def of(cls, batch: LatestChanges, keys: Ints) -> Donors:
        """Return the donors for some of the batch's keys."""

        def chosen(name: str) -> Indexes:
            is_missing = batch.missing_columns[name][keys]
            return np.where(is_missing, batch.donors[name][keys], np.int32(NOWHERE))

        donors = map_distinct(batch.donors, chosen)
        used = np.zeros(len(batch.addresses.row), np.bool_)
        for indexes in donors.values():
            used[indexes[indexes >= 0]] = True
        at = np.flatnonzero(used)
        numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)  # of each change among those used

        def renumbered(name: str) -> Indexes:
            indexes = donors[name]
            return np.where(indexes >= 0, numbers[np.maximum(indexes, 0)], indexes)

        by_column = map_distinct(donors, renumbered)
        return cls(by_column, RowAddress(batch.addresses.chunk[at], batch.addresses.row[at]))


@dataclass(frozen=True)
class ChunkRows:
    """The rows of one chunk to write.

    Attributes:
        chunk: number of the chunk.
        keys: numbers of their keys in the batch.
        rows: numbers of the rows in the chunk, in order of arrival.
        row_ids: the id of the row that each replaces, -1 for none; None before v3.
        donors: where missing values come from; None if none are missing.
    """

    chunk: int
    keys: Ints
    rows: Indexes
    row_ids: Ints | None
    donors: Donors | None = None


@dataclass(frozen=True)
class WriteTask:
    """Writes the rows of chunks.

    Attributes:
        chunks: the path of each chunk.
        writer: the writer of data files.
        table_rows: files with values of the table's own rows, each with its key.
        order: the sort order of the rows of a file.
        io_properties: how PyIceberg reaches the store, secrets included.
        max_bytes: maximum size of rows in memory.
    """

    chunks: tuple[str, ...]
    writer: IcebergWriter
    table_rows: tuple[TableRowsFile, ...]
    order: tuple[SortTerm, ...]
    io_properties: Mapping[str, str]
    max_bytes: int = GROUP_BYTES

    def __call__(self, piece: ChunkRows) -> list[WrittenFile]:
        tables = self._tables(piece)
        if not self.order:
            return self.writer.write(batch for rows in tables for batch in _batches(rows))
        # Sort piece by piece and write each to separate files: the order is that of a file.
        written = [self.writer.write(_batches(sort_rows(rows, self.order))) for rows in tables]
        return [file for files in written for file in files]

    def _tables(self, piece: ChunkRows) -> Iterator[pa.Table]:
        """Yield the rows to write, in the order they came, in pieces of bounded size."""
        path = self.chunks[piece.chunk]
        filling = None if piece.donors is None else _MissingValueFiller(self, piece.donors)
        # The values to fill in may be much larger than the rows that lack them.
        largest = max((file.row_bytes for file in self.table_rows), default=0)
        step = max(self.max_bytes // largest, 1) if largest else len(piece.rows)
        for first, staged in read_staged_rows(path, self.io_properties, None, self.max_bytes):
            start, stop = np.searchsorted(piece.rows, (first, first + staged.num_rows))
            for begin in range(start, stop, step):
                part = slice(begin, min(begin + step, stop))
                rows = staged.take(pa.array(piece.rows[part] - first))
                if filling is not None:
                    rows = filling.fill(rows, piece.keys[part], part)
                if piece.row_ids is not None:
                    ids = piece.row_ids[part]
                    rows = rows.append_column(ROW_ID_NAME, pa.array(ids, mask=ids < 0))
                yield rows


class _MissingValueFiller:
    """Fills in missing values, from earlier changes of the batch and from the table."""

    def __init__(self, task: WriteTask, donors: Donors) -> None:
        self._task = task
        self._donors = donors
        self._table_keys: dict[str, tuple[Ints, Ints]] = {}  # sorted keys of a file, and their rows
        self._read: dict[tuple[str, str], list[tuple[int, pa.Array]]] = {}

    def fill(self, rows: pa.Table, keys: Ints, part: slice) -> pa.Table:
        table_rows = [
            (file.path, self._row_numbers(file.path, keys)) for file in self._task.table_rows
        ]
        for name, donors_of_all in self._donors.by_column.items():
            donors = donors_of_all[part]
            if (donors == NOWHERE).all():
                continue
            column = rows.column(name).combine_chunks()
            for path, at in table_rows:
                at_rows = np.where(donors == FROM_TABLE, at, -1)
                column = self._take_values(column, path, name, at_rows)
            column = self._from_batch(column, name, donors)
            rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
        return rows

    def _row_numbers(self, path: str, keys: Ints) -> Ints:
        """Return for each key which of the table's rows in a file is its own; -1 for none."""
        if path not in self._table_keys:
            table_keys = np.concatenate([part.to_numpy() for _, part in self._values(path, KEY)])
            order = np.argsort(table_keys)
            self._table_keys[path] = table_keys[order], order
        table_keys, order = self._table_keys[path]
        at = np.minimum(np.searchsorted(table_keys, keys), len(table_keys) - 1)
        return np.where(table_keys[at] == keys, order[at], -1)

    def _from_batch(self, column: pa.Array, name: str, donors: Indexes) -> pa.Array:
        """Take values from earlier changes of the batch, which may be of another chunk."""
        addresses = self._donors.addresses
        for number in np.unique(addresses.chunk[donors[donors >= 0]]):
            in_chunk = donors >= 0
            in_chunk[in_chunk] = addresses.chunk[donors[in_chunk]] == number
            rows = np.where(in_chunk, addresses.row[np.where(in_chunk, donors, 0)], -1)
            column = self._take_values(column, self._task.chunks[number], name, rows)
        return column

    def _take_values(self, column: pa.Array, path: str, name: str, rows: Ints) -> pa.Array:
        """Return a column with the values of the given rows of a file; -1 leaves one as it is."""
        for first, values in self._values(path, name):
            in_piece = (rows >= first) & (rows < first + len(values))
            if in_piece.any():
                taken = values.take(pa.array(rows - first, mask=~in_piece))
                if taken.type != column.type:
                    taken = taken.cast(column.type)
                column = _choose(in_piece, taken, column)
        return column

    def _values(self, path: str, name: str) -> list[tuple[int, pa.Array]]:
        """Return one column of a file, in pieces with the number of their first row."""
        if (path, name) not in self._read:
            pieces = read_staged_rows(path, self._task.io_properties, [name], self._task.max_bytes)
            self._read[path, name] = [
                (first, rows.column(0).combine_chunks()) for first, rows in pieces
            ]
        return self._read[path, name]


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=ROWS_PER_BATCH)
    return batches


def _choose(flags: Flags, values: pa.Array, other: pa.Array) -> pa.Array:
    # By position, not `if_else`, which does not support some types.
    own = np.arange(len(flags))
    return pa.concat_arrays([values, other]).take(pa.array(np.where(flags, own, own + len(own))))
