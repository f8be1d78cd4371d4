"""Assembles the changes of each table into blocks.

PostgreSQL omits large values that an update did not change. Debezium writes a placeholder instead,
in a form that depends on the type; `Placeholder` finds it.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.arrow import conform
from icestream.contracts.changes import OP, TOMBSTONE, TRUNCATE, ChangeSchema, with_nulled_counts
from icestream.formats.blocks import BadValueError
from icestream.formats.debezium.event_batch import DELETE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icestream.formats.debezium.event_batch import Table, TableChanges
    from icestream.formats.debezium.types import DebeziumColumn

    Flags = npt.NDArray[np.bool_]
    Ints = npt.NDArray[np.int64]


PLACEHOLDER = "__debezium_unavailable_value"


class Placeholder:
    """Debezium's placeholder for an unchanged large value, in the form of each type."""

    def __init__(self, text: str) -> None:
        raw = text.encode()
        self._raw = raw
        digest = hashlib.md5(raw, usedforsecurity=False).digest()
        self._texts = (
            text,
            base64.b64encode(raw).decode(),
            base64.urlsafe_b64encode(raw).decode(),
            raw.hex(),
        )
        self._items = (text, str(uuid.UUID(bytes=digest, version=3)))
        self._numbers = list(raw)

    def find(self, array: pa.Array) -> Flags | None:
        """Flag the values that are the placeholder; None if there are none."""
        kind = array.type
        if pa.types.is_string(kind):
            return _is_any_of(array, self._texts)
        if pa.types.is_binary(kind):
            return _is_any_of(array, (self._raw,))
        if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
            return _items(array, 1, [[item] for item in self._items])
        if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
            return _items(array, len(self._numbers), [self._numbers])
        if pa.types.is_map(kind) and pa.types.is_string(kind.item_type):
            return _items(array, 1, [[(self._items[0], self._items[0])]])
        return None


def _is_any_of(array: pa.Array, forms: tuple[Any, ...]) -> Flags | None:
    is_form = pc.is_in(array, value_set=pa.array(forms, array.type))
    flags: Flags = is_form.to_numpy(zero_copy_only=False)
    return flags if flags.any() else None


def _items(array: pa.Array, length: int, forms: list[Any]) -> Flags | None:
    """Flag the lists that equal one of `forms`, comparing only those of the right length."""
    lists = array.cast(pa.list_(array.type.field(0))) if pa.types.is_map(array.type) else array
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    flags = np.zeros(len(array), np.bool_)
    for index in np.flatnonzero(lengths == length).tolist():
        flags[index] = array[index].as_py() in forms
    return flags if flags.any() else None


