"""Matches a batch's keys in the table's files, and deletes the rows that they replace.

Deletes are by position: deletion vectors for format v3, position delete files for v2. A data file
has at most one of either: the new one includes the old one, which is removed in the same commit.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyroaring import BitMap

from icestream.errors import ConnectorError
from icestream.sinks.iceberg.upsert.key_index import (
    IndexSettings,
    concatenate_ints,
    evict_unused,
    find_keys,
)
from icestream.sinks.iceberg.upsert.staging import (
    arrays_to_table,
    read_arrays,
    write_arrays,
)
from icestream.sinks.iceberg.upsert.table_rows import TableRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from pyiceberg.io import FileIO

    from icestream.sinks.iceberg.java import LiveFile
    from icestream.sinks.iceberg.upsert.key_index import KeyMatches
    from icestream.sinks.iceberg.upsert.latest_changes import BatchKeys
    from icestream.sinks.iceberg.upsert.table_rows import TableRowsFile

    Ints = npt.NDArray[np.int64]


PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
# Field ids that Iceberg's specification reserves.
ROW_POSITION = 2147483645
DELETED_PATH = 2147483546
DELETED_POSITION = 2147483545
POSITION_DELETES = pa.schema(
    [
        pa.field(
            "file_path",
            pa.string(),
            nullable=False,
            metadata={"PARQUET:field_id": str(DELETED_PATH)},
        ),
        pa.field(
            "pos",
            pa.int64(),
            nullable=False,
            metadata={"PARQUET:field_id": str(DELETED_POSITION)},
        ),
    ]
)


def read_deleted_positions(file: LiveFile, io: FileIO) -> BitMap:
    """Return the positions of a data file's rows that are already deleted."""
    dead = BitMap()
    for delete in file.deletes:
        if delete["content"] == "equality-deletes":
            raise ConnectorError(
                "upsert can't determine which rows exist: another writer added equality deletes "
                f"to {file.path}",
                todo="Apply them first: `CALL system.rewrite_data_files(table => '...', "
                "options => map('delete-file-threshold', '1'))`. Use one upsert writer per table.",
            )
        if delete["file-format"].lower() == "puffin":
            dead |= _read_vector(delete, io)
        else:
            dead |= _read_position_deletes(delete, file.path, io)
    return dead


def _read_vector(delete: Mapping[str, Any], io: FileIO) -> BitMap:
    with io.new_input(delete["file-path"]).open() as stream:
        stream.seek(delete["content-offset"])
        blob = stream.read(delete["content-size-in-bytes"])
    # length, magic, count of 32-bit maps; a data file has fewer rows than one of them holds.
    count = int.from_bytes(blob[8:16], "little")
    return BitMap.deserialize(blob[20:-4]) if count else BitMap()


def _read_position_deletes(delete: Mapping[str, Any], path: str, io: FileIO) -> BitMap:
    with io.new_input(delete["file-path"]).open() as stream:
        rows = pq.read_table(stream, columns=["file_path", "pos"], partitioning=None)
    deletes = rows.filter(pc.equal(rows.column("file_path"), path))
    return BitMap(deletes.column("pos").to_numpy().astype(np.uint32))


