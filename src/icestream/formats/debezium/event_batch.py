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


# The fields of a record's `source` that name its table.
SOURCE = pa.struct([("db", pa.string()), ("schema", pa.string()), ("table", pa.string())])

_TRANSACTION = {"status", "id", "event_count", "data_collections"}
_SCHEMA_CHANGE = {"source", "databaseName", "ddl", "tableChanges"}
_MESSAGE_FIELDS = {"op", "source", "message"}


def table_of_topic(topic: str) -> Table:
    """Return the table that a topic is named after: `prefix.schema.table`."""
    return tuple(topic.split(".")[-2:])


def table_of_tombstones(topic: str, tables: Collection[Table]) -> Table | None:
    """Return the table that a topic's tombstones belong to; None if that is unclear.

    Changes name their table and tombstones don't, so the topic must carry one table alone, and be
    named after it.

    Args:
        topic: its name.
        tables: the tables whose changes the topic has carried.
    """
    if not tables:
        return table_of_topic(topic)
    if len(tables) > 1:
        return None
    (only,) = tables
    # Debezium replaces characters that a topic's name can't have.
    name = re.sub(r"[^\w.-]", "_", only[-1], flags=re.ASCII)
    return only if f".{topic}".endswith(f".{name}") else None


def tables_of(source: pa.Array) -> tuple[list[Table], npt.NDArray[np.int64]]:
    """Return the tables of rows, and for each row the index of its table.

    MySQL and MariaDB have no schemas within a database, so there the database is the first name.
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
    """Flag the rows that name their table in full."""
    full = pc.and_(
        pc.not_equal(_outer(source), ""), pc.not_equal(source.field("table"), "")
    ).fill_null(False)
    flags: npt.NDArray[np.bool_] = full.to_numpy(zero_copy_only=False)
    return flags


def _outer(source: pa.Array) -> pa.Array:
    """Return the schema of each row's table, or its database where databases have no schemas."""
    db, schema = source.field("db"), source.field("schema")
    # An empty string means no schema, as null does.
    return pc.coalesce(pc.if_else(pc.equal(schema, ""), pa.scalar(None, pa.string()), schema), db)


def is_connector_event(fields: set[str], key: set[str]) -> bool:
    """Return whether a record reports on the connector itself, not on rows.

    Args:
        fields: the names of the value's fields.
        key: the names of the key's fields.
    """
    return (
        (fields <= {"ts_ms", "ts_us", "ts_ns"} and key == {"serverName"})
        or (fields >= _TRANSACTION and key == {"id"} and len(fields) <= len(_TRANSACTION) + 3)
        or fields >= _SCHEMA_CHANGE
        or (fields >= _MESSAGE_FIELDS and "after" not in fields)
    )


Unrepresentable = Literal["fail", "null"]

DELETE = "d"
# Characters of a value to show in a reason.
MAX_SHOWN_CHARS = 100
_UPSERT_OPS = ("c", "r", "u")
_MESSAGE = "m"
_CAST_FAULTS = (MalformedValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError)