_CAST_FAULTS = (ValueError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


@dataclass(frozen=True)
class Key:
    """The key of a record.

    Attributes:
        values: the encoded values, by name.
        columns: the columns of the values, as far as the key defines them.
    """

    values: Mapping[str, Any]
    columns: tuple[DebeziumColumn, ...]


@dataclass
class Keys:
    """The keys of all records of one read.

    Attributes:
        raw: the keys as bytes.
        read: reads a key; returns None for one without fields, and raises `BadValueError`.
    """

    raw: Sequence[bytes | None]
    read: Callable[[bytes], Key | None]

    def of(self, index: int) -> Key | None:
        """Return the key of a record; None if it has no key with fields."""
        raw = self.raw[index]
        return None if raw is None else self.read(raw)

    def names(self, index: int) -> tuple[str, ...]:
        """Return the names of the key's fields; none if it can't be read."""
        try:
            key = self.of(index)
        except BadValueError:
            return ()
        return () if key is None else tuple(key.values)


@dataclass
class Assembly:
    """Builds blocks.

    Attributes:
        keys: the keys of all records.
        key_fields: the key fields of tables, as last seen.
        tombstones: the positions of records without a value.
        blocks: the blocks built so far.
        records: for each block, the index of the record of each row.
        bad: the bad records so far, each with its reason.
    """

    keys: Keys
    key_fields: dict[Table, tuple[str, ...]]
    tombstones: frozenset[int] = frozenset()
    blocks: list[pa.RecordBatch] = field(default_factory=list)
    records: list[Ints] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)

    def add(self, table: Table, parts: Sequence[TableChanges], tombstones: list[int]) -> None:
        """Add the changes of one table.

        Args:
            table: its names.
            parts: its changes, one part for each schema.
            tombstones: the positions of tombstones, which delete the row of their key.
        """
        deletes = sorted(
            [*tombstones, *(index for part in parts for index in part.key_deletes.tolist())]
        )
        runs = list(_runs([part for part in parts if len(part.indices)]))
        for number, (part, begin, stop) in enumerate(runs):
            last = len(self.keys.raw) if number + 1 == len(runs) else _first(runs[number + 1])
            deletes_of_run = [index for index in deletes if index < last]
            deletes = deletes[len(deletes_of_run) :]
            indices, rows = part.indices[begin:stop], part.rows.slice(begin, stop - begin)
            if deletes_of_run:
                indices, rows = self._with_key_deletes(indices, rows, part.columns, deletes_of_run)
            self._add_blocks(table, indices, rows, part.nulled if begin == 0 else {})
        if deletes:
            self._add_key_deletes(table, deletes)

    def _with_key_deletes(
        self,
        indices: Ints,
        rows: pa.RecordBatch,
        columns: tuple[DebeziumColumn, ...],
        key_deletes: list[int],
    ) -> tuple[Ints, pa.RecordBatch]:
        deletes = self._by_key(key_deletes, columns)
        if deletes is None:
            return indices, rows
        both = pa.concat_batches([rows, conform(deletes[1], rows.schema)])
        joined = np.concatenate([indices, deletes[0]])
        order = np.argsort(joined, kind="stable")
        return joined[order], both.take(pa.array(order))

    def _add_key_deletes(self, table: Table, key_deletes: list[int]) -> None:
        columns: dict[str, DebeziumColumn] = {}
        for index in key_deletes:
            try:
                key = self.keys.of(index)
            except BadValueError:  # `_by_key` reports it
                continue
            columns.update({column.name: column for column in key.columns} if key else {})
        deletes = self._by_key(key_deletes, tuple(columns.values()))
        if deletes is not None:
            self._add_blocks(table, *deletes, {})

    def _by_key(
        self, key_deletes: list[int], columns: tuple[DebeziumColumn, ...]
    ) -> tuple[Ints, pa.RecordBatch] | None:
        """Return deletes by the keys of records; None if there are none."""
        keys_by_index: dict[int, Mapping[str, Any]] = {}
        for index in key_deletes:
            try:
                key = self.keys.of(index)
            except BadValueError as exc:  # noqa: PERF203 - tombstones are few
                self.bad.append((index, f"its key does not identify the row to delete: {exc}"))
            else:
                keys_by_index.update({} if key is None else {index: key.values})
        try:
            rows = self._key_rows(keys_by_index, columns)
        except _CAST_FAULTS:
            keys_by_index = {
                index: key_values
                for index, key_values in keys_by_index.items()
                if self._fits(index, key_values, columns)
            }
            rows = self._key_rows(keys_by_index, columns)
        return None if rows is None else (np.array([*keys_by_index], np.int64), rows)

    def _key_rows(
        self, keys_by_index: Mapping[int, Mapping[str, Any]], columns: tuple[DebeziumColumn, ...]
    ) -> pa.RecordBatch | None:
        ops = [TOMBSTONE if index in self.tombstones else DELETE for index in keys_by_index]
        return _key_rows([*keys_by_index.values()], columns, ops) if keys_by_index else None

    def _fits(
        self, index: int, key: Mapping[str, Any], columns: tuple[DebeziumColumn, ...]
    ) -> bool:
        try:
            self._key_rows({index: key}, columns)
        except _CAST_FAULTS as exc:
            self.bad.append((index, f"its key does not identify the row to delete: {exc}"))
            return False
        return True

    def _add_blocks(
        self, table: Table, indices: Ints, rows: pa.RecordBatch, nulled: Mapping[str, int]
    ) -> None:
        """Add a block for each run of rows that have the same key fields."""
        names = set(rows.schema.names)
        for begin, stop, fields in self._key_runs(table, indices, rows):
            key = tuple(name for name in fields if name in names)
            part, records = rows.slice(begin, stop - begin), indices[begin:stop]
            if key:
                self.key_fields[table] = key
            elif _flags(part, TRUNCATE).all():
                # A TRUNCATE keeps no columns: with columns and no key, it would look like a change
                # of a table without a key.
                part = part.select([OP])
            else:
                part, records = self._without_changes(table, records, part)
            if part.num_rows:
                # Partitions of a topic are not ordered relative to each other, so a column that is
                # missing here may be new in another partition.
                version = -1 if part.num_columns == 1 else 0
                is_tombstones = bool(_flags(part, TOMBSTONE).all())
                columns = ChangeSchema(
                    table, key, is_whole=False, version=version, is_tombstones=is_tombstones
                ).on(part.schema)
                block = part.replace_schema_metadata(columns.metadata)
                self.blocks.append(with_nulled_counts(block, nulled))
                self.records.append(records)
                nulled = {}

    def _key_runs(
        self, table: Table, indices: Ints, rows: pa.RecordBatch
    ) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        with_key = np.flatnonzero(~_flags(rows, TRUNCATE))
        if not len(with_key):
            yield 0, len(indices), self.key_fields.get(table, ())
            return
        # The keys of all rows are read only where those of the first and the last differ.
        first = self.keys.names(int(indices[with_key[0]]))
        last = self.keys.names(int(indices[with_key[-1]]))
        if first == last:
            yield 0, len(indices), first
            return
        begin, fields = 0, first
        for at in with_key.tolist():
            names = self.keys.names(int(indices[at]))
            if names != fields:
                yield begin, at, fields
                begin, fields = at, names
        yield begin, len(indices), fields

    def _without_changes(
        self, table: Table, indices: Ints, rows: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Ints]:
        """Reject updates and deletes of a table without a key: they can't identify their row."""
        changes = _flags(rows, "u") | _flags(rows, DELETE)
        if not changes.any():
            return rows, indices
        reason = (
            f"table {'.'.join(table)!r} has no key to identify the changed row. Set one with the "
            "connector's `message.key.columns`"
        )
        self.bad += [(int(index), reason) for index in indices[changes]]
        return rows.filter(pa.array(~changes)), indices[~changes]


