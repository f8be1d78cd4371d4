"""Tasks that take blocks of changes through Spark SQL, and back into blocks.

The first tasks read the splits and stage every block as bytes: a DataFrame has the columns of one
table, and a split has blocks of many. For each table with transforms, tasks then unpack its blocks
into rows, and, after the transforms, turn the rows into blocks for the sink's writer.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from datetime import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.arrow import split_by_bytes
from icestream.contracts.changes import (
    DELETES,
    OP,
    UNCHANGED_COLUMNS,
    ChangeSchema,
    change_schema_of,
    has_no_row,
    nulled_counts,
    with_nulled_counts,
)
from icestream.contracts.reports import pack_report
from icestream.contracts.transform import ABSENT, CHANGE, FAULT, ROW
from icestream.engine.batch.tasks import Report, partition, reported, split_numbers
from icestream.schemas.mirror_columns import MirrorSchema, schema_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from icestream.contracts.sink import TaskWriter
    from icestream.engine.batch.changes import ChangeReading
    from icestream.engine.dead_letters.row_validation import RowValidation

    Flags = npt.NDArray[np.bool_]


STAGED_COLUMNS = "table string, block binary, report binary"
STAGED_BYTES = 16 << 20
_STAGED = pa.schema([("table", pa.string()), ("block", pa.binary()), ("report", pa.binary())])

# The operations of a row that was not in the source table before, and of a row of a snapshot.
INSERTS = ("i", "c", "r")

# Lists are JSON here: Spark asks for the size of a batch after each row, which takes Arrow's Java
# library a pass over all rows so far if a list is null.
_CHANGE_TYPE = pa.struct(
    [
        ("op", pa.string()),
        ("unchanged", pa.string()),
        ("is_snapshot", pa.bool_()),
        ("nulled", pa.string()),
    ]
)
HIDDEN_COLUMNS = (
    pa.field(ROW, pa.int64()),
    pa.field(CHANGE, _CHANGE_TYPE),
    pa.field(ABSENT, pa.bool_()),
    pa.field(FAULT, pa.string()),
)


@dataclass(frozen=True)
class StagedSchema:
    """The schema of some of the blocks that a task has staged.

    Attributes:
        columns: the columns, with the blocks' `ChangeSchema`.
        has_rows: whether some of their changes are not deletes.
        has_unchanged: whether some rows were sent without a column.
    """

    columns: pa.Schema
    has_rows: bool
    has_unchanged: bool


def table_text(table: tuple[str, ...]) -> str:
    """Return the names of a table as the text that its staged blocks carry."""
    return json.dumps(table)


@dataclass(frozen=True)
class StageBlocks:
    """Reads splits, and passes each block to Spark as bytes; the last row is the report."""

    reading: ChangeReading

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for split in split_numbers(batches):
            report = Report(split)
            staged: dict[tuple[ChangeSchema, str], StagedSchema] = {}
            with reported(report):
                for block, numbers in self.reading.numbered_blocks(report):
                    _add_schema(staged, block)
                    yield from _pack(block, numbers)
            report.staged = list(staged.values())
            yield _staged_row(None, None, pack_report(split, report).column(0)[0].as_py())


def _add_schema(
    staged: dict[tuple[ChangeSchema, str], StagedSchema], block: pa.RecordBatch
) -> None:
    change_schema = change_schema_of(block.schema)
    key = (change_schema, schema_text(block.schema))
    has_rows, has_unchanged = change_schema.is_snapshot, False
    if not change_schema.is_snapshot:
        has_rows = not pc.all(has_no_row(block.column(OP)), min_count=0).as_py()
        index = block.schema.get_field_index(UNCHANGED_COLUMNS)
        has_unchanged = index >= 0 and len(block.column(index).flatten()) > 0
    known = staged.get(key)
    if known is not None:
        has_rows, has_unchanged = known.has_rows | has_rows, known.has_unchanged | has_unchanged
    staged[key] = StagedSchema(block.schema, has_rows, has_unchanged)


def _pack(block: pa.RecordBatch, numbers: pa.Array) -> Iterator[pa.RecordBatch]:
    change_schema = change_schema_of(block.schema)
    numbered = block.append_column(ROW, numbers)
    for part in split_by_bytes(numbered, STAGED_BYTES):
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, numbered.schema) as writer:
            writer.write_batch(part)
        yield _staged_row(table_text(change_schema.table), stream.getvalue().to_pybytes(), None)
        # Counts of nulled values belong to the whole block.
        plain = change_schema.on(pa.schema(list(block.schema)))
        numbered = numbered.replace_schema_metadata(plain.metadata)


def _staged_row(table: str | None, block: bytes | None, report: bytes | None) -> pa.RecordBatch:
    values = [[table], [block], [report]]
    arrays = [pa.array(value, field.type) for value, field in zip(values, _STAGED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_STAGED)


def _unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of staged rows, each with the numbers of its rows as `ROW`."""
    for batch in batches:
        for block in batch.column(0):
            with pa.ipc.open_stream(block.as_buffer()) as stream:
                yield stream.read_next_batch()


