"""Sorts Arrow rows by a sink's sort order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.sinks.iceberg.sort import SortTerm


def in_order(rows: pa.Table, order: Sequence[SortTerm]) -> pa.Table:
    """Return the rows sorted; each term says by itself where its nulls go."""
    keys: dict[str, Any] = {}
    directions = []
    for number, term in enumerate(order):
        column = _column(rows, term.column)
        keys[f"null{number}"] = pc.is_null(column)
        directions.append((f"null{number}", "descending" if term.nulls_first else "ascending"))
        keys[f"value{number}"] = column
        directions.append((f"value{number}", "descending" if term.descending else "ascending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=directions))


def _column(rows: pa.Table, name: str) -> Any:
    if name in rows.column_names:
        return rows[name]
    top, *rest = name.split(".")
    return pc.struct_field(rows[top], rest)
