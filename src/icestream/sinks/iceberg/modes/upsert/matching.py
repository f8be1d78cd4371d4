"""The second pass of an upsert: the batch's keys looked up in the table, old rows deleted."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.schema import Schema

from icestream.sinks.iceberg.modes.upsert.key_index import IndexSettings, find, joined
from icestream.sinks.iceberg.modes.upsert.number_files import (
    numbers_of,
    read_numbers,
    write_numbers,
)
from icestream.sinks.iceberg.modes.upsert.table_rows import TableRows
from icestream.sinks.iceberg.modes.upsert.vectors import DeleteWriter, read_dead
from icestream.sinks.iceberg.modes.upsert.worker_cache import tidy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from pyiceberg.io import FileIO

    from icestream.sinks.iceberg.java_files import LiveFile
    from icestream.sinks.iceberg.modes.upsert.key_index import Found
    from icestream.sinks.iceberg.modes.upsert.newest import BatchKeys
    from icestream.sinks.iceberg.modes.upsert.table_rows import TableRowsFile

    Ints = npt.NDArray[np.int64]

# A task for this many rows of the table at least: less is not worth starting one.
ROWS_A_TASK = 2_000_000
# Of each task's keys, about a megabyte.
KEYS_A_REPORT = 50_000


@dataclass(frozen=True)
class Matched:
    """What one task found and did.

    Attributes:
        keys: keys of the batch that the table holds a row of, older than the change.
        row_ids: the id of each such row, -1 if it has none.
        late: keys for which the table's row is newer than the change.
        deletes: the delete files written.
        replaced: the delete files that they stand for.
        touched: the data files that they speak of.
        sequence: how new each row of `keys` is; None if the stream does not tell.
        rows: the table's rows, where the change was sent without some columns.
        numbers_path: the file that holds `keys`, `row_ids`, `late` and `sequence` if they are many.
    """

    keys: Ints
    row_ids: Ints
    late: Ints
    deletes: list[dict[str, Any]] = field(default_factory=list)
    replaced: list[dict[str, Any]] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    sequence: Ints | None = None
    rows: TableRowsFile | None = None
    numbers_path: str | None = None

    def stored(self, io: FileIO, path: str) -> Matched:
        """Return the same for a report: what is many goes to a file."""
        if len(self.keys) + len(self.late) <= KEYS_A_REPORT:
            return self
        none = np.full(len(self.late), -1)
        arrays = {
            "key": np.concatenate([self.keys, self.late]),
            "row_id": np.concatenate([self.row_ids, none]),
            "late": np.repeat([False, True], [len(self.keys), len(self.late)]),
        }
        if self.sequence is not None:
            arrays["sequence"] = np.concatenate([self.sequence, none])
        write_numbers(io, path, numbers_of(arrays))
        empty = np.zeros(0, np.int64)
        return replace(
            self, keys=empty, row_ids=empty, late=empty, sequence=None, numbers_path=path
        )

    def loaded(self, io: FileIO) -> Matched:
        """Return the same with all of its numbers."""
        if self.numbers_path is None:
            return self
        found, _ = read_numbers(io, self.numbers_path)
        late = found["late"]
        return replace(
            self,
            keys=found["key"][~late],
            row_ids=found["row_id"][~late],
            late=found["key"][late],
            sequence=found["sequence"][~late] if "sequence" in found else None,
        )


@dataclass(frozen=True)
class MatchTask:
    """Looks a batch's keys up in some of the table's files.

    Attributes:
        batch: the keys of the batch.
        index: how keys are looked up.
        location: where the table is.
        format_version: of the table.
        folder: where the rows of the batch are staged.
        lacking: the columns that some row of the batch was sent without, as JSON of a schema.
    """

    batch: BatchKeys
    index: IndexSettings
    location: str
    format_version: int
    folder: str
    lacking: str | None = None

    @cached_property
    def _io(self) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.index.io_properties), self.location)

    def __call__(self, files: Sequence[LiveFile]) -> Matched:
        writer = DeleteWriter(self._io, self.location, self.format_version)
        wanted = self.batch.wants_table_row
        rows = None
        if self.lacking is not None:
            columns = Schema.model_validate_json(self.lacking)
            rows = TableRows(self._io, columns, f"{self.folder}/{uuid.uuid4()}.arrow")
        tidy(self.index.place.parent)
        keys, row_ids, late, sequence = [], [], [], []
        for file in files:
            found = find(file, self.batch, self.index)
            if not len(found.keys):
                continue
            dead = read_dead(file, self._io)
            alive = _not_in(found.positions, np.asarray(dead.to_array(), np.int64))
            newer = self._newer(found) & alive
            hit = alive & ~newer
            late.append(found.keys[newer])
            if not hit.any():
                continue
            writer.delete(file, dead, found.positions[hit])
            keys.append(found.keys[hit])
            # A file from before the table was upgraded to v3 has no ids.
            known = np.full(len(hit), -1) if found.row_ids is None else found.row_ids
            row_ids.append(known[hit])
            if found.sequence is not None:
                sequence.append(found.sequence[hit])
            if rows is not None and wanted is not None:
                asked = hit & wanted[found.keys]
                rows.take(file.path, found.keys[asked], found.positions[asked])
        matched = Matched(
            keys=joined(keys),
            row_ids=joined(row_ids),
            late=joined(late),
            deletes=writer.close(),
            replaced=writer.replaced,
            touched=writer.touched,
            rows=None if rows is None else rows.close(),
            sequence=joined(sequence) if self.batch.sequence is not None else None,
        )
        return matched.stored(self._io, f"{self.folder}/{uuid.uuid4()}.keys")

    def _newer(self, found: Found) -> npt.NDArray[np.bool_]:
        if found.sequence is None or self.batch.sequence is None:
            return np.zeros(len(found.keys), np.bool_)
        return found.sequence > self.batch.sequence[found.keys]


def pieces_of(files: Sequence[LiveFile], slots: int) -> list[list[LiveFile]]:
    """Share files out among tasks, evenly by rows."""
    total = sum(file.rows for file in files)
    count = max(1, min(slots, len(files), -(-total // ROWS_A_TASK)))
    pieces: list[list[LiveFile]] = [[] for _ in range(count)]
    loads = [0] * count
    for file in sorted(files, key=lambda one: one.rows, reverse=True):
        least = loads.index(min(loads))
        pieces[least].append(file)
        loads[least] += file.rows
    return [piece for piece in pieces if piece]


def _not_in(values: Ints, sorted_values: Ints) -> npt.NDArray[np.bool_]:
    if not len(sorted_values):
        return np.ones(len(values), np.bool_)
    at = np.searchsorted(sorted_values, values)
    at[at == len(sorted_values)] = 0
    flags: npt.NDArray[np.bool_] = sorted_values[at] != values
    return flags
