"""The Spark jobs of an upsert: match the batch's keys in the table, then write its rows.

Both halves are here: what the driver plans, and the task that writes the rows of a chunk and fills
in the values that they were sent without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField

from icestream.arrow import GROUP_BYTES
from icestream.contracts.reports import run_in_tasks
from icestream.sinks.iceberg.partition_terms import parse_sort
from icestream.sinks.iceberg.upsert.key_index import ROW_ID
from icestream.sinks.iceberg.upsert.latest_changes import (
    FROM_TABLE,
    NOWHERE,
    OLDEST,
    RowAddress,
    map_distinct,
)
from icestream.sinks.iceberg.upsert.matching import MatchTask, balance_files
from icestream.sinks.iceberg.upsert.staging import read_staged_rows
from icestream.sinks.iceberg.upsert.table_rows import KEY
from icestream.sinks.iceberg.writer import map_concurrently, sort_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icestream.contracts.sink import WrittenFile
    from icestream.sinks.iceberg.java import LiveFile
    from icestream.sinks.iceberg.partition_terms import SortTerm
    from icestream.sinks.iceberg.table import TargetTable
    from icestream.sinks.iceberg.upsert.key_index import IndexSettings
    from icestream.sinks.iceberg.upsert.latest_changes import BatchKeys, LatestChanges
    from icestream.sinks.iceberg.upsert.matching import MatchResult
    from icestream.sinks.iceberg.upsert.staging import StagedChunk
    from icestream.sinks.iceberg.upsert.table_rows import TableRowsFile
    from icestream.sinks.iceberg.writer import IcebergWriter

    Ints = npt.NDArray[np.int64]
    Indexes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]


RANGED = (IntegerType, LongType)
ROW_ID_NAME = "_row_id"
ROWS_PER_BATCH = 65_536


def prune_files(
    files: Sequence[LiveFile], batch: BatchKeys, index: IndexSettings, schema: Schema
) -> list[LiveFile]:
    """Return the files whose bounds include a key of the batch, or that have no bounds.

    Only for keys that are one integer: hashes have no order. With keys that grow over time, such
    as serial numbers, only the newest files remain.
    """
    kind = schema.find_field(index.key_ids[0]).field_type
    if batch.high is not None or not isinstance(kind, RANGED):
        return list(files)
    # As signed numbers: they are sorted as unsigned ones, where negative ones come last.
    keys = np.sort(batch.low.view(np.int64))
    return [file for file in files if _may_hold(file, keys, index.key_ids[0], kind)]


def _may_hold(file: LiveFile, keys: Ints, field: int, kind: IntegerType | LongType) -> bool:
    lower, upper = (_bound(file, side, field, kind) for side in ("lower-bounds", "upper-bounds"))
    if lower is None or upper is None:
        return True
    first = np.searchsorted(keys, lower, side="left")
    return bool(np.searchsorted(keys, upper, side="right") > first)


def _bound(file: LiveFile, side: str, field: int, kind: IntegerType | LongType) -> int | None:
    bounds = file.metadata.get(side)
    if bounds is None or field not in bounds["keys"]:
        return None
    raw = bytes.fromhex(bounds["values"][bounds["keys"].index(field)])
    # A file written before the column was widened has shorter bounds.
    stored = IntegerType() if len(raw) == 4 else kind
    return int(from_bytes(stored, raw))


def match_keys(
    target: TargetTable,
    batch: LatestChanges,
    files: Sequence[LiveFile],
    index: IndexSettings,
    folder: str,
) -> list[MatchResult]:
    """Find the batch's keys in the table, and delete the rows that they replace.

    Args:
        target: the table.
        batch: the keys.
        files: the table's data files.
        index: how keys are looked up.
        folder: where the rows of the batch are staged.
    """
    from pyiceberg.io import load_file_io

    state = target.state
    keys = batch.keys()
    candidates = prune_files(files, keys, index, state.schema)
    missing = [state.schema.find_field(name) for name in batch.donors]
    task = MatchTask(
        batch=keys,
        index=index,
        location=state.location,
        format_version=state.format_version,
        folder=folder,
        missing_columns=Schema(*missing).model_dump_json() if missing else None,
    )
    slots = target.session.sparkContext.defaultParallelism
    parts = run_in_tasks(target.session, balance_files(candidates, slots), task)
    io = load_file_io(target.io_properties(), state.location)
    matched = map_concurrently(parts, lambda part: part.load(io))
    target.delete_files(part.arrays_path for part in parts if part.arrays_path is not None)
    return matched


def late_keys(batch: LatestChanges, matched: Sequence[MatchResult]) -> Flags:
    """Tell for which keys the table's row is newer than the change."""
    late = np.zeros(len(batch), np.bool_)
    for part in matched:
        late[part.late] = True
    return late


def write_rows(
    target: TargetTable,
    batch: LatestChanges,
    chunks: Sequence[StagedChunk],
    matched: Sequence[MatchResult],
    late: Flags,
    deleted: Ints | None = None,
) -> tuple[list[WrittenFile], dict[str, int]]:
    """Write the rows of a batch that are neither deleted nor late.

    Args:
        target: the table.
        batch: the newest change of each key.
        chunks: the staged rows.
        matched: the matches of the keys in the table.
        late: keys whose change is older than the table's row.
        deleted: the sequence of the last delete of each key, if tombstones are kept.

    Returns:
        The files, and the number of rows per outcome.
    """
    exists = np.zeros(len(batch), np.bool_)
    in_table = np.full(len(batch), OLDEST, np.int64)
    row_ids = np.full(len(batch), -1, np.int64)
    for part in matched:
        exists[part.keys] = True
        row_ids[part.keys] = part.row_ids
        if part.sequence is not None:
            in_table[part.keys] = part.sequence
    batch = batch.without_outdated(deleted, in_table)
    counts = np.flatnonzero(~batch.deletes & ~late)
    keeps_ids = target.state.format_version >= 3 and bool((row_ids[counts] >= 0).any())
    pieces = _rows_by_chunk(batch, len(chunks), counts, row_ids if keeps_ids else None)
    task = WriteTask(
        chunks=tuple(chunk.path for chunk in chunks),
        writer=target.writer(with_row_ids(target.state.schema) if keeps_ids else None),
        table_rows=tuple(part.rows for part in matched if part.rows is not None),
        order=tuple(parse_sort(target.options)),
        io_properties=target.io_properties(),
    )
    written = run_in_tasks(target.session, pieces, task)
    return [file for files in written for file in files], {
        "inserted": int((~exists[counts]).sum()),
        "updated": int(exists[counts].sum()),
        "deleted": int((exists & batch.deletes & ~late).sum()),
        "late": int(late.sum()),
    }


def _rows_by_chunk(
    batch: LatestChanges, chunks: int, counts: Ints, row_ids: Ints | None
) -> list[ChunkRows]:
    pieces = []
    for number in range(chunks):
        keys = counts[batch.address.chunk[counts] == number]
        # In order of arrival, which may follow a sort order.
        keys = keys[np.argsort(batch.address.row[keys], kind="stable")]
        if len(keys):
            ids = None if row_ids is None else row_ids[keys]
            donors = Donors.of(batch, keys) if batch.donors else None
            pieces.append(ChunkRows(number, keys, batch.address.row[keys], ids, donors))
    return pieces


def with_row_ids(schema: Schema) -> Schema:
    """Return the schema of a data file that keeps the ids of existing rows."""
    ids = NestedField(ROW_ID, ROW_ID_NAME, LongType(), required=False)
    return Schema(*schema.fields, ids, schema_id=schema.schema_id)


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
