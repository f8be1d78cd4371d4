"""Batches of change events, and the tables that they belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.changes import OP, TRUNCATE, UNCHANGED_COLUMNS, unchanged_columns
from icestream.formats.debezium.types import DebeziumColumn, inferred_columns
from icestream.formats.debezium.values import MalformedValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    from icestream.formats.debezium.assembly import Placeholder
    from icestream.formats.debezium.types import DebeziumColumn

    Table = tuple[str, ...]
    Flags = npt.NDArray[np.bool_]
    Ints = npt.NDArray[np.int64]
    Bad = list[tuple[int, str]]


# The parts of a record's `source` that name its table.
SOURCE = pa.struct([("db", pa.string()), ("schema", pa.string()), ("table", pa.string())])

_TRANSACTION = {"status", "id", "event_count", "data_collections"}
_SCHEMA_CHANGE = {"source", "databaseName", "ddl", "tableChanges"}
_MESSAGE_FIELDS = {"op", "source", "message"}


def table_of_topic(topic: str) -> Table:
    """Return the table that a topic is named after: `prefix.schema.table`."""
    return tuple(topic.split(".")[-2:])


def table_of_tombstones(topic: str, tables: Collection[Table]) -> Table | None:
    """Return the table that tombstones of a topic are of; None if nothing tells.

    Changes name their table and tombstones don't, so the topic must be of one table alone, and
    named after it.

    Args:
        topic: its name.
        tables: those whose changes came by the topic.
    """
    if not tables:
        return table_of_topic(topic)
    if len(tables) > 1:
        return None
    (only,) = tables
    # Debezium replaces what a topic can't have in its name.
    name = re.sub(r"[^\w.-]", "_", only[-1], flags=re.ASCII)
    return only if f".{topic}".endswith(f".{name}") else None


def tables_of(source: pa.Array) -> tuple[list[Table], npt.NDArray[np.int64]]:
    """Return the tables that rows are of, and which of them each row is of.

    MySQL and MariaDB have no schemas beneath a database, so there the database is the first name.
    """
    outer, table = _outer(source), source.field("table")
    one, other = outer.dictionary_encode(), table.dictionary_encode()
    if len(one.dictionary) == 1 and len(other.dictionary) == 1:
        only = (one.dictionary[0].as_py(), other.dictionary[0].as_py())
        return [only], np.zeros(len(source), np.int64)
    pairs = list(zip(outer.to_pylist(), table.to_pylist(), strict=True))
    tables: list[Table] = list(dict.fromkeys(pairs))
    numbers: dict[Table, int] = {pair: number for number, pair in enumerate(tables)}
    return tables, np.array([numbers[pair] for pair in pairs], np.int64)


def names_table(source: pa.Array) -> npt.NDArray[np.bool_]:
    """Tell which rows name their table in full."""
    full = pc.and_(
        pc.not_equal(_outer(source), ""), pc.not_equal(source.field("table"), "")
    ).fill_null(False)
    flags: npt.NDArray[np.bool_] = full.to_numpy(zero_copy_only=False)
    return flags


def _outer(source: pa.Array) -> pa.Array:
    """Return the schema of each row's table, or its database where that has no schemas."""
    db, schema = source.field("db"), source.field("schema")
    # An empty text is no schema, as null is none.
    return pc.coalesce(pc.if_else(pc.equal(schema, ""), pa.scalar(None, pa.string()), schema), db)


def is_connector_event(fields: set[str], key: set[str]) -> bool:
    """Tell whether fields are of a record that tells of the connector itself, not of rows.

    Args:
        fields: of the value.
        key: fields of the record's key.
    """
    return (
        (fields <= {"ts_ms", "ts_us", "ts_ns"} and key == {"serverName"})
        or (fields >= _TRANSACTION and key == {"id"} and len(fields) <= len(_TRANSACTION) + 3)
        or fields >= _SCHEMA_CHANGE
        or (fields >= _MESSAGE_FIELDS and "after" not in fields)
    )


