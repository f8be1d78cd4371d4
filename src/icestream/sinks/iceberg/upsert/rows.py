"""Writes the rows of an upsert to data files, filling in values that they were sent without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icestream.arrow import GROUP_BYTES
from icestream.sinks.iceberg.upsert.key_index import ROW_ID
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
    from pyiceberg.schema import Schema

    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.partition_terms import SortTerm
    from icestream.sinks.iceberg.upsert.latest_changes import LatestChanges
    from icestream.sinks.iceberg.upsert.table_rows import TableRowsFile
    from icestream.sinks.iceberg.writer import IcebergWriter

    Ints = npt.NDArray[np.int64]
    Indexes = npt.NDArray[np.int32]


ROW_ID_NAME = "_row_id"
ROWS_PER_BATCH = 65_536


def with_row_ids(schema: Schema) -> Schema:
    """Return the schema of a data file that keeps the ids of rows which were there before."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    ids = NestedField(ROW_ID, ROW_ID_NAME, LongType(), required=False)
    return Schema(*schema.fields, ids, schema_id=schema.schema_id)


@dataclass(frozen=True)
class Donors:
    """Where the values come from that some rows of a chunk were sent without.

    Attributes:
        by_column: for each row, an index into `addresses`, `FROM_TABLE`, or `NOWHERE` for a value
            that stays as it is. Only columns that some row was sent without.
        addresses: where the changes of the batch are that give values.
    """

    by_column: Mapping[str, Indexes]
    addresses: RowAddress

    @classmethod
    def of(cls, batch: LatestChanges, keys: Ints) -> Donors:
        """Return what a task needs to know for some of the batch's keys."""

        def chosen(name: str) -> Indexes:
            lacking = batch.missing_columns[name][keys]
            return np.where(lacking, batch.donors[name][keys], np.int32(NOWHERE))

        found = map_distinct(batch.donors, chosen)
        used = np.zeros(len(batch.addresses.row), np.bool_)
        for each in found.values():
            used[each[each >= 0]] = True
        at = np.flatnonzero(used)
        numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)  # of each change among those used

        def renumbered(name: str) -> Indexes:
            each = found[name]
            return np.where(each >= 0, numbers[np.maximum(each, 0)], each)

        by_column = map_distinct(found, renumbered)
        return cls(by_column, RowAddress(batch.addresses.chunk[at], batch.addresses.row[at]))


@dataclass(frozen=True)
class ChunkRows:
    """The rows of one chunk that are written.

    Attributes:
        chunk: number of the chunk.
        keys: which keys of the batch they are.
        rows: which rows of the chunk, in the order they came.
        row_ids: the id of the row that each takes the place of, -1 for none; None before v3.
        donors: where values come from that some were sent without; None if none was.
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
        chunks: where each chunk is.
        writer: of data files.
        table_rows: files with values of the table's own rows, and the key that each is for.
        order: the sort order of the rows of a file.
        io_properties: how PyIceberg reaches the store, secrets included.
        most_bytes: how much is joined at once.
    """

    chunks: tuple[str, ...]
    writer: IcebergWriter
    table_rows: tuple[TableRowsFile, ...]
    order: tuple[SortTerm, ...]
    io_properties: Mapping[str, str]
    most_bytes: int = GROUP_BYTES

    def __call__(self, piece: ChunkRows) -> list[WrittenFile]:
        tables = self._tables(piece)
        if not self.order:
            return self.writer.write(batch for rows in tables for batch in _batches(rows))
        # Sorted piece by piece, each of which has files of its own: the order is that of a file.
        written = [self.writer.write(_batches(sort_rows(rows, self.order))) for rows in tables]
        return [file for files in written for file in files]

    def _tables(self, piece: ChunkRows) -> Iterator[pa.Table]:
        """Yield the rows to write, in the order they came, in pieces of bounded size."""
        path = self.chunks[piece.chunk]
        filling = None if piece.donors is None else _MissingValueFiller(self, piece.donors)
        # Values that are filled in may be much larger than the rows that lack them.
        largest = max((file.row_bytes for file in self.table_rows), default=0)
        step = max(self.most_bytes // largest, 1) if largest else len(piece.rows)
        for first, staged in read_staged_rows(path, self.io_properties, None, self.most_bytes):
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
    """Fills in what rows were sent without, from earlier changes of the batch and the table."""

    def __init__(self, task: WriteTask, donors: Donors) -> None:
        self._task = task
        self._donors = donors
        self._held: dict[str, tuple[Ints, Ints]] = {}  # sorted keys of a file, and their rows
        self._read: dict[tuple[str, str], list[tuple[int, pa.Array]]] = {}

    def fill(self, rows: pa.Table, keys: Ints, part: slice) -> pa.Table:
        held = [(file.path, self._row_numbers(file.path, keys)) for file in self._task.table_rows]
        for name, donors_of_all in self._donors.by_column.items():
            donors = donors_of_all[part]
            if (donors == NOWHERE).all():
                continue
            column = rows.column(name).combine_chunks()
            for path, at in held:
                asked = np.where(donors == FROM_TABLE, at, -1)
                column = self._take_values(column, path, name, asked)
            column = self._from_batch(column, name, donors)
            rows = rows.set_column(rows.schema.get_field_index(name), rows.field(name), column)
        return rows

    def _row_numbers(self, path: str, keys: Ints) -> Ints:
        """Return for each key which of the table's rows in a file is its own; -1 for none."""
        if path not in self._held:
            held = np.concatenate([part.to_numpy() for _, part in self._values(path, KEY)])
            order = np.argsort(held)
            self._held[path] = held[order], order
        held, order = self._held[path]
        at = np.minimum(np.searchsorted(held, keys), len(held) - 1)
        return np.where(held[at] == keys, order[at], -1)

    def _from_batch(self, column: pa.Array, name: str, donors: Indexes) -> pa.Array:
        """Take values from earlier changes of the batch, which may be of another chunk."""
        places = self._donors.addresses
        for number in np.unique(places.chunk[donors[donors >= 0]]):
            mine = donors >= 0
            mine[mine] = places.chunk[donors[mine]] == number
            rows = np.where(mine, places.row[np.where(mine, donors, 0)], -1)
            column = self._take_values(column, self._task.chunks[number], name, rows)
        return column

    def _take_values(self, column: pa.Array, path: str, name: str, rows: Ints) -> pa.Array:
        """Return a column with the values of the given rows of a file; -1 leaves one as it is."""
        for first, values in self._values(path, name):
            mine = (rows >= first) & (rows < first + len(values))
            if mine.any():
                found = values.take(pa.array(rows - first, mask=~mine))
                if found.type != column.type:
                    found = found.cast(column.type)
                column = _choose(mine, found, column)
        return column

    def _values(self, path: str, name: str) -> list[tuple[int, pa.Array]]:
        """Return one column of a file, in pieces with the number of their first row."""
        if (path, name) not in self._read:
            found = read_staged_rows(path, self._task.io_properties, [name], self._task.most_bytes)
            self._read[path, name] = [
                (first, rows.column(0).combine_chunks()) for first, rows in found
            ]
        return self._read[path, name]


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=ROWS_PER_BATCH)
    return batches


def _choose(flags: npt.NDArray[np.bool_], values: pa.Array, other: pa.Array) -> pa.Array:
    # By position, not `if_else`, which has no way with some types.
    own = np.arange(len(flags))
    return pa.concat_arrays([values, other]).take(pa.array(np.where(flags, own, own + len(own))))
