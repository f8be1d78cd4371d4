"""CDC pipelines that `verify` can't compare are listed with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.config import load
from icestream.plan.planner import build
from icestream.verify.verify import find_mirrors, skipped_pipelines

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources:
  shop:
    connector: postgres-cdc
    config: {host: db, database: shop, user: me, tables: ["public.*"]}
  debezium:
    connector: kafka
    config: {brokers: "localhost:9092", topics: [shop.orders], format: debezium-json}
  events: {connector: datagen}
sinks:
  lake: {connector: iceberg, config: {namespace: a}}
  log: {connector: iceberg, config: {namespace: b, commit_mode: append}}
  others: {connector: iceberg, config: {namespace: c}}
  events: {connector: iceberg, config: {namespace: d, table: events}}
pipelines:
  shop: {source: shop, sink: lake}
  log: {source: shop, sink: log}
  others: {source: debezium, sink: others}
  events: {source: events, sink: events}
"""


def test_skipped_pipelines_are_listed(tmp_path: Path) -> None:
    (tmp_path / "icestream.yaml").write_text(FILE)
    plan = build(load(tmp_path / "icestream.yaml"))

    assert [mirror.pipeline for mirror in find_mirrors(plan)] == ["shop"]
    assert skipped_pipelines(plan) == {
        "log": "with `commit_mode: append` its tables hold every change",
        "others": "only tables of a `postgres-cdc` source can be compared",
    }
