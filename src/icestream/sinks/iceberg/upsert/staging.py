"""Staged rows of an upsert: tasks write them to Arrow files, the driver reads their keys.

The keys of many rows go to a file next to the rows, since the reports of all tasks pass through the
driver's JVM together. The file is Arrow, not pickle, since others may write to the store. The keys
of a few rows stay in the report: a file would cost three more requests per batch.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.arrow import GROUP_BYTES, group_by_bytes, split_by_bytes
from icestream.contracts.changes import DELETES, UNCHANGED_COLUMNS
from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.errors import BadRecordError
from icestream.sinks.iceberg.upsert.fingerprints import Fingerprints, fingerprints, numbers
from icestream.sinks.iceberg.upsert.latest_changes import concatenate_flags
from icestream.sinks.iceberg.upsert.soft_deletes import DELETED, DELETED_AT, set_soft_delete_columns
from icestream.sinks.iceberg.writer import as_arrow_file, conform, file_columns, map_concurrently

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyiceberg.io import FileIO

    Arrays = Mapping[str, npt.NDArray[Any]]
    Numbers = tuple[dict[str, npt.NDArray[Any]], dict[str, str]]


ROWS_PER_BLOCK = 1 << 20
# The maximum size of a report: about 60,000 keys.
REPORT_BYTES = 1_500_000


def arrays_to_table(arrays: Arrays, names: Mapping[str, str] | None = None) -> pa.Table:
    """Return arrays of one length as a table.

    Args:
        arrays: by name.
        names: further names, each for one of the arrays.
    """
    table = pa.table({name: pa.array(values) for name, values in arrays.items()})
    return table.replace_schema_metadata({"names": json.dumps(dict(names or {}))})


def write_arrays(io: FileIO, path: str, numbers: pa.Table) -> None:
    """Write the result of `arrays_to_table` to a file."""
    with io.new_output(path).create() as stream:
        _write(pa.PythonFile(stream, mode="w"), numbers)


def pack_arrays(numbers: pa.Table) -> bytes:
    """Return the result of `arrays_to_table` as bytes, for a report."""
    output = pa.BufferOutputStream()
    _write(output, numbers)
    content: bytes = output.getvalue().to_pybytes()
    return content


def read_arrays(io: FileIO, path: str) -> Numbers:
    """Return the arrays of a file, and the further names of some of them."""
    with io.new_input(path).open() as stream:
        return _read(as_arrow_file(stream))


def unpack_arrays(content: bytes) -> Numbers:
    """Return the arrays packed by `pack_arrays`, and the further names of some of them."""
    return _read(pa.BufferReader(content))


def _write(output: pa.NativeFile, numbers: pa.Table) -> None:
    file = pa.ipc.new_file(output, numbers.schema)
    file.write_table(numbers, max_chunksize=ROWS_PER_BLOCK)
    file.close()


def _read(source: pa.NativeFile) -> Numbers:
    table = pa.ipc.open_file(source).read_all()
    arrays = {
        name: np.ascontiguousarray(table.column(name).to_numpy()) for name in table.schema.names
    }
    return arrays, json.loads(table.schema.metadata[b"names"])


@dataclass(frozen=True)
class KeySettings:
    """The columns that identify a row, order its changes and mark deletes.

    Attributes:
        fields: the columns of the key.
        sequence: column that orders changes; None for order of arrival.
        op: column that marks deletes; None if there are none.
        delete_mode: `hard`, `soft` or `ignore`.
    """

    fields: tuple[str, ...]
    sequence: str | None = None
    op: str | None = None
    delete_mode: str = "hard"


@dataclass(frozen=True)
class StagedChunk:
    """The keys of the rows that one task has staged, on the driver.

    Attributes:
        path: the Arrow file of the rows.
        keys: the key of each row.
        deletes: which rows are deletes.
        sequence: the sequence of each row; None for order of arrival.
        unchanged: by column, the rows that were sent without a value for it.
    """

    path: str
    keys: Fingerprints
    deletes: npt.NDArray[np.bool_]
    sequence: npt.NDArray[np.int64] | None
    unchanged: Mapping[str, npt.NDArray[np.bool_]]


class StagingWriter(TaskWriter):
    """Stages rows, with the table's columns and types.

    Args:
        schema: the table's schema as JSON.
        keys: the key columns.
        folder: where the rows are staged until the commit.
        io_properties: how PyIceberg reaches the store, secrets included.
    """

    def __init__(
        self, *, schema: str, keys: KeySettings, folder: str, io_properties: Mapping[str, str]
    ) -> None:
        self._schema_json = schema
        self._keys = keys
        self._folder = folder
        self._io_properties = dict(io_properties)

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        from pyiceberg.io import load_file_io

        schema = make_optional(Schema.model_validate_json(self._schema_json))
        columns = file_columns(schema)
        collector = _KeyCollector(self._keys)
        path = f"{self._folder}/{uuid.uuid4()}.arrow"
        io = load_file_io(dict(self._io_properties), path)
        output = None
        try:
            for batch in self._changes(batches):
                if output is None:
                    stream = io.new_output(path).create()
                    output = pa.ipc.new_file(pa.PythonFile(stream, mode="w"), columns)
                staged = self._to_staged_batch(batch)
                conformed = conform(staged.rows, schema, columns)
                collector.add(staged, conformed)
                for part in split_by_bytes(conformed, GROUP_BYTES):
                    output.write_batch(part)
            if output is None:
                return []
            output.close()
            stream.close()
            keys = collector.spill(io, f"{path}.keys")
        except BaseException:
            if output is not None:
                stream.close()
                io.delete(path)
            raise
        size = len(io.new_input(path))
        return [WrittenFile(collector.rows, size, {"file-path": path, **keys})]

    def _changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch
            if self._keys.delete_mode == "ignore" and self._keys.op is not None:
                rows = batch.filter(pc.invert(pa.array(delete_flags(batch, self._keys.op))))
            if rows.num_rows:
                yield rows

    def _to_staged_batch(self, batch: pa.RecordBatch) -> _StagedBatch:
        """Classify each row; a soft delete is a row that was sent with little but its key."""
        deletes = delete_flags(batch, self._keys.op)
        # A record may lack a field whose column exists only in another table of the stream.
        unchanged = {name: f for name, f in unchanged_flags(batch).items() if name in self._names}
        if self._keys.delete_mode != "soft":
            return _StagedBatch(batch, deletes, unchanged)
        rows = set_soft_delete_columns(batch, pa.array(deletes))
        always_sent = {
            *self._keys.fields,
            self._keys.sequence,
            self._keys.op,
            UNCHANGED_COLUMNS,
            DELETED,
            DELETED_AT,
        }
        if deletes.any():
            for name in (name for name in self._names if name not in always_sent):
                unchanged[name] = unchanged[name] | deletes if name in unchanged else deletes
        return _StagedBatch(rows, np.zeros(len(deletes), np.bool_), unchanged)

    @cached_property
    def _names(self) -> list[str]:
        return [field.name for field in Schema.model_validate_json(self._schema_json).fields]


class _StagedBatch(NamedTuple):
    """Rows, which of them are deletes, and by column those that were sent without it."""

    rows: pa.RecordBatch
    deletes: npt.NDArray[np.bool_]
    unchanged: dict[str, npt.NDArray[np.bool_]]


class _KeyCollector:
    """The keys of the rows that a task has staged so far, as numbers."""

    def __init__(self, keys: KeySettings) -> None:
        self.rows = 0
        self._keys = keys
        self._numbers: dict[str, list[npt.NDArray[Any]]] = {}
        self._lengths: list[int] = []
        self._unchanged: list[Mapping[str, npt.NDArray[np.bool_]]] = []

    def add(self, staged: _StagedBatch, conformed: pa.RecordBatch) -> None:
        # Batch by batch: all keys together may not fit into one Arrow array.
        keys = fingerprints(
            [self._required(conformed, name, "part of the key") for name in self._keys.fields]
        )
        arrays: dict[str, npt.NDArray[Any] | None] = {
            "low": keys.low,
            "high": keys.high,
            "delete": staged.deletes,
        }
        if self._keys.sequence is not None:
            sequence = self._required(conformed, self._keys.sequence, "the sequence field")
            arrays["sequence"] = numbers(sequence)
        for name, array in arrays.items():
            if array is not None:
                self._numbers.setdefault(name, []).append(array)
        self._unchanged.append(staged.unchanged)
        self._lengths.append(conformed.num_rows)
        self.rows += conformed.num_rows

    def spill(self, io: FileIO, path: str) -> dict[str, Any]:
        """Return the keys for a report, or the path of the file if they are many."""
        arrays = {name: np.concatenate(parts) for name, parts in self._numbers.items()}
        # Columns that are always absent together share an array, here and in the file.
        names: dict[str, str] = {}
        stored: dict[int, str] = {}
        for column, flags in concatenate_flags(self._unchanged, self._lengths).items():
            names[column] = stored.setdefault(id(flags), f"unsent-{len(stored)}")
            arrays[names[column]] = flags
        numbers = arrays_to_table(arrays, names)
        if numbers.nbytes <= REPORT_BYTES:
            return {"keys": pack_arrays(numbers), "keys-path": None}
        write_arrays(io, path, numbers)
        return {"keys-path": path}

    def _required(self, batch: pa.RecordBatch, name: str, role: str) -> pa.Array:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            row = batch.slice(int(pc.index(column.is_null(), True).as_py()), 1).to_pylist()[0]
            key_values = {key: row[key] for key in self._keys.fields if key in row}
            raise BadRecordError(
                f"column {name!r} is {role}, and a row has no value for it: {key_values}",
                todo="Nothing of the batch was written. Leave such rows out with a `filter` "
                f"transform: `{name} is not null`.",
            )
        return column


def delete_flags(batch: pa.RecordBatch, op: str | None) -> npt.NDArray[np.bool_]:
    """Tell for each row whether it is a delete."""
    index = -1 if op is None else batch.schema.get_field_index(op)
    if index < 0:
        return np.zeros(batch.num_rows, np.bool_)
    operation = pc.utf8_lower(batch.column(index).cast(pa.string()))
    is_delete = pc.is_in(operation, pa.array(DELETES))
    flags: npt.NDArray[np.bool_] = is_delete.to_numpy(zero_copy_only=False)
    return flags


def unchanged_flags(batch: pa.RecordBatch) -> dict[str, npt.NDArray[np.bool_]]:
    """Return, for each column that some row was sent without, which rows those are."""
    index = batch.schema.get_field_index(UNCHANGED_COLUMNS)
    if index < 0:
        return {}
    lists = batch.column(index)
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    names = pc.list_flatten(lists).dictionary_encode()
    flags = np.zeros((len(names.dictionary), batch.num_rows), np.bool_)
    flags[names.indices.to_numpy(), parents] = True
    # Columns that are absent together share an array, which is then processed once.
    unique: dict[bytes, npt.NDArray[np.bool_]] = {}
    return {
        name: unique.setdefault(rows.tobytes(), rows)
        for name, rows in zip(names.dictionary.to_pylist(), flags, strict=True)
    }


def make_optional(schema: Schema) -> Schema:
    """Return the schema with no column required: a delete carries little but its key."""
    fields = [field.model_copy(update={"required": False}) for field in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id)


def read_chunks(
    files: Sequence[WrittenFile], io_properties: Mapping[str, Any]
) -> list[StagedChunk]:
    """Return the keys of the rows that tasks have staged."""
    from pyiceberg.io import load_file_io

    paths = [path for file in files if (path := file.metadata["keys-path"]) is not None]
    stored = {}
    if paths:
        io = load_file_io(dict(io_properties), paths[0])
        stored = dict(zip(paths, map_concurrently(paths, partial(read_arrays, io)), strict=True))
    return [_chunk(file.metadata, stored) for file in files]


def _chunk(metadata: Mapping[str, Any], stored: Mapping[str, Numbers]) -> StagedChunk:
    path = metadata["keys-path"]
    arrays, names = unpack_arrays(metadata["keys"]) if path is None else stored[path]
    return StagedChunk(
        path=metadata["file-path"],
        keys=Fingerprints(arrays["low"], arrays.get("high")),
        deletes=arrays["delete"],
        sequence=arrays.get("sequence"),
        unchanged={column: arrays[stored] for column, stored in names.items()},
    )


def read_staged_rows(
    path: str,
    io_properties: Mapping[str, Any],
    columns: Sequence[str] | None = None,
    max_bytes: int | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """Yield staged rows in pieces of bounded size, each with the number of its first row.

    Args:
        path: the Arrow file.
        io_properties: how PyIceberg reaches the store, secrets included.
        columns: the columns to read; all if absent.
        max_bytes: the bound; a larger row is a piece by itself.
    """
    from pyiceberg.io import load_file_io

    io = load_file_io(dict(io_properties), path)
    with io.new_input(path).open() as stream:
        source = as_arrow_file(stream)
        file = pa.ipc.open_file(source)
        if columns is not None:
            indexes = [file.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=indexes)
            file = pa.ipc.open_file(source, options=options)
        batches = (file.get_batch(number) for number in range(file.num_record_batches))
        first = 0
        for piece in group_by_bytes(batches, max_bytes or GROUP_BYTES):
            rows = pa.Table.from_batches(piece)
            yield first, rows if columns is None else rows.select(list(columns))
            first += rows.num_rows