@dataclass
class DeleteWriter:
    """Writes the deletes of one task.

    Args:
        io: the store.
        location: where the table keeps its data files.
        format_version: of the table.
    """

    io: FileIO
    location: str
    format_version: int
    _vectors: list[tuple[LiveFile, BitMap]] = field(default_factory=list)
    _written: list[dict[str, Any]] = field(default_factory=list)
    replaced_deletes: list[dict[str, Any]] = field(default_factory=list)
    referenced_files: list[str] = field(default_factory=list)

    def delete(self, file: LiveFile, dead: BitMap, positions: Ints) -> None:
        """Delete rows of a data file, in addition to those already deleted."""
        union = dead | BitMap(positions.astype(np.uint32))
        self.referenced_files.append(file.path)
        # A table that was upgraded from v2 may also have delete files for several data files.
        self.replaced_deletes += [one for one in file.deletes if "referenced-data-file" in one]
        if self.format_version >= 3:
            self._vectors.append((file, union))
        else:
            self._written.append(self._write_positions(file, union))

    def close(self) -> list[dict[str, Any]]:
        """Return the delete files in the JSON form of Iceberg's specification."""
        if self._vectors:
            self._written += self._write_vectors()
            self._vectors = []
        return self._written

    def _new_path(self, suffix: str) -> str:
        return f"{self.location.rstrip('/')}/data/{uuid.uuid4()}-deletes.{suffix}"

    def _write_vectors(self) -> list[dict[str, Any]]:
        path = self._new_path("puffin")
        content = bytearray(PUFFIN_MAGIC)
        blobs, described = [], []
        for file, dead in self._vectors:
            blob = _vector_blob(dead)
            blobs.append(
                {
                    "type": "deletion-vector-v1",
                    "fields": [ROW_POSITION],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": len(content),
                    "length": len(blob),
                    "properties": {
                        "referenced-data-file": file.path,
                        "cardinality": str(len(dead)),
                    },
                }
            )
            described.append(
                {
                    **_delete_file_json(file, path, "puffin", len(dead)),
                    "content-offset": len(content),
                    "content-size-in-bytes": len(blob),
                }
            )
            content += blob
        footer = json.dumps({"blobs": blobs, "properties": {"created-by": "icestream"}}).encode()
        content += PUFFIN_MAGIC + footer + struct.pack("<i", len(footer)) + bytes(4) + PUFFIN_MAGIC
        with self.io.new_output(path).create() as stream:
            stream.write(bytes(content))
        return [{**one, "file-size-in-bytes": len(content)} for one in described]

    def _write_positions(self, file: LiveFile, dead: BitMap) -> dict[str, Any]:
        path = self._new_path("parquet")
        rows = pa.table(
            [pa.array([file.path] * len(dead)), pa.array(dead.to_array(), pa.int64())],
            schema=POSITION_DELETES,
        )
        with self.io.new_output(path).create() as stream:
            pq.write_table(rows, stream)
            size = stream.tell()
        # Equal bounds of the path tell readers of v2 that it is about one data file.
        bound = {"keys": [DELETED_PATH], "values": [file.path.encode().hex()]}
        return {
            **_delete_file_json(file, path, "parquet", len(dead)),
            "file-size-in-bytes": size,
            "lower-bounds": bound,
            "upper-bounds": bound,
        }


def _vector_blob(dead: BitMap) -> bytes:
    dead.run_optimize()
    body = VECTOR_MAGIC + struct.pack("<qI", 1, 0) + dead.serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _delete_file_json(file: LiveFile, path: str, kind: str, count: int) -> dict[str, Any]:
    return {
        "spec-id": file.metadata["spec-id"],
        "content": "position-deletes",
        "file-path": path,
        "file-format": kind,
        "partition": file.metadata["partition"],
        "record-count": count,
        "referenced-data-file": file.path,
    }


# Minimum rows of the table per task: fewer are not worth starting one.
ROWS_PER_TASK = 2_000_000
# About a megabyte per task.
KEYS_PER_REPORT = 50_000


@dataclass(frozen=True)
class MatchResult:
    """The result of one task.

    Attributes:
        keys: keys of the batch that have a row in the table, older than the change.
        row_ids: the id of each such row, -1 if it has none.
        late: keys for which the table's row is newer than the change.
        deletes: the delete files written.
        replaced_deletes: the delete files that they replace.
        referenced_files: the data files whose rows they delete.
        sequence: the sequence of each row of `keys`; None without a sequence field.
        rows: the table's rows for changes that were sent without some columns.
        arrays_path: the file that holds `keys`, `row_ids`, `late` and `sequence` if they are many.
    """

    keys: Ints
    row_ids: Ints
    late: Ints
    deletes: list[dict[str, Any]] = field(default_factory=list)
    replaced_deletes: list[dict[str, Any]] = field(default_factory=list)
    referenced_files: list[str] = field(default_factory=list)
    sequence: Ints | None = None
    rows: TableRowsFile | None = None
    arrays_path: str | None = None

    def spill(self, io: FileIO, path: str) -> MatchResult:
        """Return the result for a report, with large arrays moved to a file."""
        if len(self.keys) + len(self.late) <= KEYS_PER_REPORT:
            return self
        none = np.full(len(self.late), -1)
        arrays = {
            "key": np.concatenate([self.keys, self.late]),
            "row_id": np.concatenate([self.row_ids, none]),
            "late": np.repeat([False, True], [len(self.keys), len(self.late)]),
        }
        if self.sequence is not None:
            arrays["sequence"] = np.concatenate([self.sequence, none])
        write_arrays(io, path, arrays_to_table(arrays))
        empty = np.zeros(0, np.int64)
        return replace(self, keys=empty, row_ids=empty, late=empty, sequence=None, arrays_path=path)

    def load(self, io: FileIO) -> MatchResult:
        """Return the result with its arrays loaded."""
        if self.arrays_path is None:
            return self
        arrays, _ = read_arrays(io, self.arrays_path)
        late = arrays["late"]
        return replace(
            self,
            keys=arrays["key"][~late],
            row_ids=arrays["row_id"][~late],
            late=arrays["key"][late],
            sequence=arrays["sequence"][~late] if "sequence" in arrays else None,
        )


