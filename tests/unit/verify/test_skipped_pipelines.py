"""What `verify` checks of each pipeline, and the reasons for pipelines that it skips."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from icestream.config import load
from icestream.contracts.sink import RowExpectation
from icestream.errors import PlanError
from icestream.plan.planner import build
from icestream.verify.pipelines import find_mirrors, find_offset_pipelines, skipped_pipelines
from icestream.verify.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.plan import Plan

FILE = """\
sources:
  shop:
    connector: postgres-cdc
    config: {host: db, database: shop, user: me, tables: ["public.*"]}
  debezium:
    connector: kafka
    config: {brokers: "localhost:9092", topics: [shop.orders], format: debezium-json}
  captured:
    connector: kafka
    config:
      brokers: "localhost:9092"
      topics: [shop.orders]
      format: debezium-json
      database: {type: mariadb, host: db, user: me, password: secret}
  events: {connector: datagen, config: {rows: 10}}
sinks:
  lake: {connector: iceberg, config: {namespace: a}}
  log: {connector: iceberg, config: {namespace: b, commit_mode: append}}
  others: {connector: iceberg, config: {namespace: c}}
  captured: {connector: iceberg, config: {namespace: f}}
  events: {connector: iceberg, config: {namespace: d, table: events}}
  keyed:
    connector: iceberg
    config: {namespace: d, table: keyed, commit_mode: upsert, key_fields: [event_id]}
  routed: {connector: iceberg, config: {namespace: e, route_by: event_type}}
  whole: {connector: iceberg, config: {namespace: d, table: whole, commit_mode: overwrite_table}}
pipelines:
  shop: {source: shop, sink: lake}
  log: {source: shop, sink: log}
  others: {source: debezium, sink: others}
  captured: {source: captured, sink: captured}
  events: {source: events, sink: events, transforms: [{filter: quantity > 1}]}
  keyed: {source: events, sink: keyed}
  routed: {source: events, sink: routed}
  whole: {source: events, sink: whole}
"""


def plan_of(folder: Path, only: tuple[str, ...] = ()) -> Plan:
    (folder / "icestream.yaml").write_text(FILE)
    return build(load(folder / "icestream.yaml"), only=only)


def test_each_pipeline_is_verified_or_listed_with_the_reason(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert [mirror.pipeline for mirror in find_mirrors(plan)] == ["shop", "captured"]
    checks = {each.pipeline: each.check for each in find_offset_pipelines(plan)}
    assert {
        name: (check.appends, check.counts_records, check.keeps_records)
        for name, check in checks.items()
    } == {
        "events": (True, True, False),
        "keyed": (False, True, True),
        "routed": (True, False, True),
    }
    assert skipped_pipelines(plan) == {
        "log": "with `commit_mode: append` its tables hold every change",
        "others": "source 'debezium' has no `database` to compare its tables with",
        "whole": "with `commit_mode: overwrite_table` rows replace those of earlier batches",
    }


def test_file_without_a_pipeline_to_verify_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        list(verify(plan_of(tmp_path, ("log", "whole")), lambda: None))  # type: ignore[arg-type, return-value]
    assert (caught.value.what, caught.value.todo) == (
        "no pipeline can be verified",
        "'log': with `commit_mode: append` its tables hold every change\n"
        "'whole': with `commit_mode: overwrite_table` rows replace those of earlier batches",
    )


def test_mirror_with_transforms_or_expectations_is_not_compared(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ("shop", "events"))
    shop, events = plan.pipelines
    changed = replace(plan, pipelines=(replace(shop, transforms=events.transforms), events))
    assert find_mirrors(changed) == []
    assert skipped_pipelines(changed) == {
        "shop": "transforms change or leave out rows, so they differ from those of the database"
    }
    sink: Any = copy(shop.sink)
    sink.expectations = lambda: (RowExpectation("paid", "paid", "drop"),)
    changed = replace(plan, pipelines=(replace(shop, sink=sink), events))
    assert skipped_pipelines(changed) == {
        "shop": "`expect` may leave out rows that the database has"
    }


@dataclass(frozen=True)
class Rules:
    """Transforms and expectations of single tables."""

    pattern: str
    transforms: tuple[str, ...] = ()
    expectations: tuple[str, ...] = ()

    def matches(self, table: tuple[str, ...]) -> bool:
        return ".".join(table) == self.pattern


def test_tables_with_rules_of_their_own_are_not_compared(tmp_path: Path) -> None:
    shop: Any = plan_of(tmp_path, ("shop",)).pipelines[0]
    rules = (
        Rules("public.orders", transforms=("drop",)),
        Rules("public.customers", expectations=("paid",)),
        Rules("public.items"),
    )
    plan: Any = SimpleNamespace(pipelines=[SimpleNamespace(**{**vars(shop), "tables": rules})])
    (mirror,) = find_mirrors(plan)
    reasons = {
        "orders": "transforms change or leave out rows, so they differ from those of the database",
        "customers": "`expect` may leave out rows that the database has",
    }
    assert {name: mirror.problem(("public", name)) for name in (*reasons, "items", "others")} == {
        **reasons,
        "items": "",
        "others": "",
    }
    assert skipped_pipelines(plan) == {
        f"shop: public.{name}": reason for name, reason in reasons.items()
    }