Unrepresentable = Literal["fail", "null"]

DELETE = "d"
# Characters of a value that a reason shows.
MAX_SHOWN_CHARS = 100
_UPSERT_OPS = ("c", "r", "u")
_MESSAGE = "m"
_CAST_FAULTS = (MalformedValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError)


@dataclass(frozen=True)
class EventBatch:
    """Decoded records of one schema.

    Attributes:
        indices: the positions of the records in the input.
        ops: what each did, as Debezium tells it.
        before: rows as they were, a struct of `columns` as they are written.
        after: rows as they are now.
        source: what names the table; None if the topic does.
        columns: of a row.
        absent: by column, the records whose row has no field for it, where that is asked for.
    """

    indices: Ints
    ops: pa.Array
    before: pa.Array
    after: pa.Array
    source: pa.Array | None
    columns: tuple[DebeziumColumn, ...]
    absent: Mapping[str, Flags] = field(default_factory=dict)

    def where(self, flags: Flags) -> EventBatch:
        """Return some of the records."""
        absent = {name: each[flags] for name, each in self.absent.items()}
        kept = pa.array(flags)
        source = None if self.source is None else self.source.filter(kept)
        before, after = self.before.filter(kept), self.after.filter(kept)
        return EventBatch(
            self.indices[flags], self.ops.filter(kept), before, after, source, self.columns, absent
        )


NO_TABLE = "its `source` does not name a table"


@dataclass(frozen=True)
class TableChanges:
    """Changes of one table and one schema, in their order.

    Attributes:
        indices: which records they were.
        rows: the columns with their types, then `OP`, then `UNCHANGED_COLUMNS`.
        columns: of a row.
        removed: records that delete a row and tell it by their key alone.
        nulled: how many values, by column, are null because no table can hold them.
    """

    indices: Ints
    rows: pa.RecordBatch
    columns: tuple[DebeziumColumn, ...]
    removed: Ints
    nulled: Mapping[str, int]


def split_by_table(
    event_batch: EventBatch,
    topic: Table,
    placeholder: Placeholder,
    unrepresentable: Unrepresentable,
) -> tuple[dict[Table, TableChanges], Bad]:
    """Return the changes of each table, and the records that are none.

    Raises:
        OddValueError: the records have no columns, or one with a name of ours.
    """
    if not event_batch.columns and not _flags(pc.equal(event_batch.ops, TRUNCATE)).all():
        raise MalformedValueError({}, "a row: it has no columns")
    nameless = np.zeros(0, bool) if event_batch.source is None else ~names_table(event_batch.source)
    without_table = [(int(event_batch.indices[at]), NO_TABLE) for at in np.flatnonzero(nameless)]
    event_batch, removed, bad = _split_by_op(
        event_batch.where(~nameless) if without_table else event_batch
    )
    bad += without_table
    rows, is_bad, nulled = _rows(event_batch, placeholder, unrepresentable, bad)
    if is_bad.any():
        rows, event_batch = rows.filter(pa.array(~is_bad)), event_batch.where(~is_bad)
    ours, deleted = _rows_by_table(event_batch, topic), _rows_by_table(removed, topic)
    parts: dict[Table, TableChanges] = {}
    for table in dict.fromkeys([*ours, *deleted]):
        at = ours.get(table, np.empty(0, np.int64))
        held = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
        away = removed.indices[deleted[table]] if table in deleted else at[:0]
        parts[table] = TableChanges(
            event_batch.indices[at], held, event_batch.columns, away, {} if parts else nulled
        )
    return parts, bad


def _rows_by_table(event_batch: EventBatch, topic: Table) -> dict[Table, Ints]:
    if not len(event_batch.indices):
        return {}
    if event_batch.source is None:
        return {topic: np.arange(len(event_batch.indices))}
    tables, which = tables_of(event_batch.source)
    return {table: np.flatnonzero(which == number) for number, table in enumerate(tables)}