def _flags(rows: pa.RecordBatch, op: str) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = pc.equal(rows.column(OP), op).to_numpy(zero_copy_only=False)
    return flags


def _first(run: tuple[TableChanges, int, int]) -> int:
    part, begin, _ = run
    return int(part.indices[begin])


def _runs(parts: Sequence[TableChanges]) -> Iterator[tuple[TableChanges, int, int]]:
    """Yield runs of changes in input order, each of one part."""
    if len(parts) == 1:
        yield parts[0], 0, len(parts[0].indices)
    if len(parts) < 2:
        return
    indices = np.concatenate([part.indices for part in parts])
    which = np.repeat(np.arange(len(parts)), [len(part.indices) for part in parts])
    which = which[np.argsort(indices, kind="stable")]
    begins = np.flatnonzero(np.concatenate([[True], np.diff(which) != 0]))
    stops = np.append(begins[1:], len(which))
    taken = [0] * len(parts)
    for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
        number, count = int(which[begin]), stop - begin
        yield parts[number], taken[number], taken[number] + count
        taken[number] += count


def _key_rows(
    values: list[Mapping[str, Any]], columns: tuple[DebeziumColumn, ...], ops: list[str]
) -> pa.RecordBatch:
    """Return deletes of rows by their key, with the columns of the key alone."""
    names = set().union(*values)
    arrays, fields = [], []
    for column in columns:
        if column.name in names:
            written = pa.array([key.get(column.name) for key in values], column.written)
            arrays.append(written if column.convert is None else column.convert(written))
            if arrays[-1].null_count > written.null_count:
                raise ValueError(f"column {column.name!r}: type {column.kind} can't hold its value")
            fields.append(pa.field(column.name, column.kind))
    if not arrays:
        raise ValueError(
            f"none of its fields is a column of the table ({', '.join(sorted(names)) or 'none'})"
        )
    arrays.append(pa.array(ops, pa.string()))
    fields.append(pa.field(OP, pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
