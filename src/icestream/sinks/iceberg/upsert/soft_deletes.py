"""The columns of `delete_mode: soft`, which keeps deleted rows and marks them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

# Not `_deleted`: Spark refuses to read a table with a column of that name, which is its own.
DELETED = "_is_deleted"
DELETED_AT = "_deleted_at"


def add_soft_delete_columns(columns: Iterable[pa.Field], delete_mode: str) -> pa.Schema:
    """Return the columns of the table, with those of soft deletes if it has them."""
    kept = [column for column in columns if column.name not in (DELETED, DELETED_AT)]
    if delete_mode != "soft":
        return pa.schema(columns)
    return pa.schema(
        [
            *kept,
            pa.field(DELETED, pa.bool_(), metadata={"doc": "Whether the source deleted the row."}),
            pa.field(DELETED_AT, pa.timestamp("us", tz="UTC"), metadata={"doc": "When."}),
        ]
    )


def drop_soft_delete_columns(columns: pa.Schema, delete_mode: str) -> list[pa.Field]:
    """Return the columns of the stream, which has none of its own for deletes."""
    own = (DELETED, DELETED_AT) if delete_mode == "soft" else ()
    return [column for column in columns if column.name not in own]


def set_soft_delete_columns(batch: pa.RecordBatch, deletes: pa.Array) -> pa.RecordBatch:
    """Return the rows with both columns set; `deletes` tells which rows are deletes."""
    now = pa.scalar(datetime.now(tz=timezone.utc), pa.timestamp("us", tz="UTC"))
    at = pc.if_else(deletes, now, pa.scalar(None, pa.timestamp("us", tz="UTC")))
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays |= {DELETED: deletes, DELETED_AT: at}
    return pa.RecordBatch.from_pydict(arrays)
