"""The first pass of an upsert: rows put aside as Arrow files, and the key of each reported.

What a row becomes depends on the whole batch and on the table: an older change of its key may come
from another task, the table's row may be newer, or have values that this one lacks. So tasks first
write rows as they come; which of them are written to data files is decided from their keys.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.contracts.changes import DELETES, UNSENT
from icestream.contracts.sink import TaskWriter, WrittenFile
from icestream.errors import BadRecordError
from icestream.sinks.iceberg.arrow_files import readable
from icestream.sinks.iceberg.conform import conform, file_columns
from icestream.sinks.iceberg.modes.upsert.fingerprints import Fingerprints, fingerprints, numbers
from icestream.sinks.iceberg.modes.upsert.newest import joined_flags
from icestream.sinks.iceberg.modes.upsert.soft_deletes import (
    DELETED,
    DELETED_AT,
    soft_deleted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt


@dataclass(frozen=True)
class KeySettings:
    """What makes a row the row that it is.

    Attributes:
        fields: the columns of the key.
        sequence: column that tells which of two changes is newer; None for their own order.
        op: column that tells which rows are deletes; None if none is.
        delete_mode: `hard`, `soft` or `ignore`.
    """

    fields: tuple[str, ...]
    sequence: str | None = None
    op: str | None = None
    delete_mode: str = "hard"


@dataclass(frozen=True)
class Chunk:
    """The rows of one task, put aside.

    Attributes:
        path: the Arrow file.
        keys: the key of each row.
        deletes: which rows take theirs away.
        sequence: how new each is; None for the order of the rows.
        unsent: by column, the rows that were sent without a value for it.
    """

    path: str
    keys: Fingerprints
    deletes: npt.NDArray[np.bool_]
    sequence: npt.NDArray[np.int64] | None
    unsent: Mapping[str, npt.NDArray[np.bool_]]


class StagingWriter(TaskWriter):
    """Puts rows aside, with the table's columns and types.

    Args:
        schema: the table's schema as JSON.
        keys: what a key is.
        folder: where the rows lie until the commit.
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

        schema = optional(Schema.model_validate_json(self._schema_json))
        columns = file_columns(schema)
        noted = _Noted(self._keys)
        path = f"{self._folder}/{uuid.uuid4()}.arrow"
        io = load_file_io(dict(self._io_properties), path)
        output = None
        try:
            for batch in self._changes(batches):
                if output is None:
                    stream = io.new_output(path).create()
                    output = pa.ipc.new_file(pa.PythonFile(stream, mode="w"), columns)
                told = self._told(batch)
                fitting = conform(told.rows, schema, columns)
                noted.add(told, fitting)
                output.write_batch(fitting)
        except BaseException:
            if output is not None:
                stream.close()
                io.delete(path)
            raise
        if output is None:
            return []
        output.close()
        stream.close()
        chunk = noted.chunk(path)
        size = len(io.new_input(path))
        return [WrittenFile(len(chunk.deletes), size, {"file-path": path, "chunk": chunk})]

    def _changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kept = batch
            if self._keys.delete_mode == "ignore" and self._keys.op is not None:
                kept = batch.filter(pc.invert(pa.array(deletes_in(batch, self._keys.op))))
            if kept.num_rows:
                yield kept

    def _told(self, batch: pa.RecordBatch) -> _Told:
        """Say what each row is; a soft delete is a row that was sent with little but its key."""
        deletes, unsent = deletes_in(batch, self._keys.op), unsent_in(batch)
        if self._keys.delete_mode != "soft":
            return _Told(batch, deletes, unsent)
        rows = soft_deleted(batch, pa.array(deletes))
        own = {*self._keys.fields, self._keys.sequence, self._keys.op, UNSENT, DELETED, DELETED_AT}
        if deletes.any():
            for name in (name for name in self._names if name not in own):
                unsent[name] = unsent[name] | deletes if name in unsent else deletes
        return _Told(rows, np.zeros(len(deletes), np.bool_), unsent)

    @cached_property
    def _names(self) -> list[str]:
        return [field.name for field in Schema.model_validate_json(self._schema_json).fields]


class _Told(NamedTuple):
    """Rows, which of them are deletes, and by column those that were sent without it."""

    rows: pa.RecordBatch
    deletes: npt.NDArray[np.bool_]
    unsent: dict[str, npt.NDArray[np.bool_]]


class _Noted:
    def __init__(self, keys: KeySettings) -> None:
        self._keys = keys
        self._columns: dict[str, list[pa.Array]] = {name: [] for name in keys.fields}
        self._deletes: list[npt.NDArray[np.bool_]] = []
        self._sequence: list[npt.NDArray[np.int64]] = []
        self._unsent: list[Mapping[str, npt.NDArray[np.bool_]]] = []

    def add(self, told: _Told, fitting: pa.RecordBatch) -> None:
        for name in self._keys.fields:
            self._columns[name].append(self._required(fitting, name, "part of the key"))
        self._deletes.append(told.deletes)
        if self._keys.sequence is not None:
            found = self._required(fitting, self._keys.sequence, "the sequence field")
            self._sequence.append(numbers(found))
        self._unsent.append(told.unsent)

    def chunk(self, path: str) -> Chunk:
        columns = [pa.concat_arrays(self._columns[name]) for name in self._keys.fields]
        deletes = np.concatenate(self._deletes)
        lengths = [len(flags) for flags in self._deletes]
        return Chunk(
            path=path,
            keys=fingerprints(columns),
            deletes=deletes,
            sequence=np.concatenate(self._sequence) if self._sequence else None,
            unsent=joined_flags(self._unsent, lengths),
        )

    def _required(self, batch: pa.RecordBatch, name: str, role: str) -> pa.Array:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            row = batch.slice(int(pc.index(column.is_null(), True).as_py()), 1).to_pylist()[0]
            shown = {key: value for key, value in row.items() if key in self._keys.fields}
            raise BadRecordError(
                f"column {name!r} is {role}, and a row has no value for it: {shown}",
                todo="Nothing of the batch was written. Leave such rows out with a `filter` "
                f"transform: `{name} is not null`.",
            )
        return column


def deletes_in(batch: pa.RecordBatch, op: str | None) -> npt.NDArray[np.bool_]:
    """Tell for each row whether it takes its key away."""
    index = -1 if op is None else batch.schema.get_field_index(op)
    if index < 0:
        return np.zeros(batch.num_rows, np.bool_)
    said = pc.utf8_lower(batch.column(index).cast(pa.string()))
    found = pc.is_in(said, pa.array(DELETES))
    flags: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return flags


def unsent_in(batch: pa.RecordBatch) -> dict[str, npt.NDArray[np.bool_]]:
    """Tell for each column that some row was sent without, which rows those are."""
    index = batch.schema.get_field_index(UNSENT)
    if index < 0:
        return {}
    lists = batch.column(index)
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    names = pc.list_flatten(lists)
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for name in names.unique().to_pylist():
        flags = np.zeros(batch.num_rows, np.bool_)
        flags[parents[pc.equal(names, name).to_numpy(zero_copy_only=False)]] = True
        found[name] = flags
    return found


def optional(schema: Schema) -> Schema:
    """Return the schema with no column required: a delete carries little but its key."""
    fields = [field.model_copy(update={"required": False}) for field in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id)


def read_chunk(path: str, io_properties: Mapping[str, Any]) -> pa.Table:
    """Return the rows that were put aside."""
    from pyiceberg.io import load_file_io

    io = load_file_io(dict(io_properties), path)
    with io.new_input(path).open() as stream:
        return pa.ipc.open_file(readable(stream)).read_all()
