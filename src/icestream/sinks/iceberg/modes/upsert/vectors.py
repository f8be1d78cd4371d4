"""Deletes by position: deletion vectors for format v3, position delete files for v2.

A data file has one of either at most: the new one holds what the old one held, which leaves the
table in the same commit.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from icestream.errors import ConnectorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from pyiceberg.io import FileIO

    from icestream.sinks.iceberg.java_files import LiveFile

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


def read_dead(file: LiveFile, io: FileIO) -> BitMap:
    """Return the positions of a data file's rows that are deleted already."""
    dead = BitMap()
    for delete in file.deletes:
        if delete["content"] == "equality-deletes":
            raise ConnectorError(
                "upsert can't tell which rows are still there: another writer put equality "
                f"deletes on {file.path}",
                todo="Fold them in first: `CALL system.rewrite_data_files(table => '...', "
                "options => map('delete-file-threshold', '1'))`. Use one upsert writer a table.",
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
    mine = rows.filter(pc.equal(rows.column("file_path"), path))
    return BitMap(mine.column("pos").to_numpy().astype(np.uint32))


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
    replaced: list[dict[str, Any]] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)

    def delete(self, file: LiveFile, dead: BitMap, positions: Ints) -> None:
        """Delete rows of a data file, besides those that are dead already."""
        union = dead | BitMap(positions.astype(np.uint32))
        self.touched.append(file.path)
        # A table that was upgraded from v2 may have deletes of many files beside vectors.
        self.replaced += [one for one in file.deletes if "referenced-data-file" in one]
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
                    **_described(file, path, "puffin", len(dead)),
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
        # Bounds of the path that are alike tell readers of v2 that one data file is meant.
        bound = {"keys": [DELETED_PATH], "values": [file.path.encode().hex()]}
        return {
            **_described(file, path, "parquet", len(dead)),
            "file-size-in-bytes": size,
            "lower-bounds": bound,
            "upper-bounds": bound,
        }


def _vector_blob(dead: BitMap) -> bytes:
    dead.run_optimize()
    body = VECTOR_MAGIC + struct.pack("<qI", 1, 0) + dead.serialize()
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def _described(file: LiveFile, path: str, kind: str, count: int) -> dict[str, Any]:
    return {
        "spec-id": file.described["spec-id"],
        "content": "position-deletes",
        "file-path": path,
        "file-format": kind,
        "partition": file.described["partition"],
        "record-count": count,
        "referenced-data-file": file.path,
    }