@dataclass(frozen=True)
class MatchTask:
    """Looks up a batch's keys in some of the table's files.

    Attributes:
        batch: the keys of the batch.
        index: how keys are looked up.
        location: the location of the table.
        format_version: the format version of the table.
        folder: where the rows of the batch are staged.
        missing_columns: the columns that some row of the batch was sent without, as JSON of a
            schema.
    """

    batch: BatchKeys
    index: IndexSettings
    location: str
    format_version: int
    folder: str
    missing_columns: str | None = None

    @cached_property
    def _io(self) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.index.io_properties), self.location)

    def __call__(self, files: Sequence[LiveFile]) -> MatchResult:
        writer = DeleteWriter(self._io, self.location, self.format_version)
        needs_row = self.batch.wants_table_row
        rows = None
        if self.missing_columns is not None:
            columns = Schema.model_validate_json(self.missing_columns)
            rows = TableRows(self._io, columns, f"{self.folder}/{uuid.uuid4()}.arrow")
        evict_unused(self.index.local_folder.parent)
        keys, row_ids, late, sequence = [], [], [], []
        for file in files:
            matches = find_keys(file, self.batch, self.index)
            if not len(matches.keys):
                continue
            dead = read_deleted_positions(file, self._io)
            alive = _not_in(matches.positions, np.asarray(dead.to_array(), np.int64))
            newer = self._newer(matches) & alive
            hit = alive & ~newer
            late.append(matches.keys[newer])
            if not hit.any():
                continue
            writer.delete(file, dead, matches.positions[hit])
            keys.append(matches.keys[hit])
            # A file from before the table was upgraded to v3 has no ids.
            ids = np.full(len(hit), -1) if matches.row_ids is None else matches.row_ids
            row_ids.append(ids[hit])
            if matches.sequence is not None:
                sequence.append(matches.sequence[hit])
            if rows is not None and needs_row is not None:
                needed = hit & needs_row[matches.keys]
                rows.read_rows(file.path, matches.keys[needed], matches.positions[needed])
        matched = MatchResult(
            keys=concatenate_ints(keys),
            row_ids=concatenate_ints(row_ids),
            late=concatenate_ints(late),
            deletes=writer.close(),
            replaced_deletes=writer.replaced_deletes,
            referenced_files=writer.referenced_files,
            rows=None if rows is None else rows.close(),
            sequence=concatenate_ints(sequence) if self.batch.sequence is not None else None,
        )
        return matched.spill(self._io, f"{self.folder}/{uuid.uuid4()}.keys")

    def _newer(self, matches: KeyMatches) -> npt.NDArray[np.bool_]:
        if matches.sequence is None or self.batch.sequence is None:
            return np.zeros(len(matches.keys), np.bool_)
        return matches.sequence > self.batch.sequence[matches.keys]


def balance_files(files: Sequence[LiveFile], slots: int) -> list[list[LiveFile]]:
    """Distribute files over tasks, evenly by rows."""
    total = sum(file.rows for file in files)
    count = max(1, min(slots, len(files), -(-total // ROWS_PER_TASK)))
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
