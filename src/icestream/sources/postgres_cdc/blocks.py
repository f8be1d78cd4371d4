"""Texts of whole rows as the blocks of a table."""

from __future__ import annotations

from functools import cached_property
from hashlib import md5
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.changes import OP, TRUNCATE, UNCHANGED_COLUMNS
from icestream.errors import AttentionError
from icestream.sources.postgres_cdc.tables import block_columns, is_text_key
from icestream.sources.postgres_cdc.tuples import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icestream.sources.postgres_cdc.tables import Column, Relation
    from icestream.sources.postgres_cdc.tuples import Bytes, Mask, Places
    from icestream.sources.postgres_cdc.types import TypeCatalog

    ValuesNow = Callable[
        [Relation, Sequence[str], Sequence[tuple[str, ...]]],
        Sequence[tuple[str | None, ...] | None],
    ]


# Characters of a value that a message shows.
SHOWN = 100
# What to do about a value that can't be held, by whether it is part of a change and of the key.
_REMEDIES = {
    (False, False): "Correct the value in the database, or set `unrepresentable: null` to store a "
    "null.",
    (False, True): "Correct the value in the database; a key can't become null.",
    (True, False): "Set `unrepresentable: null` to store a null. Correcting the value in the "
    "database does not help: its log still has this change.",
    (True, True): "Correct the value in the database, and load the tables again with `icestream "
    "run --start-over`: the log still has this change, and a key can't become null.",
}
_AS_TEXT = (
    "Or set `unrepresentable: text` to store all columns of such types as strings. It does not "
    "change columns that exist: drop the Iceberg tables that have them, and load them again with "
    "`icestream run --start-over`."
)


