"""What a record is of: its table, by its source or its topic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    Table = tuple[str, ...]

# The parts of a record's `source` that name its table.
SOURCE = pa.struct([("db", pa.string()), ("schema", pa.string()), ("table", pa.string())])

_TRANSACTION = {"status", "id", "event_count", "data_collections"}
_SCHEMA_CHANGE = {"source", "databaseName", "ddl", "tableChanges"}
_MESSAGE = {"op", "source", "message"}


def of_topic(topic: str) -> Table:
    """Return the table that a topic is named after: `prefix.schema.table`."""
    return tuple(topic.split(".")[-2:])


def of_tombstones(topic: str, tables: Collection[Table]) -> Table | None:
    """Return the table that tombstones of a topic are of; None if nothing tells.

    Changes name their table and tombstones don't, so the topic must be of one table alone, and
    named after it.

    Args:
        topic: its name.
        tables: those whose changes came by the topic.
    """
    if not tables:
        return of_topic(topic)
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


def are_named(source: pa.Array) -> npt.NDArray[np.bool_]:
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


def is_aside(fields: set[str], key: set[str]) -> bool:
    """Tell whether fields are of a record that tells of the connector itself, not of rows.

    Args:
        fields: of the value.
        key: fields of the record's key.
    """
    return (
        (fields <= {"ts_ms", "ts_us", "ts_ns"} and key == {"serverName"})
        or (fields >= _TRANSACTION and key == {"id"} and len(fields) <= len(_TRANSACTION) + 3)
        or fields >= _SCHEMA_CHANGE
        or (fields >= _MESSAGE and "after" not in fields)
    )