def _split_by_op(event_batch: EventBatch) -> tuple[EventBatch, EventBatch, Bad]:
    """Leave out what brings no row, names no row, or names one by its key alone."""
    bad: Bad = []
    ops = event_batch.ops
    is_there = _flags(pc.is_valid(event_batch.after))
    was_there = _flags(pc.is_valid(event_batch.before))
    deletes = _flags(pc.equal(ops, DELETE))
    brings = _flags(pc.is_in(ops, value_set=pa.array(_UPSERT_OPS)))
    empties = _flags(pc.equal(ops, TRUNCATE))
    good = (brings & is_there) | (deletes & was_there) | empties
    if good.all():
        return event_batch, event_batch.where(~good), bad
    removed = deletes & ~was_there
    for at in np.flatnonzero(~good & ~removed).tolist():
        op = ops[at].as_py()
        if op in _UPSERT_OPS:
            bad.append((int(event_batch.indices[at]), f"no row after the change (op {op!r})"))
        elif op != _MESSAGE:
            bad.append((int(event_batch.indices[at]), f"op {op!r} is not known"))
    return event_batch.where(good), event_batch.where(removed), bad


def _flags(array: pa.Array) -> Flags:
    filled = pc.fill_null(array, False)
    flags: Flags = filled.to_numpy(zero_copy_only=False)
    return flags


def _rows(
    event_batch: EventBatch, placeholder: Placeholder, unrepresentable: Unrepresentable, bad: Bad
) -> tuple[pa.RecordBatch, Flags, dict[str, int]]:
    """Return the rows with their types, which of them are bad, and how many values are lost."""
    deletes = _flags(pc.equal(event_batch.ops, DELETE))
    chosen = event_batch.after
    if deletes.any():
        own = np.arange(len(chosen))
        indices = pa.array(np.where(deletes, own + len(own), own))
        chosen = pa.concat_arrays([event_batch.after, event_batch.before]).take(indices)
    is_bad = np.zeros(len(chosen), np.bool_)
    missing: dict[str, Flags] = {}
    nulled: dict[str, int] = {}
    arrays, fields = [], []
    reserved = next(
        (column.name for column in event_batch.columns if column.name in (OP, UNCHANGED_COLUMNS)),
        None,
    )
    if reserved is not None:
        raise MalformedValueError(reserved, "a name that a column may have")
    for column, written in zip(event_batch.columns, chosen.flatten(), strict=True):
        values = written
        flags = placeholder.find(written)
        if flags is not None:
            missing[column.name] = flags
            values = _null_where(written, flags)
        converted = _convert_column(column, values, event_batch.indices, is_bad, bad)
        if lost := _count_lost(values, converted):
            if unrepresentable == "fail":
                _refuse_unrepresentable(event_batch, column, (values, converted), is_bad, bad)
            else:
                nulled[column.name] = lost
        arrays.append(converted)
        fields.append(pa.field(column.name, column.kind))
    arrays.append(event_batch.ops)
    fields.append(pa.field(OP, pa.string()))
    _refuse_new(event_batch, missing, is_bad, bad)
    names = {column.name for column in event_batch.columns}
    for name, flags in event_batch.absent.items():
        missing[name] = missing[name] | flags if name in missing else flags
        if name not in names:
            arrays.append(pa.nulls(len(chosen)))
            fields.append(pa.field(name, pa.null()))
    if missing:
        arrays.append(unchanged_columns(missing, len(chosen)))
        fields.append(pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string())))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), is_bad, nulled


def _convert_column(
    column: DebeziumColumn, values: pa.Array, indices: Ints, is_bad: Flags, bad: Bad
) -> pa.Array:
    if column.convert is None:
        return values
    try:
        return column.convert(values)
    except _CAST_FAULTS:
        pass
    odd = np.zeros(len(values), np.bool_)
    for at in range(len(values)):
        try:
            column.convert(values.slice(at, 1))
        except _CAST_FAULTS as exc:  # noqa: PERF203 - looks for the one that is at fault
            odd[at] = True
            if not is_bad[at]:
                bad.append((int(indices[at]), f"column {column.name!r}: {exc}"))
    is_bad |= odd
    return column.convert(_null_where(values, odd))


