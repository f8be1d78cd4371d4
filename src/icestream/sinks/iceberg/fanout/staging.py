"""The first pass of a fan-out: rows put aside as Arrow files, the rows of each table together.

Which tables a batch names, and which columns each of them needs, is known only when every row was
seen. So tasks first write rows as they come, one file each; the tables are made and filled then.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.arrow import pieces
from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.contracts.transform import ROW
from icestream.errors import AttentionError
from icestream.sinks.iceberg.arrow_files import readable
from icestream.sinks.iceberg.fanout.routes import bad_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icestream.contracts.catalog import Identifier
    from icestream.sinks.iceberg.fanout.routes import Route
    from icestream.sinks.iceberg.missing_values import MissingValues

FLUSH_BYTES = 64 << 20
MOST_TABLES = 10_000


@dataclass
class Staged:
    """The rows of one table in one file.

    Attributes:
        blocks: number and row count of each record batch that holds them.
        valued: the columns that some row has a value for.
    """

    blocks: list[tuple[int, int]] = field(default_factory=list)
    valued: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.blocks)


class RoutingWriter(TaskWriter):
    """Puts rows aside, table by table.

    Args:
        columns: the columns of the rows.
        route: tells the table of a row.
        missing: tells which rows lack a part of their key; None if there are no keys.
        folder: where the files go, which every machine reaches.
        io_properties: how PyIceberg reaches the store, secrets included.
    """

    def __init__(
        self,
        *,
        columns: pa.Schema,
        route: Route,
        folder: str,
        io_properties: Mapping[str, str],
        missing: MissingValues | None = None,
    ) -> None:
        self._columns = columns
        self._route = route
        self._missing = missing
        self._folder = folder
        self._io_properties = dict(io_properties)

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        staging = _Staging(self._columns, self._route, self._folder, self._io_properties)
        try:
            for batch in batches:
                if batch.num_rows:
                    self._refuse_missing(batch)
                    staging.add(batch)
            return staging.close()
        except BaseException:
            staging.discard()
            raise

    def _refuse_missing(self, batch: pa.RecordBatch) -> None:
        reasons = None if self._missing is None else self._missing(batch)
        if reasons is not None:
            raise bad_row(reasons.drop_null()[0].as_py())


class _Staging:
    def __init__(
        self, columns: pa.Schema, route: Route, folder: str, io_properties: dict[str, str]
    ) -> None:
        from pyiceberg.io import load_file_io

        self._columns = columns
        self._route = route
        self._path = f"{folder}/staged-{uuid.uuid4()}.arrow"
        self._io = load_file_io(io_properties, self._path)
        self._stream: Any = None
        self._file: Any = None
        self._blocks = 0
        self._waiting: dict[Identifier, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._staged: dict[Identifier, Staged] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        values = self._route.values(batch)
        tables = self._route.tables(values)
        encoded = values.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if self._file is None:
            self._open(batch.schema)
        rows = _conformed(batch, self._columns)
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        if len(names) > 1:
            order = np.argsort(codes, kind="stable")
            rows, codes = rows.take(pa.array(order)), codes[order]
        edges = np.searchsorted(codes, np.arange(len(names) + 1))
        for number, name in enumerate(names):
            start, stop = int(edges[number]), int(edges[number + 1])
            part = rows.slice(start, stop - start)
            self._waiting.setdefault(tables[name], []).append(part)
        _refuse_too_many(len(self._staged.keys() | self._waiting.keys()))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= FLUSH_BYTES:
            self._flush()

    def close(self) -> list[WrittenFile]:
        if self._file is None:
            return []
        self._flush()
        self._file.close()
        size = int(self._stream.tell())
        self._stream.close()
        rows = sum(staged.rows for staged in self._staged.values())
        what = {"file-path": self._path, "tables": self._staged}
        return [WrittenFile(rows, size, what)]

    def discard(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._io.delete(self._path)

    def _open(self, shape: pa.Schema) -> None:
        if ROW in shape.names:
            self._columns = self._columns.append(shape.field(ROW))
        self._stream = self._io.new_output(self._path).create()
        self._file = pa.ipc.new_file(pa.PythonFile(self._stream, mode="w"), self._columns)

    def _flush(self) -> None:
        for table, parts in self._waiting.items():
            staged = self._staged.setdefault(table, Staged())
            for piece in pieces(parts):
                block = piece[0] if len(piece) == 1 else pa.concat_batches(piece)
                self._file.write_batch(block)
                staged.blocks.append((self._blocks, block.num_rows))
                staged.valued |= {
                    name
                    for name, column in zip(block.schema.names, block.columns, strict=True)
                    if column.null_count < block.num_rows
                }
                self._blocks += 1
        self._waiting = {}
        self._waiting_bytes = 0


@dataclass(frozen=True)
class StagedRows:
    """Some rows of one table that were put aside; called in a task, it gives them."""

    path: str
    blocks: tuple[tuple[int, int], ...]
    io_properties: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.blocks)

    def __call__(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.io import load_file_io

        io = load_file_io(dict(self.io_properties), self.path)
        with io.new_input(self.path).open() as stream:
            file = pa.ipc.open_file(readable(stream))
            for number, _ in self.blocks:
                yield file.get_batch(number)


def _refuse_too_many(tables: int) -> None:
    if tables > MOST_TABLES:
        raise AttentionError(
            f"route_by: the rows of one batch name more than {MOST_TABLES} tables",
            todo="Nothing of the batch was written. Look whether `route_by` names a column with "
            "few values.",
        )


def _conformed(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the rows with exactly these columns."""
    arrays = []
    for column in columns:
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, column.type))
        else:
            found = batch.column(index)
            arrays.append(found if found.type == column.type else found.cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
