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
    """Return the files within whose bounds a key of the batch lies, or which keep no bounds.

    Only for keys that are one whole number: hashes have no order. Keys that grow with time, as
    serial numbers do, leave all but the newest files out.
    """
    kind = schema.find_field(index.key_ids[0]).field_type
    if batch.high is not None or not isinstance(kind, RANGED):
        return list(files)
    # By their sign: as unsigned numbers, which they are sorted as, negative ones come last.
    keys = np.sort(batch.low.view(np.int64))
    return [file for file in files if _may_hold(file, keys, index.key_ids[0], kind)]


def _may_hold(file: LiveFile, keys: Ints, field: int, kind: IntegerType | LongType) -> bool:
    lower, upper = (_bound(file, side, field, kind) for side in ("lower-bounds", "upper-bounds"))
    if lower is None or upper is None:
        return True
    first = np.searchsorted(keys, lower, side="left")
    return bool(np.searchsorted(keys, upper, side="right") > first)


def _bound(file: LiveFile, side: str, field: int, kind: IntegerType | LongType) -> int | None:
    kept = file.metadata.get(side)
    if kept is None or field not in kept["keys"]:
        return None
    raw = bytes.fromhex(kept["values"][kept["keys"].index(field)])
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
    """Find the batch's keys in the table, and delete the rows that they take the place of.

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
    near = prune_files(files, keys, index, state.schema)
    lacking = [state.schema.find_field(name) for name in batch.donors]
    task = MatchTask(
        batch=keys,
        index=index,
        location=state.location,
        format_version=state.format_version,
        folder=folder,
        missing_columns=Schema(*lacking).model_dump_json() if lacking else None,
    )
    slots = target.session.sparkContext.defaultParallelism
    found = run_in_tasks(target.session, balance_files(near, slots), task)
    io = load_file_io(target.io_properties(), state.location)
    matched = map_concurrently(found, lambda part: part.load(io))
    target.delete_files(part.arrays_path for part in found if part.arrays_path is not None)
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
    """Write the rows of a batch that count.

    Args:
        target: the table.
        batch: the newest change of each key.
        chunks: where the rows are.
        matched: what was found of the keys in the table.
        late: keys whose change is older than what the table holds.
        deleted: how new the last delete of each key is, where that is remembered.

    Returns:
        The files, and how many rows did what.
    """
    there = np.zeros(len(batch), np.bool_)
    in_table = np.full(len(batch), OLDEST, np.int64)
    row_ids = np.full(len(batch), -1, np.int64)
    for part in matched:
        there[part.keys] = True
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
        "inserted": int((~there[counts]).sum()),
        "updated": int(there[counts].sum()),
        "deleted": int((there & batch.deletes & ~late).sum()),
        "late": int(late.sum()),
    }


def _rows_by_chunk(
    batch: LatestChanges, chunks: int, counts: Ints, row_ids: Ints | None
) -> list[ChunkRows]:
    pieces = []
    for number in range(chunks):
        keys = counts[batch.address.chunk[counts] == number]
        # In the order that they came, which a sort order may have given them.
        keys = keys[np.argsort(batch.address.row[keys], kind="stable")]
        if len(keys):
            ids = None if row_ids is None else row_ids[keys]
            donors = Donors.of(batch, keys) if batch.donors else None
            pieces.append(ChunkRows(number, keys, batch.address.row[keys], ids, donors))
    return pieces


def with_row_ids(schema: Schema) -> Schema:
    """Return the schema of a data file that keeps the ids of rows which were there before."""
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


def _choose(flags: Flags, values: pa.Array, other: pa.Array) -> pa.Array:
    # By position, not `if_else`, which has no way with some types.
    own = np.arange(len(flags))
    return pa.concat_arrays([values, other]).take(pa.array(np.where(flags, own, own + len(own))))
