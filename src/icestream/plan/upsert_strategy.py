"""How an upsert finds the rows that it replaces, what that costs, and what makes it slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from icestream.sinks.iceberg.options import IcebergOptions


# Bytes of index per row: key and position, with twice the key if it is hashed. Optionally also the
# row's id and its sequence.
EXACT_BYTES, HASHED_BYTES, ROW_ID_BYTES, SEQUENCE_BYTES = 12, 20, 8, 8
MANY_FILES = 5_000
LARGE_INDEX = 16 << 30


def upsert_strategy(options: IcebergOptions, table: Table | None) -> dict[str, Any] | None:
    """Return how an upsert finds the old rows, and its warnings; None for other modes."""
    if options.commit_mode != "upsert" or not options.key_fields:
        return None
    keys = ", ".join(options.key_fields)
    if table is None:
        return {"keys": list(options.key_fields), "way": f"rows by {keys}", "warnings": []}
    held = _snapshot_totals(table)
    ranged = _has_integer_key(options, table)
    row = EXACT_BYTES if ranged else HASHED_BYTES
    row += ROW_ID_BYTES * (table.metadata.format_version >= 3)
    row += SEQUENCE_BYTES * (options.sequence_field is not None)
    size = held["total-records"] * row
    way = (
        f"rows by {keys}, looked up in an index of up to {_format_bytes(size)} on each worker "
        f"({held['total-records']} rows in {held['total-data-files']} files)"
    )
    if ranged:
        way += "; files whose key range does not match are skipped"
    return {
        "keys": list(options.key_fields),
        "way": way,
        "warnings": list(_warnings(held, size)),
    }


def _warnings(held: dict[str, int], size: int) -> Iterator[str]:
    if held["total-equality-deletes"]:
        yield (
            "the table has equality deletes of another writer, and a run will stop at them: "
            "apply them with `rewrite_data_files` first"
        )
    if held["total-data-files"] > MANY_FILES:
        yield (
            f"{held['total-data-files']} files make every batch slow, since each is searched "
            "separately: compact the table"
        )
    if size > LARGE_INDEX:
        yield (
            f"the index takes {_format_bytes(size)} of disk on each worker and is memory-mapped: "
            "a key that grows with time, or a smaller table a tenant (`route_by`), needs less"
        )


def _snapshot_totals(table: Table) -> dict[str, int]:
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    return {
        name: int((summary[name] if summary is not None else None) or 0)
        for name in ("total-records", "total-data-files", "total-equality-deletes")
    }


def _has_integer_key(options: IcebergOptions, table: Table) -> bool:
    from pyiceberg.types import IntegerType, LongType

    if len(options.key_fields) != 1:
        return False
    try:
        kind = table.schema().find_type(options.key_fields[0])
    except ValueError:
        return False
    return isinstance(kind, IntegerType | LongType)


def _format_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