@dataclass(frozen=True)
class EventBatch:
    """Decoded records of one schema.

    Attributes:
        indices: the positions of the records in the input.
        ops: Debezium's `op` of each record.
        before: rows before the change, a struct of `columns` in their encoded types.
        after: rows after the change.
        source: names the table of each record; None if the topic does.
        columns: the columns of a row.
        absent: by column, a flag for each record whose row has no field for it; empty unless the
            decoder records absent fields.
    """

    indices: Ints
    ops: pa.Array
    before: pa.Array
    after: pa.Array
    source: pa.Array | None
    columns: tuple[DebeziumColumn, ...]
    absent: Mapping[str, Flags] = field(default_factory=dict)

    def where(self, flags: Flags) -> EventBatch:
        """Return the flagged records."""
        absent = {name: is_absent[flags] for name, is_absent in self.absent.items()}
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
        indices: the positions of the records in the input.
        rows: the columns in the table's types, then `OP`, then `UNCHANGED_COLUMNS`.
        columns: the columns of a row.
        key_deletes: the positions of deletes that identify their row by the record's key alone.
        nulled: by column, how many values are null because no table can hold them.
    """

    indices: Ints
    rows: pa.RecordBatch
    columns: tuple[DebeziumColumn, ...]
    key_deletes: Ints
    nulled: Mapping[str, int]


def split_by_table(
    event_batch: EventBatch,
    topic: Table,
    placeholder: Placeholder,
    unrepresentable: Unrepresentable,
) -> tuple[dict[Table, TableChanges], Bad]:
    """Return the changes of each table, and the records that are bad.

    Raises:
        MalformedValueError: the records have no columns, or one with a reserved name.
    """
    if not event_batch.columns and not _flags(pc.equal(event_batch.ops, TRUNCATE)).all():
        raise MalformedValueError({}, "a row: it has no columns")
    nameless = np.zeros(0, bool) if event_batch.source is None else ~names_table(event_batch.source)
    without_table = [(int(event_batch.indices[at]), NO_TABLE) for at in np.flatnonzero(nameless)]
    event_batch, key_deletes, bad = _split_by_op(
        event_batch.where(~nameless) if without_table else event_batch
    )
    bad += without_table
    rows, is_bad, nulled = _rows(event_batch, placeholder, unrepresentable, bad)
    if is_bad.any():
        rows, event_batch = rows.filter(pa.array(~is_bad)), event_batch.where(~is_bad)
    with_row, by_key = _rows_by_table(event_batch, topic), _rows_by_table(key_deletes, topic)
    parts: dict[Table, TableChanges] = {}
    for table in dict.fromkeys([*with_row, *by_key]):
        at = with_row.get(table, np.empty(0, np.int64))
        parts[table] = TableChanges(
            event_batch.indices[at],
            rows if len(at) == rows.num_rows else rows.take(pa.array(at)),
            event_batch.columns,
            key_deletes.indices[by_key[table]] if table in by_key else at[:0],
            {} if parts else nulled,
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
    """Split off the deletes that have only a key, and the events that carry no row.

    Returns:
        Events with their row, deletes without one, and bad records.
    """
    bad: Bad = []
    ops = event_batch.ops
    has_after = _flags(pc.is_valid(event_batch.after))
    has_before = _flags(pc.is_valid(event_batch.before))
    deletes = _flags(pc.equal(ops, DELETE))
    upserts = _flags(pc.is_in(ops, value_set=pa.array(_UPSERT_OPS)))
    truncates = _flags(pc.equal(ops, TRUNCATE))
    good = (upserts & has_after) | (deletes & has_before) | truncates
    if good.all():
        return event_batch, event_batch.where(~good), bad
    key_deletes = deletes & ~has_before
    for at in np.flatnonzero(~good & ~key_deletes).tolist():
        op = ops[at].as_py()
        if op in _UPSERT_OPS:
            bad.append((int(event_batch.indices[at]), f"no `after` row (op {op!r})"))
        elif op != _MESSAGE:
            bad.append((int(event_batch.indices[at]), f"unknown op {op!r}"))
    return event_batch.where(good), event_batch.where(key_deletes), bad


def _flags(array: pa.Array) -> Flags:
    filled = pc.fill_null(array, False)
    flags: Flags = filled.to_numpy(zero_copy_only=False)
    return flags


def _rows(
    event_batch: EventBatch, placeholder: Placeholder, unrepresentable: Unrepresentable, bad: Bad
) -> tuple[pa.RecordBatch, Flags, dict[str, int]]:
    """Return the rows in the table's types, flags for bad ones, and lost values by column."""
    deletes = _flags(pc.equal(event_batch.ops, DELETE))
    rows = event_batch.after
    if deletes.any():
        own = np.arange(len(rows))
        indices = pa.array(np.where(deletes, own + len(own), own))
        rows = pa.concat_arrays([event_batch.after, event_batch.before]).take(indices)
    is_bad = np.zeros(len(rows), np.bool_)
    missing: dict[str, Flags] = {}
    nulled: dict[str, int] = {}
    arrays, fields = [], []
    reserved = next(
        (column.name for column in event_batch.columns if column.name in (OP, UNCHANGED_COLUMNS)),
        None,
    )
    if reserved is not None:
        raise MalformedValueError(reserved, "an allowed column name")
    for column, written in zip(event_batch.columns, rows.flatten(), strict=True):
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
            arrays.append(pa.nulls(len(rows)))
            fields.append(pa.field(name, pa.null()))
    if missing:
        arrays.append(unchanged_columns(missing, len(rows)))
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
    is_malformed = np.zeros(len(values), np.bool_)
    for at in range(len(values)):
        try:
            column.convert(values.slice(at, 1))
        except _CAST_FAULTS as exc:  # noqa: PERF203 - finds the faulty value
            is_malformed[at] = True
            if not is_bad[at]:
                bad.append((int(indices[at]), f"column {column.name!r}: {exc}"))
    is_bad |= is_malformed
    return column.convert(_null_where(values, is_malformed))


