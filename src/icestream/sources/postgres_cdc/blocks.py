"""Builds the blocks of a table from rows of text: of a snapshot, or of the log."""

from __future__ import annotations

from functools import cached_property
from hashlib import md5
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.changes import OP, TRUNCATE, UNCHANGED_COLUMNS
from icestream.errors import AttentionError
from icestream.sources.postgres_cdc.tables import block_schema, is_text_key
from icestream.sources.postgres_cdc.tuples import parse_tuples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icestream.sources.postgres_cdc.tables import PgColumn, Relation
    from icestream.sources.postgres_cdc.tuples import ByteView, Int64Array, Mask
    from icestream.sources.postgres_cdc.types import TypeCatalog

    CurrentValues = Callable[
        [Relation, Sequence[str], Sequence[tuple[str, ...]]],
        Sequence[tuple[str | None, ...] | None],
    ]


# Characters of a value shown in an error message.
MAX_SHOWN_CHARS = 100
# What to do about an unrepresentable value: (is it a change, is it in the key).
_REMEDIES = {
    (False, False): "Correct the value in the database, or set `unrepresentable: null` to store a "
    "null.",
    (False, True): "Correct the value in the database; a key cannot be null.",
    (True, False): "Set `unrepresentable: null` to store a null. Correcting the value in the "
    "database does not help: the log still has this change.",
    (True, True): "Correct the value in the database, and reload the tables with `icestream run "
    "--start-over`: the log still has this change, and a key cannot be null.",
}
_TEXT_REMEDY = (
    "Or set `unrepresentable: text` to store all columns of such types as strings. It does not "
    "change existing columns: drop the Iceberg tables that have them, and reload them with "
    "`icestream run --start-over`."
)


def snapshot_block(
    relation: Relation, types: TypeCatalog, texts: Sequence[pa.Array], *, first: bool = False
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Return a block of snapshot rows.

    Args:
        relation: the table.
        types: must know the types of all its columns.
        texts: values as PostgreSQL prints them, one array per column of the relation.
        first: whether they replace the content of the Iceberg table.

    Returns:
        The block with `block_columns(relation, types, snapshot=True, first=first)`, and how
        many values of which columns became null because their Arrow type cannot hold them.
    """
    columns, nulled = convert_columns(relation, types, texts)
    if relation.has_row_key:
        columns.append(row_keys(relation, texts, len(columns[0]) if columns else 0))
    schema = block_schema(relation, types, snapshot=True, first=first)
    return pa.RecordBatch.from_arrays(columns, schema=schema), nulled


def convert_columns(
    relation: Relation, types: TypeCatalog, texts: Sequence[pa.Array], *, is_change: bool = False
) -> tuple[list[pa.Array], dict[str, int]]:
    """Return typed columns, and how many values of which columns became null.

    Args:
        relation: the table.
        types: must know the types of all its columns.
        texts: values as PostgreSQL prints them, one array per column of the relation.
        is_change: whether they come from the log, not from a snapshot.

    Raises:
        AttentionError: a type cannot hold a value, which may not become null.
    """
    columns, nulled = [], {}
    for column, strings in zip(relation.columns, texts, strict=True):
        if is_text_key(relation, column, types):
            columns.append(strings)
            continue
        values, count = types.from_text(strings, column.type_oid, column.typmod)
        columns.append(values)
        if count and (types.unrepresentable == "fail" or column.name in relation.key):
            raise _unrepresentable_error(relation, types, column, texts, is_change=is_change)
        if count:
            nulled[column.name] = count
    return columns, nulled


def _unrepresentable_error(
    relation: Relation,
    types: TypeCatalog,
    column: PgColumn,
    texts: Sequence[pa.Array],
    *,
    is_change: bool,
) -> AttentionError:
    """Return the error that names the first value its column's type cannot hold."""
    names = [each.name for each in relation.columns]
    strings = texts[names.index(column.name)]
    begin, stop = 0, len(strings)
    while stop - begin > 1:
        middle = (begin + stop) // 2
        half = strings.slice(begin, middle - begin)
        if types.from_text(half, column.type_oid, column.typmod)[1]:
            stop = middle
        else:
            begin = middle
    key = ", ".join(f"{name} = {texts[names.index(name)][begin]}" for name in relation.key)
    value = str(strings[begin])
    shortened = value if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]}..."
    type_name = types.name_of(column.type_oid, column.typmod)
    return AttentionError(
        f"column {column.name!r} of type {type_name} is {shortened!r}, which its Iceberg type "
        "cannot hold",
        where=f"table {'.'.join(relation.table)}{', row ' if key else ''}{key}",
        todo=f"{_REMEDIES[is_change, column.name in relation.key]}\n{_TEXT_REMEDY}",
    )


