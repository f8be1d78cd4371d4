"""A file with one pipeline and a table as a run leaves it, without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.config import load
from icestream.contracts.offset import BatchMark
from icestream.plan.planner import build
from icestream.sinks.iceberg.ledger import property_key, snapshot_summary

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from icestream.plan.plan import Plan

FILE = """\
version: "1.0"
sources:
  shop: {connector: datagen, config: {rows: 1000}}
sinks:
  lake: {connector: iceberg, config: {namespace: demo, table: events}}
pipelines:
  shop: {source: shop, sink: lake}
metrics: {port: 0}
"""


def write_file(folder: Path, text: str = FILE) -> Path:
    path = folder / "icestream.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def plan_of(folder: Path) -> Plan:
    return build(load(folder / "icestream.yaml"))


def make_table(plan: Plan, name: str = "events", batches: int = 2) -> Table:
    """Make a table of the shop's pipeline with three rows a batch."""
    client = plan.catalogs["lake"].client()
    client.create_namespace_if_not_exists("demo")
    rows = rows_of(0)
    table = client.create_table(("demo", name), schema=rows.schema)
    for epoch in range(batches):
        mark = mark_of(epoch)
        table.append(rows_of(epoch), snapshot_properties=snapshot_summary(mark))
        with table.transaction() as change:
            change.set_properties({property_key("shop"): mark.to_json()})
    return table


def mark_of(epoch: int) -> BatchMark:
    start, end = {"row": 3 * epoch}, {"row": 3 * epoch + 3}
    return BatchMark("shop", "query-1", epoch, "datagen", start, end, rows=3, instance="me")


def rows_of(epoch: int) -> pa.Table:
    data: dict[str, Any] = {
        "id": pa.array(range(3 * epoch, 3 * epoch + 3), pa.int64()),
        "product": ["mug", "socks", "mug"],
        "price": pa.array([8.5, 2.0, float("nan")]),
    }
    return pa.table(data)