def _refuse_unrepresentable(
    event_batch: EventBatch,
    column: DebeziumColumn,
    pair: tuple[pa.Array, pa.Array],
    is_bad: Flags,
    bad: Bad,
) -> None:
    """Mark rows bad that have a value which the column's type can't hold, except deletes."""
    deletes = _flags(pc.equal(event_batch.ops, DELETE))
    written, converted = pair
    for at in np.flatnonzero(~is_bad & ~deletes).tolist():
        if _count_lost(written.slice(at, 1), converted.slice(at, 1)):
            value = repr(written[at].as_py())
            if len(value) > MAX_SHOWN_CHARS:
                value = f"{value[:MAX_SHOWN_CHARS]}..."
            reason = f"column {column.name!r}: type {column.kind} can't hold {value}"
            bad.append((int(event_batch.indices[at]), reason))
            is_bad[at] = True


def _count_lost(written: pa.Array, converted: pa.Array) -> int:
    """Return how many values became null, including those inside lists and structs."""
    lost = int(converted.null_count - written.null_count)
    if pa.types.is_list(written.type) and pa.types.is_list(converted.type):
        return lost + _count_lost(written.flatten(), converted.flatten())
    if pa.types.is_struct(written.type) and pa.types.is_struct(converted.type):
        pairs = zip(written.flatten(), converted.flatten(), strict=True)
        return lost + sum(_count_lost(*pair) for pair in pairs)
    return lost


def _null_where(values: pa.Array, flags: Flags) -> pa.Array:
    """Return values with nulls at the flags; `if_else` does not support every type."""
    return values.take(pa.array(np.arange(len(values)), mask=flags))


def _refuse_new(
    event_batch: EventBatch, missing: dict[str, Flags], is_bad: Flags, bad: Bad
) -> None:
    """Mark new rows bad whose value was not sent: it is in the row of the old key, now deleted."""
    is_new = _flags(pc.is_in(event_batch.ops, value_set=pa.array(["c", "r"])))
    for name, flags in missing.items():
        for at in np.flatnonzero(flags & is_new & ~is_bad).tolist():
            reason = (
                f"column {name!r}: the row's key changed and this large value did not, so it was "
                "not sent. Set REPLICA IDENTITY FULL on the table"
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
        rows: a struct of `columns` in their encoded types.
        columns: the table's columns, and `__op` and `__deleted` if the connector adds them.

    Raises:
        MalformedValueError: there is no column of the table.
    """
    arrays = dict(zip([column.name for column in columns], rows.flatten(), strict=True))
    ops = pa.array(["u"] * len(rows), pa.string())
    if _OP in arrays:
        ops = pc.coalesce(arrays[_OP].cast(pa.string()), ops)
    if _DELETED in arrays:
        is_deleted = pc.equal(arrays[_DELETED].cast(pa.string()), "true")
        ops = pc.if_else(pc.fill_null(is_deleted, False), DELETE, ops)
    kept = tuple(column for column in columns if column.name not in HIDDEN_FIELDS)
    if not kept:
        raise MalformedValueError({}, "a row: it has no columns")
    own = pa.StructArray.from_arrays(
        [arrays[column.name] for column in kept],
        fields=[pa.field(column.name, column.written) for column in kept],
    )
    return EventBatch(indices, ops, own, own, None, kept)


def row_columns(fields: Mapping[str, pa.DataType]) -> tuple[DebeziumColumn, ...]:
    """Return the columns of fields whose types were inferred."""
    return inferred_columns(pa.field(name, kind) for name, kind in fields.items())