def row_keys(relation: Relation, texts: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return a key for each row of a table without one: a hash of its values.

    A null does not contribute, so adding a column leaves the keys of older rows unchanged; so does
    renaming one.

    Args:
        relation: the table.
        texts: values as PostgreSQL prints them, one array per column of the relation.
        rows: how many rows there are; a table may have no columns.
    """
    parts = [
        pc.binary_join_element_wise(
            str(column.number or index),
            pc.binary_length(strings).cast(pa.string()),
            strings,
            ":",
        ).fill_null("")
        for index, (column, strings) in enumerate(zip(relation.columns, texts, strict=True), 1)
    ]
    joined = pc.binary_join_element_wise(*parts, "").to_pylist() if parts else [""] * rows
    hashes = [md5(row.encode(), usedforsecurity=False).hexdigest() for row in joined]
    return pa.array(hashes, pa.string())


INSERT, DELETE, NEW = ord("I"), ord("D"), ord("N")
# A message starts with its kind and the table's oid.
_BEFORE_ROW = 5
_OPS = pa.array(["i", "u", "d"])
_INSERTED, _UPDATED, _DELETED = 0, 1, 2


def changes_block(
    relation: Relation,
    types: TypeCatalog,
    data: ByteView,
    starts: Int64Array,
    current_values: CurrentValues,
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Return the Insert, Update and Delete messages of one table as a block.

    Args:
        relation: the table.
        types: must know the types of all its columns.
        data: the buffer of the messages.
        starts: their byte offsets, ascending.
        current_values: fetches what an update of the key did not send, see `CatalogReader`.

    Returns:
        The block, and how many values of which columns became null because their Arrow type
        cannot hold them.
    """
    rows = _ChangedRows(relation, data, starts)
    rows.fetch_unchanged(current_values)
    columns, nulled = convert_columns(relation, types, rows.texts(), is_change=True)
    if relation.has_row_key:
        columns.append(rows.row_keys())
    columns += [_OPS.take(pa.array(rows.ops())), rows.unchanged_columns()]
    return pa.RecordBatch.from_arrays(columns, schema=block_schema(relation, types)), nulled


def truncate_block(relation: Relation, types: TypeCatalog) -> pa.RecordBatch:
    """Return a block for a truncated table."""
    columns = block_schema(relation, types)
    values = {
        OP: pa.array([TRUNCATE]),
        UNCHANGED_COLUMNS: pa.array([[]], columns.field(UNCHANGED_COLUMNS).type),
    }
    arrays = [values.get(field.name, pa.nulls(1, field.type)) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class _ChangedRows:
    """The new and old rows of messages, and the operation of each.

    A column's values come from a pool: texts of the new rows, then of the old rows, then those
    fetched from the database.
    """

    def __init__(self, relation: Relation, data: ByteView, starts: Int64Array) -> None:
        self._relation = relation
        kinds, marks = data.bytes[starts], starts + _BEFORE_ROW
        has_old, has_new = data.bytes[marks] != NEW, kinds != DELETE
        self._old = parse_tuples(data, marks[has_old] + 1, len(relation.columns))
        marks[has_old] = self._old.ends
        self._new = parse_tuples(data, marks[has_new] + 1, len(relation.columns))
        self._new_op = np.where(kinds[has_new] == INSERT, _INSERTED, _UPDATED)
        self._new_message, self._old_message = np.flatnonzero(has_new), np.flatnonzero(has_old)
        # Updates that include the old row: indexes of its new and its old version.
        both = has_new & has_old
        self._pair_new = (np.cumsum(has_new) - 1)[both]
        self._pair_old = (np.cumsum(has_old) - 1)[both]
        self._pools: dict[int, pa.Array] = {}
        self._sources: dict[int, Int64Array] = {}
        self._unchanged: dict[int, Mask] = {}
        for column in range(len(relation.columns)):
            self._fill_from_old(column)
        self._moved = self._is_moved()
        is_lone = (np.cumsum(has_old) - 1)[has_old & ~has_new]
        self._deleted = np.concatenate([is_lone, self._pair_old[self._moved]])
        self._order = self._row_order()
        self._is_deleted = self._order >= len(self._new)

    def fetch_unchanged(self, current_values: CurrentValues) -> None:
        """Fetch what updates of the key did not send: no row with the new key has it yet."""
        moved = self._pair_new[self._moved]
        is_missing = np.zeros(len(moved), np.bool_)
        for unchanged in self._unchanged.values():
            is_missing |= unchanged[moved]
        missing = moved[is_missing]
        if not len(missing) or not self._relation.key:
            return
        columns = [
            column for column, unchanged in self._unchanged.items() if unchanged[missing].any()
        ]
        names = [column.name for column in self._relation.columns]
        keys = [self._new_values(column).take(missing).to_pylist() for column in self._key()]
        answers = current_values(
            self._relation, [names[column] for column in columns], list(zip(*keys, strict=True))
        )
        for index, column in enumerate(columns):
            values = [None if answer is None else answer[index] for answer in answers]
            wanted = self._unchanged[column][missing]
            pool = self._pool(column)
            self._pools[column] = pa.concat_arrays([pool, pa.array(values, pa.string())])
            self._sources[column][missing[wanted]] = len(pool) + np.flatnonzero(wanted)
            self._unchanged[column][missing] = False

    def texts(self) -> list[pa.Array]:
        """Return the columns of the block as text; for a deleted row, only the key."""
        return [
            self._text(index, is_key=column.name in self._relation.key)
            for index, column in enumerate(self._relation.columns)
        ]

    def row_keys(self) -> pa.Array:
        """Return the row keys of a table without a key."""
        new, old = self._row_hashes
        return pa.concat_arrays([new, old.take(self._deleted)]).take(self._order)

    def ops(self) -> Int64Array:
        """Return the operation of each row of the block, as an index into `_OPS`."""
        deleted = np.full(len(self._deleted), _DELETED)
        ops: Int64Array = np.concatenate([self._new_op, deleted])[self._order]
        return ops

    def unchanged_columns(self) -> pa.Array:
        """Return the names of the columns that each row of the block was sent without."""
        kept = np.flatnonzero(~self._is_deleted)
        offsets = np.zeros(len(self._order) + 1, np.int32)
        values = pa.array([], pa.string())
        missing = {column: mask for column, mask in self._unchanged.items() if mask.any()}
        if missing:
            is_missing = np.zeros((len(self._order), len(missing)), np.bool_)
            is_missing[kept] = np.stack(list(missing.values()), axis=1)[self._order[kept]]
            np.cumsum(is_missing.sum(axis=1), out=offsets[1:])
            names = pa.array([self._relation.columns[column].name for column in missing])
            values = names.take(pa.array(np.nonzero(is_missing)[1]))
        return pa.ListArray.from_arrays(pa.array(offsets), values)

    def _fill_from_old(self, column: int) -> None:
        """Take unchanged values from the old row, where it has them."""
        unchanged = self._new.is_unchanged(column)
        if not unchanged.any():
            return
        source = np.arange(len(self._new))
        in_old = unchanged[self._pair_new] & self._old.has_text(column)[self._pair_old]
        source[self._pair_new[in_old]] = len(self._new) + self._pair_old[in_old]
        unchanged[self._pair_new[in_old]] = False
        self._sources[column], self._unchanged[column] = source, unchanged

    def _pool(self, column: int) -> pa.Array:
        if column not in self._pools:
            new = self._new.texts(column)
            has_old = len(self._old) > 0
            self._pools[column] = (
                pa.concat_arrays([new, self._old.texts(column)]) if has_old else new
            )
        return self._pools[column]

    def _new_values(self, column: int) -> pa.Array:
        """Return the values of the new rows."""
        if column in self._sources:
            return self._pool(column).take(self._sources[column])
        return self._pool(column).slice(0, len(self._new))

    def _old_values(self, column: int) -> pa.Array:
        """Return the values of the old rows."""
        return self._pool(column).slice(len(self._new), len(self._old))

    def _key(self) -> list[int]:
        names = [column.name for column in self._relation.columns]
        return [names.index(name) for name in self._relation.key]

    @cached_property
    def _row_hashes(self) -> tuple[pa.Array, pa.Array]:
        """Return the keys of the new and the old rows of a table without a key."""
        columns = range(len(self._relation.columns))
        new = [self._new_values(column) for column in columns]
        old = [self._old_values(column) for column in columns]
        return (
            row_keys(self._relation, new, len(self._new)),
            row_keys(self._relation, old, len(self._old)),
        )

    def _is_moved(self) -> Mask:
        """Tell which updates changed the key."""
        moved = np.zeros(len(self._pair_new), np.bool_)
        if not len(moved):
            return moved
        if self._relation.has_row_key:
            sides = [self._row_hashes]
        else:
            sides = [(self._new_values(column), self._old_values(column)) for column in self._key()]
        for new, old in sides:
            differs = pc.not_equal(new.take(self._pair_new), old.take(self._pair_old))
            moved |= differs.fill_null(True).to_numpy(zero_copy_only=False)
        return moved

    def _row_order(self) -> Int64Array:
        """Return the rows of the block: indexes of new rows, then, counted on, of `_deleted`."""
        if not len(self._deleted):
            return np.arange(len(self._new))
        # A message's deleted row comes before its new row.
        ranks = [self._new_message * 2 + 1, self._old_message[self._deleted] * 2]
        return np.argsort(np.concatenate(ranks), kind="stable")

    def _text(self, column: int, *, is_key: bool) -> pa.Array:
        source = self._sources.get(column)
        if not len(self._deleted):
            return self._new_values(column)
        if source is None:
            source = np.arange(len(self._new))
        indexes = np.concatenate([source, len(self._new) + self._deleted])[self._order]
        mask = None if is_key else self._is_deleted
        return self._pool(column).take(pa.array(indexes, mask=mask))