def snapshot_block(
    relation: Relation, types: TypeCatalog, texts: Sequence[pa.Array], *, first: bool = False
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Return a block of rows that were read as they are.

    Args:
        relation: the table.
        types: which knows the types of all its columns.
        texts: strings as PostgreSQL prints them, one array a column of the relation.
        first: whether they replace what the Iceberg table holds.

    Returns:
        The block with `block_columns(relation, types, snapshot=True, first=first)`, and how many
        values of which columns are null because Arrow's type can't hold them.
    """
    columns, nulled = typed(relation, types, texts)
    if relation.has_row_key:
        columns.append(row_keys(relation, texts, len(columns[0]) if columns else 0))
    schema = block_columns(relation, types, snapshot=True, first=first)
    return pa.RecordBatch.from_arrays(columns, schema=schema), nulled


def typed(
    relation: Relation, types: TypeCatalog, texts: Sequence[pa.Array], *, is_change: bool = False
) -> tuple[list[pa.Array], dict[str, int]]:
    """Return the columns of a table with their types, and what became null in which of them.

    Args:
        relation: the table.
        types: which knows the types of all its columns.
        texts: strings as PostgreSQL prints them, one array a column of the relation.
        is_change: whether they come from the log, not from the table.

    Raises:
        AttentionError: a value can't be held by its type, and may not become null.
    """
    columns, nulled = [], {}
    for column, strings in zip(relation.columns, texts, strict=True):
        if is_text_key(relation, column, types):
            columns.append(strings)
            continue
        values, count = types.from_text(strings, column.type_oid, column.typmod)
        columns.append(values)
        if count and (types.unrepresentable == "fail" or column.name in relation.key):
            raise _unrepresentable(relation, types, column, texts, is_change=is_change)
        if count:
            nulled[column.name] = count
    return columns, nulled


def _unrepresentable(
    relation: Relation,
    types: TypeCatalog,
    column: Column,
    texts: Sequence[pa.Array],
    *,
    is_change: bool,
) -> AttentionError:
    """Return the error that names the first value of a column that its type can't hold."""
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
    shown = value if len(value) <= SHOWN else f"{value[:SHOWN]}..."
    type_name = types.name_of(column.type_oid, column.typmod)
    return AttentionError(
        f"column {column.name!r} of type {type_name} is {shown!r}, which its Iceberg type can't "
        "hold",
        where=f"table {'.'.join(relation.table)}{', row ' if key else ''}{key}",
        todo=f"{_REMEDIES[is_change, column.name in relation.key]}\n{_AS_TEXT}",
    )


def row_keys(relation: Relation, texts: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return a key for each row of a table without one: a hash over its values.

    A null adds nothing to it, so that a column that is added later leaves the keys of older rows
    as they are; so does renaming one.

    Args:
        relation: the table.
        texts: strings as PostgreSQL prints them, one array a column of the relation.
        rows: how many rows there are, also of a table without columns.
    """
    parts = [
        pc.binary_join_element_wise(
            str(column.number or place),
            pc.binary_length(strings).cast(pa.string()),
            strings,
            ":",
        ).fill_null("")
        for place, (column, strings) in enumerate(zip(relation.columns, texts, strict=True), 1)
    ]
    told = pc.binary_join_element_wise(*parts, "").to_pylist() if parts else [""] * rows
    hashes = [md5(row.encode(), usedforsecurity=False).hexdigest() for row in told]
    return pa.array(hashes, pa.string())


INSERT, DELETE, NEW = ord("I"), ord("D"), ord("N")
# Before a row, a message has its kind and the table's id.
_BEFORE_ROW = 5
_OPS = pa.array(["i", "u", "d"])
_INSERTED, _UPDATED, _DELETED = 0, 1, 2


def changes_block(
    relation: Relation, types: TypeCatalog, data: Bytes, starts: Places, values_now: ValuesNow
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Return messages Insert, Update and Delete of one table as a block.

    Args:
        relation: the table.
        types: which knows the types of all its columns.
        data: what the messages are in.
        starts: where each begins, in ascending order.
        values_now: asked for what an update of the key did not send, see `Database`.

    Returns:
        The block, and how many values of which columns are null because Arrow's type can't hold
        them.
    """
    rows = _ChangedRows(relation, data, starts)
    rows.fetch_unsent(values_now)
    columns, nulled = typed(relation, types, rows.texts(), is_change=True)
    if relation.has_row_key:
        columns.append(rows.row_keys())
    columns += [_OPS.take(pa.array(rows.ops())), rows.names_unsent()]
    return pa.RecordBatch.from_arrays(columns, schema=block_columns(relation, types)), nulled


def truncate_block(relation: Relation, types: TypeCatalog) -> pa.RecordBatch:
    """Return a block that says that a table is empty now."""
    columns = block_columns(relation, types)
    values = {
        OP: pa.array([TRUNCATE]),
        UNCHANGED_COLUMNS: pa.array([[]], columns.field(UNCHANGED_COLUMNS).type),
    }
    arrays = [values.get(field.name, pa.nulls(1, field.type)) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class _ChangedRows:
    """The rows of messages: new ones, old ones, and what becomes of them.

    A column's values come from a pool: the texts of the new rows, then those of the old rows,
    then what was asked of the database.
    """

    def __init__(self, relation: Relation, data: Bytes, starts: Places) -> None:
        self._relation = relation
        kinds, marks = data.bytes[starts], starts + _BEFORE_ROW
        has_old, has_new = data.bytes[marks] != NEW, kinds != DELETE
        self._old = walk(data, marks[has_old] + 1, len(relation.columns))
        marks[has_old] = self._old.ends
        self._new = walk(data, marks[has_new] + 1, len(relation.columns))
        self._new_op = np.where(kinds[has_new] == INSERT, _INSERTED, _UPDATED)
        self._new_message, self._old_message = np.flatnonzero(has_new), np.flatnonzero(has_old)
        # Updates that tell the old row as well: its place among the new ones, and the old ones.
        both = has_new & has_old
        self._pair_new = (np.cumsum(has_new) - 1)[both]
        self._pair_old = (np.cumsum(has_old) - 1)[both]
        self._pools: dict[int, pa.Array] = {}
        self._sources: dict[int, Places] = {}
        self._unsent: dict[int, Mask] = {}
        for column in range(len(relation.columns)):
            self._fill_from_old(column)
        self._moved = self._is_moved()
        is_lone = (np.cumsum(has_old) - 1)[has_old & ~has_new]
        self._gone = np.concatenate([is_lone, self._pair_old[self._moved]])
        self._order = self._ordered()
        self._is_deleted = self._order >= len(self._new)

    def fetch_unsent(self, values_now: ValuesNow) -> None:
        """Ask for what updates of the key did not send: the table has no row to keep it from."""
        moved = self._pair_new[self._moved]
        is_lacking = np.zeros(len(moved), np.bool_)
        for unsent in self._unsent.values():
            is_lacking |= unsent[moved]
        lacking = moved[is_lacking]
        if not len(lacking) or not self._relation.key:
            return
        asked = [column for column, unsent in self._unsent.items() if unsent[lacking].any()]
        names = [column.name for column in self._relation.columns]
        keys = [self._current(column).take(lacking).to_pylist() for column in self._key()]
        answers = values_now(
            self._relation, [names[column] for column in asked], list(zip(*keys, strict=True))
        )
        for place, column in enumerate(asked):
            values = [None if answer is None else answer[place] for answer in answers]
            wanted = self._unsent[column][lacking]
            pool = self._pool(column)
            self._pools[column] = pa.concat_arrays([pool, pa.array(values, pa.string())])
            self._sources[column][lacking[wanted]] = len(pool) + np.flatnonzero(wanted)
            self._unsent[column][lacking] = False

    def texts(self) -> list[pa.Array]:
        """Return the columns of the block, as texts; of a deleted row only the key."""
        return [
            self._text(place, is_key=column.name in self._relation.key)
            for place, column in enumerate(self._relation.columns)
        ]

    def row_keys(self) -> pa.Array:
        """Return the keys of rows of a table without a key."""
        new, old = self._hashed
        return pa.concat_arrays([new, old.take(self._gone)]).take(self._order)

    def ops(self) -> Places:
        """Return what each row of the block does, as its place in `_OPS`."""
        gone = np.full(len(self._gone), _DELETED)
        found: Places = np.concatenate([self._new_op, gone])[self._order]
        return found

    def names_unsent(self) -> pa.Array:
        """Return the names of the columns that each row of the block lacks."""
        kept = np.flatnonzero(~self._is_deleted)
        offsets = np.zeros(len(self._order) + 1, np.int32)
        values = pa.array([], pa.string())
        lacking = {column: mask for column, mask in self._unsent.items() if mask.any()}
        if lacking:
            is_lacking = np.zeros((len(self._order), len(lacking)), np.bool_)
            is_lacking[kept] = np.stack(list(lacking.values()), axis=1)[self._order[kept]]
            np.cumsum(is_lacking.sum(axis=1), out=offsets[1:])
            names = pa.array([self._relation.columns[column].name for column in lacking])
            values = names.take(pa.array(np.nonzero(is_lacking)[1]))
        return pa.ListArray.from_arrays(pa.array(offsets), values)

    def _fill_from_old(self, column: int) -> None:
        """Take values that were not sent again from the old row, where that tells them."""
        unsent = self._new.is_unchanged(column)
        if not unsent.any():
            return
        source = np.arange(len(self._new))
        told = unsent[self._pair_new] & self._old.has_text(column)[self._pair_old]
        source[self._pair_new[told]] = len(self._new) + self._pair_old[told]
        unsent[self._pair_new[told]] = False
        self._sources[column], self._unsent[column] = source, unsent

    def _pool(self, column: int) -> pa.Array:
        if column not in self._pools:
            new = self._new.texts(column)
            has_old = len(self._old) > 0
            self._pools[column] = (
                pa.concat_arrays([new, self._old.texts(column)]) if has_old else new
            )
        return self._pools[column]

    def _current(self, column: int) -> pa.Array:
        """Return the values of the new rows."""
        if column in self._sources:
            return self._pool(column).take(self._sources[column])
        return self._pool(column).slice(0, len(self._new))

    def _former(self, column: int) -> pa.Array:
        """Return the values of the old rows."""
        return self._pool(column).slice(len(self._new), len(self._old))

    def _key(self) -> list[int]:
        names = [column.name for column in self._relation.columns]
        return [names.index(name) for name in self._relation.key]

    @cached_property
    def _hashed(self) -> tuple[pa.Array, pa.Array]:
        """Return the keys of the new and of the old rows of a table without a key."""
        places = range(len(self._relation.columns))
        new = [self._current(place) for place in places]
        old = [self._former(place) for place in places]
        return (
            row_keys(self._relation, new, len(self._new)),
            row_keys(self._relation, old, len(self._old)),
        )

    def _is_moved(self) -> Mask:
        """Tell which updates gave their row another key."""
        moved = np.zeros(len(self._pair_new), np.bool_)
        if not len(moved):
            return moved
        if self._relation.has_row_key:
            sides = [self._hashed]
        else:
            sides = [(self._current(column), self._former(column)) for column in self._key()]
        for new, old in sides:
            differs = pc.not_equal(new.take(self._pair_new), old.take(self._pair_old))
            moved |= differs.fill_null(True).to_numpy(zero_copy_only=False)
        return moved

    def _ordered(self) -> Places:
        """Return the rows of the block: new ones by place, then from there on those in `_gone`."""
        if not len(self._gone):
            return np.arange(len(self._new))
        # The row that a message takes away goes before the one that it brings.
        ranks = [self._new_message * 2 + 1, self._old_message[self._gone] * 2]
        return np.argsort(np.concatenate(ranks), kind="stable")

    def _text(self, column: int, *, is_key: bool) -> pa.Array:
        source = self._sources.get(column)
        if not len(self._gone):
            return self._current(column)
        if source is None:
            source = np.arange(len(self._new))
        places = np.concatenate([source, len(self._new) + self._gone])[self._order]
        mask = None if is_key else self._is_deleted
        return self._pool(column).take(pa.array(places, mask=mask))