def _refuse_unrepresentable(
    event_batch: EventBatch,
    column: DebeziumColumn,
    pair: tuple[pa.Array, pa.Array],
    is_bad: Flags,
    bad: Bad,
) -> None:
    """Refuse rows with a value that the column's type can't hold, unless they are deleted."""
    deletes = _flags(pc.equal(event_batch.ops, DELETE))
    written, converted = pair
    for at in np.flatnonzero(~is_bad & ~deletes).tolist():
        if _count_lost(written.slice(at, 1), converted.slice(at, 1)):
            value = repr(written[at].as_py())
            inferred_columns = (
                value if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]}..."
            )
            reason = f"column {column.name!r}: type {column.kind} can't hold {inferred_columns}"
            bad.append((int(event_batch.indices[at]), reason))
            is_bad[at] = True


def _count_lost(written: pa.Array, converted: pa.Array) -> int:
    """Return how many values became null, those inside lists and structs included."""
    lost = int(converted.null_count - written.null_count)
    if pa.types.is_list(written.type) and pa.types.is_list(converted.type):
        return lost + _count_lost(written.flatten(), converted.flatten())
    if pa.types.is_struct(written.type) and pa.types.is_struct(converted.type):
        pairs = zip(written.flatten(), converted.flatten(), strict=True)
        return lost + sum(_count_lost(*pair) for pair in pairs)
    return lost


def _null_where(values: pa.Array, flags: Flags) -> pa.Array:
    """Return values, null in place of some; `if_else` has no way with some types."""
    return values.take(pa.array(np.arange(len(values)), mask=flags))


def _refuse_new(
    event_batch: EventBatch, missing: dict[str, Flags], is_bad: Flags, bad: Bad
) -> None:
    """Refuse new rows without a value: theirs is that of another key, which is gone by then."""
    is_new = _flags(pc.is_in(event_batch.ops, value_set=pa.array(["c", "r"])))
    for name, flags in missing.items():
        for at in np.flatnonzero(flags & is_new & ~is_bad).tolist():
            reason = (
                f"column {name!r}: the row's key changed and this large value did not, so that it "
                "was not sent. The table needs REPLICA IDENTITY FULL for that"
            )
            bad.append((int(event_batch.indices[at]), reason))
            is_bad[at] = True


_OP, _DELETED = "__op", "__deleted"
HIDDEN_FIELDS = frozenset({_OP, _DELETED})


def flat_event_batch(
    indices: npt.NDArray[np.int64], rows: pa.Array, columns: tuple[DebeziumColumn, ...]
) -> EventBatch:
    """Return the event batch of records that are plain rows.

    Args:
        indices: the positions of the records in the input.
        rows: a struct of `columns` as they are written.
        columns: of a record: those of the table, `__op` and `__deleted` if they were asked for.

    Raises:
        OddValueError: no column is of the table.
    """
    held = dict(zip([column.name for column in columns], rows.flatten(), strict=True))
    ops = pa.array(["u"] * len(rows), pa.string())
    if _OP in held:
        ops = pc.coalesce(held[_OP].cast(pa.string()), ops)
    if _DELETED in held:
        is_deleted = pc.equal(held[_DELETED].cast(pa.string()), "true")
        ops = pc.if_else(pc.fill_null(is_deleted, False), DELETE, ops)
    kept = tuple(column for column in columns if column.name not in HIDDEN_FIELDS)
    if not kept:
        raise MalformedValueError({}, "a row: it has no columns")
    own = pa.StructArray.from_arrays(
        [held[column.name] for column in kept],
        fields=[pa.field(column.name, column.written) for column in kept],
    )
    return EventBatch(indices, ops, own, own, None, kept)


def row_columns(fields: Mapping[str, pa.DataType]) -> tuple[DebeziumColumn, ...]:
    """Return columns of fields without a schema."""
    return inferred_columns(pa.field(name, kind) for name, kind in fields.items())