def to_spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values in Spark SQL, which has neither UUIDs nor times."""
    is_text = pa.types.is_time(kind) or kind == pa.uuid()
    return pa.string() if is_text else kind


def _to_spark(array: pa.Array) -> pa.Array:
    if array.type == pa.uuid():
        values = array.to_pylist()
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return array.cast(pa.string()) if pa.types.is_time(array.type) else array


def _from_spark(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if kind == pa.uuid():
        values = array.to_pylist()
        raw = [None if value is None else uuid.UUID(value).bytes for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(raw, pa.binary(16)))
    if pa.types.is_time(kind):
        texts = array.to_pylist()
        return pa.array([None if one is None else time.fromisoformat(one) for one in texts], kind)
    return array.cast(kind)


def _null_where(array: pa.Array, flags: Flags) -> pa.Array:
    # By position, not `if_else`, which does not support some types.
    return array.take(pa.array(np.arange(len(array)), mask=flags)) if flags.any() else array


def _to_flags(array: pa.Array) -> Flags:
    flags: Flags = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return flags


def _as_json(lists: pa.Array) -> pa.Array:
    """Return lists of names as JSON; null for one without names."""
    if not len(lists.flatten()):
        return pa.nulls(len(lists), pa.string())
    texts = [json.dumps(names) if names else None for names in lists.to_pylist()]
    return pa.array(texts, pa.string())


@dataclass(frozen=True)
class UnpackBlocks:
    """Turns the staged blocks of one table into rows with the newest columns of the table.

    A change that has no row keeps its key alone.

    Attributes:
        schema: the newest columns, to which older blocks are conformed.
        columns: the columns of the rows, without the hidden ones.
    """

    schema: MirrorSchema
    columns: pa.Schema

    def row_schema(self) -> pa.Schema:
        """Return the columns of the rows in Spark SQL."""
        visible = [pa.field(one.name, to_spark_type(one.type)) for one in self.columns]
        return pa.schema([*visible, *HIDDEN_COLUMNS])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _unpack(batches):
            yield self._rows(block)

    def _rows(self, block: pa.RecordBatch) -> pa.RecordBatch:
        rows, is_snapshot = self.schema.conform(block), change_schema_of(block.schema).is_snapshot
        count = block.num_rows
        ops = pa.nulls(count, pa.string()) if is_snapshot else rows.column(OP)
        is_absent = has_no_row(ops)
        arrays = []
        for column in self.columns:
            index = rows.schema.get_field_index(column.name)
            array = pa.nulls(count, column.type) if index < 0 else rows.column(index)
            if column.name not in self.schema.change_schema.key:
                array = _null_where(array, _to_flags(is_absent))
            arrays.append(_to_spark(array))
        index = rows.schema.get_field_index(UNCHANGED_COLUMNS)
        unchanged = pa.nulls(count, pa.string()) if index < 0 else _as_json(rows.column(index))
        nulled: list[str | None] = [None] * count
        if count and nulled_counts(block.schema):
            nulled[0] = json.dumps(nulled_counts(block.schema))
        changes = [ops, unchanged, pa.array([is_snapshot] * count), pa.array(nulled, pa.string())]
        arrays += [
            block.column(ROW),
            pa.StructArray.from_arrays(changes, fields=list(_CHANGE_TYPE)),
            is_absent,
            pa.nulls(count, pa.string()),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.row_schema())


@dataclass(frozen=True)
class TransformedSchema:
    """The columns of a table after its transforms.

    Attributes:
        change_schema: of its rows, with the names that the key has now.
        columns: the columns of the rows, without the hidden ones.
        origins: by column, the source's column whose values it has.
        keeps_changes: whether the table has a row for every change, or can't delete by key. An
            insert that is left out then leaves nothing behind. Else it deletes the row with its
            key: a compacted topic may lack the delete that came before it.
    """

    change_schema: ChangeSchema
    columns: pa.Schema
    origins: Mapping[str, str]
    keeps_changes: bool = False

    def block_schema(self, change_schema: ChangeSchema) -> pa.Schema:
        """Return the columns of transformed blocks, for a schema of the source's blocks."""
        key, is_filtered = self.change_schema.key, self.change_schema.is_filtered
        new = replace(change_schema, key=key, is_filtered=is_filtered)
        if new.is_snapshot:
            return new.on(self.columns)
        hidden = [pa.field(OP, pa.string()), pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))]
        return new.on(pa.schema([*self.columns, *hidden]))

    def blocks(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield transformed rows as blocks.

        A change whose row was left out deletes the row with its key. The rows of a snapshot replace
        those of the table, so there is nothing to delete.
        """
        change, ops = rows.column(CHANGE), rows.column(CHANGE).field("op")
        is_snapshot = _to_flags(change.field("is_snapshot"))
        is_absent = _to_flags(rows.column(ABSENT))
        is_left_out = is_absent & ~_to_flags(has_no_row(ops))
        is_new = is_snapshot
        if self.keeps_changes:
            is_new = is_snapshot | _to_flags(pc.is_in(ops, value_set=pa.array(INSERTS)))
        ops = pc.if_else(pa.array(is_left_out), DELETES[0], ops)
        arrays = [self._column(rows, column, is_left_out) for column in self.columns]
        index = rows.schema.get_field_index(UNCHANGED_COLUMNS)
        unchanged = pa.nulls(rows.num_rows, pa.list_(pa.string()))
        if index >= 0:
            unchanged = _null_where(rows.column(index).cast(unchanged.type), is_absent)
        schema = self.block_schema(replace(self.change_schema, is_snapshot=False))
        block = pa.RecordBatch.from_arrays([*arrays, ops, unchanged], schema=schema)
        kept = pa.array(~(is_left_out & is_new))
        nulled = self._nulled(change.field("nulled"))
        for part in _runs(block.filter(kept), is_snapshot[~(is_left_out & is_new)]):
            yield with_nulled_counts(self._as_snapshot(part[0]) if part[1] else part[0], nulled)
            nulled = {}

    def _column(self, rows: pa.RecordBatch, column: pa.Field, is_left_out: Flags) -> pa.Array:
        array = rows.column(rows.schema.get_field_index(column.name))
        if column.name not in self.change_schema.key:
            array = _null_where(array, is_left_out)
        return _from_spark(array, column.type)

    def _as_snapshot(self, block: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.block_schema(replace(self.change_schema, is_snapshot=True))
        return pa.RecordBatch.from_arrays(block.columns[: len(self.columns)], schema=schema)

    def _nulled(self, counts: pa.Array) -> dict[str, int]:
        by_source: Counter[str] = Counter()
        for text in counts.drop_null().to_pylist():
            by_source.update(json.loads(text))
        return {name: by_source[old] for name, old in self.origins.items() if old in by_source}


def _runs(block: pa.RecordBatch, flags: Flags) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Yield the rows of a block in runs with equal flags."""
    if not len(flags):
        return
    edges = np.flatnonzero(np.concatenate([[True], flags[1:] != flags[:-1], [True]])).tolist()
    for begin, stop in pairwise(edges):
        yield block.slice(begin, stop - begin), bool(flags[begin])


@dataclass(frozen=True)
class WriteTransformed:
    """Writes the transformed rows of one table."""

    writer: TaskWriter
    schema: TransformedSchema
    validation: RowValidation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = Report(partition())
        with reported(report):
            good = self.validation.good_rows(batches, report)
            report.files = self.writer.write(b for rows in good for b in self.schema.blocks(rows))
        yield pack_report(report.split, report)


@dataclass(frozen=True)
class WriteStaged:
    """Writes staged blocks of tables that need no Spark SQL.

    Attributes:
        keys: the new name of each key column, by table, for tables of which the batch has deletes
            alone: these carry the key and nothing to transform.
    """

    writer: TaskWriter
    keys: Mapping[tuple[str, ...], Mapping[str, str]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = Report(partition())
        with reported(report):
            report.files = self.writer.write(self._block(block) for block in _unpack(batches))
        yield pack_report(report.split, report)

    def _block(self, block: pa.RecordBatch) -> pa.RecordBatch:
        block = block.drop_columns([ROW])
        key = self.keys.get(change_schema_of(block.schema).table)
        if key is None:
            return block
        schema = key_schema(block.schema, key)
        old: dict[str, Any] = {new: name for name, new in key.items()}
        arrays = [block.column(old.get(name, name)) for name in schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def key_schema(columns: pa.Schema, key: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a block of deletes with nothing but the key, under its new names."""
    change_schema = change_schema_of(columns)
    fields = [
        column.with_name(key.get(column.name, column.name))
        for column in columns
        if column.name == OP or column.name in key
    ]
    new = tuple(key.get(name, name) for name in change_schema.key)
    return replace(change_schema, key=new).on(pa.schema(fields))
