"""Texts of whole rows as the blocks of a table."""

from __future__ import annotations

from hashlib import md5
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from icestream.errors import AttentionError
from icestream.sources.postgres_cdc.relation import block_columns, is_text_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.sources.postgres_cdc.relation import Column, Relation
    from icestream.sources.postgres_cdc.types import TypeCatalog

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
