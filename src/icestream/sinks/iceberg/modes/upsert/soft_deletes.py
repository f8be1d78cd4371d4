"""`delete_mode: soft`: a deleted row stays, and says so in two columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

# Not `_deleted`: Spark refuses to read a table with a column of that name, which is its own.
DELETED = "_is_deleted"
DELETED_AT = "_deleted_at"


def with_soft_columns(columns: Iterable[pa.Field], delete_mode: str) -> pa.Schema:
    """Return the columns that the table has, with those that tell of deletes where wanted."""
    import pyarrow as pa

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


def without_soft_columns(columns: pa.Schema, delete_mode: str) -> list[pa.Field]:
    """Return the columns that the stream brings."""
    own = (DELETED, DELETED_AT) if delete_mode == "soft" else ()
    return [column for column in columns if column.name not in own]


def soft_deleted(batch: pa.RecordBatch, deletes: pa.Array) -> pa.RecordBatch:
    """Return the rows with both columns set, by whether each is a delete."""
    from datetime import datetime, timezone

    import pyarrow as pa
    import pyarrow.compute as pc

    now = pa.scalar(datetime.now(tz=timezone.utc), pa.timestamp("us", tz="UTC"))
    at = pc.if_else(deletes, now, pa.scalar(None, pa.timestamp("us", tz="UTC")))
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays |= {DELETED: deletes, DELETED_AT: at}
    return pa.RecordBatch.from_pydict(arrays)
