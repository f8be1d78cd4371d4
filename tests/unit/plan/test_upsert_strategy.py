"""What `plan` says of an upsert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icestream.config import parse
from icestream.plan import build, describe, render_text
from icestream.plan.upsert_strategy import upsert_strategy
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
)


class Table:
    """As much of a table as `plan` looks at."""

    def __init__(self, **totals: int) -> None:
        self.metadata = self
        self.format_version = 3
        self.summary = {name.replace("_", "-"): str(total) for name, total in totals.items()}

    def schema(self) -> Schema:
        return SCHEMA

    def current_snapshot(self) -> Table:
        return self


def way(table: Any, *keys: str) -> dict[str, Any]:
    options = IcebergOptions(commit_mode="upsert", key_fields=keys)
    found = upsert_strategy(options, table)
    assert found is not None
    return found


def test_single_integer_key_skips_files() -> None:
    found = way(Table(total_records=3_000_000, total_data_files=4, total_equality_deletes=0), "id")
    assert found == {
        "keys": ["id"],
        "way": "rows by id, looked up in an index of up to 57 MiB on each worker (3000000 rows "
        "in 4 files); files whose key range does not match are skipped",
        "warnings": [],
    }


def test_hashed_key_needs_a_larger_index() -> None:
    found = way(
        Table(total_records=1000, total_data_files=1, total_equality_deletes=0), "id", "name"
    )
    assert found["way"] == (
        "rows by id, name, looked up in an index of up to 27 KiB on each worker (1000 rows in 1 "
        "files)"
    )


@pytest.mark.parametrize(
    ("totals", "warning"),
    [
        (
            {"total_equality_deletes": 1},
            "the table has equality deletes of another writer, and a run will stop at them: "
            "apply them with `rewrite_data_files` first",
        ),
        (
            {"total_data_files": 6000},
            "6000 files make every batch slow, since each is searched separately: compact the "
            "table",
        ),
        (
            {"total_records": 2_000_000_000},
            "the index takes 37 GiB of disk on each worker and is memory-mapped: a key that "
            "grows with time, or a smaller table a tenant (`route_by`), needs less",
        ),
    ],
)
def test_layout_that_slows_upserts_causes_a_warning(totals: dict[str, int], warning: str) -> None:
    held = {"total_records": 1, "total_data_files": 1, "total_equality_deletes": 0, **totals}
    assert way(Table(**held), "id")["warnings"] == [warning]


def test_other_modes_have_no_upsert_strategy() -> None:
    assert upsert_strategy(IcebergOptions(), None) is None


def test_plan_shows_the_upsert_strategy(tmp_path: Path) -> None:
    text = """\
sources: {shop: {connector: datagen, config: {rows: 10}}}
sinks:
  lake:
    connector: iceberg
    config: {namespace: sales, table: orders, commit_mode: upsert, key_fields: [event_id]}
pipelines: {orders: {source: shop, sink: lake}}
"""
    shown = render_text(describe(build(parse(text, tmp_path / "a.yaml"))))
    assert "    upsert     rows by event_id\n" in shown
