"""`status`, `snapshots`, `schema` and `query` over the tables of a mirror or fan-out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.unit.cli.shop import mark_of, plan_of, rows_of, write_file

from icestream.engine.state import PipelineState
from icestream.sinks.iceberg.ledger import property_key, snapshot_summary
from icestream.sinks.iceberg.multi.state_file import FanOutStateFile
from icestream.sinks.iceberg.properties import SOURCE_TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

MIRROR = """\
version: "1.0"
sources:
  shop: {connector: kafka, config: {brokers: "db:9092", topics: [a], format: debezium-json}}
sinks:
  lake: {connector: iceberg, config: {namespace: demo}}
pipelines:
  shop: {source: shop, sink: lake}
metrics: {port: 0}
"""
FAN_OUT = """\
version: "1.0"
sources:
  shop: {connector: datagen, config: {rows: 1000}}
sinks:
  lake: {connector: iceberg, config: {namespace: demo, route_by: event_type}}
pipelines:
  shop: {source: shop, sink: lake}
metrics: {port: 0}
"""


def make_tables(folder: Path, *names: str, text: str = MIRROR) -> None:
    """Write a file whose pipeline has tables with three rows each, and their names as state."""
    write_file(folder, text)
    plan = plan_of(folder)
    client = plan.catalogs["lake"].client()
    client.create_namespace_if_not_exists("demo")
    for name in names:
        mark = mark_of(0)
        table = client.create_table(("demo", name), schema=rows_of(0).schema)
        table.append(rows_of(0), snapshot_properties=snapshot_summary(mark))
        source = {SOURCE_TABLE + "shop": json.dumps(["inventory", name])}
        with table.transaction() as change:
            change.set_properties({property_key("shop"): mark.to_json(), **source})
    state = FanOutStateFile(plan.sink_cache("shop"))
    state.add(frozenset(("demo", name) for name in names))
    state.add_written(frozenset(("demo", name) for name in names), "demo.*")


@pytest.mark.parametrize("text", [MIRROR, FAN_OUT], ids=["mirror", "fan-out"])
def test_status_has_a_row_for_each_table(icestream: Icestream, tmp_path: Path, text: str) -> None:
    make_tables(tmp_path, "orders", "items", text=text)

    head, pipeline, *tables = icestream("status").out.splitlines()

    assert head.split()[-3:] == ["table", "rows", "snapshot"]
    assert pipeline.split()[:3] == ["shop", "never", "run"]
    assert pipeline.split()[-2:] == ["lake.demo.*", "6"]
    assert [line.split()[3] for line in tables] == ["lake.demo.items", "lake.demo.orders"]
    (one,) = icestream("status", "--output", "json").document["pipelines"]
    assert (one["table"], one["table_rows"], one["table_error"]) == ("lake.demo.*", 6, None)
    items = one["tables"][0]
    assert items["mark"] == {"epoch": 0, "query_id": "query-1", "rows": 3}
    assert (items["table_rows"], items["table_error"]) == (3, None)
    assert items["snapshot_id"] is not None
    assert items["last_commit_at"] == one["tables"][0]["last_commit_at"] is not None


def test_status_shows_the_first_tables_and_all_if_asked(
    icestream: Icestream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.cli.status.MAX_SHOWN_TABLES", 2)
    make_tables(tmp_path, "a", "b", "c")

    *_, last, note = icestream("status").out.splitlines()
    assert last.split()[3] == "lake.demo.b"
    assert note == "shop: ... and 1 more table; use --all to show them"
    assert icestream("status", "--all").out.splitlines()[-1].split()[3] == "lake.demo.c"
    (one,) = icestream("status", "--output", "json").document["pipelines"]
    assert len(one["tables"]) == 3


def test_status_names_a_dropped_table(icestream: Icestream, tmp_path: Path) -> None:
    make_tables(tmp_path, "orders", "items")
    plan_of(tmp_path).catalogs["lake"].client().drop_table("demo.items")

    ended = icestream("status")

    assert ended.code == 0
    assert ended.out.splitlines()[-1] == (
        "lake.demo.items: the table was dropped, and the rows that this pipeline committed went "
        "with it"
    )
    (one,) = icestream("status", "--output", "json").document["pipelines"]
    assert [table["table_rows"] for table in one["tables"]] == [None, 3]


def test_status_of_a_mirror_that_never_ran(icestream: Icestream, tmp_path: Path) -> None:
    write_file(tmp_path, MIRROR)

    (one,) = icestream("status", "--output", "json").document["pipelines"]

    assert (one["state"], one["tables"], one["table_error"]) == ("never run", [], None)
    assert not (tmp_path / "lake").exists()


def test_status_names_an_unreadable_state_file(icestream: Icestream, tmp_path: Path) -> None:
    make_tables(tmp_path, "orders")
    file = PipelineState(plan_of(tmp_path).state, "shop").sink_cache / "fan-out.json"
    file.write_text("{", encoding="utf-8")

    ended = icestream("status")

    assert ended.code == 0
    assert ended.out.splitlines()[-1].startswith(f"shop: the file {file} can't be read: ")


def test_snapshots_lists_the_tables(icestream: Icestream, tmp_path: Path) -> None:
    make_tables(tmp_path, "orders", "items")

    ended = icestream("snapshots")

    head, *tables, hint = ended.out.splitlines()
    assert ended.code == 0
    assert head.split()[:4] == ["table", "source", "rows", "snapshots"]
    assert [line.split()[:4] for line in tables] == [
        ["lake.demo.items", "inventory.items", "3", "1"],
        ["lake.demo.orders", "inventory.orders", "3", "1"],
    ]
    assert hint == "Show one of them with `icestream snapshots demo.items`."
    document = icestream("snapshots", "--pipeline", "shop", "--output", "json").document
    assert [one["table"] for one in document["tables"]] == ["lake.demo.items", "lake.demo.orders"]
    assert document["errors"] == []


def test_schema_show_lists_the_tables(icestream: Icestream, tmp_path: Path) -> None:
    make_tables(tmp_path, "orders")

    assert icestream("schema", "show").out.splitlines() == [
        "table             source            columns  partitioning   format version",
        "lake.demo.orders  inventory.orders        3  unpartitioned               2",
        "Show one of them with `icestream schema show demo.orders`.",
    ]


@pytest.mark.parametrize("command", [["snapshots"], ["schema", "show"]])
def test_mirror_without_tables_points_to_the_plan(
    icestream: Icestream, tmp_path: Path, command: list[str]
) -> None:
    write_file(tmp_path, MIRROR)

    ended = icestream(*command)

    assert (ended.code, ended.out) == (
        0,
        "Pipeline 'shop' has no tables yet; `icestream plan` shows what a run would create.\n",
    )


@pytest.mark.parametrize("name", ["demo.orders", "lake.demo.orders", "orders", "inventory.orders"])
def test_table_of_a_mirror_is_found_by_any_of_its_names(
    icestream: Icestream, tmp_path: Path, name: str
) -> None:
    make_tables(tmp_path, "orders", "items")

    assert icestream("snapshots", name).out.splitlines()[0] == "table     lake.demo.orders"
    shown = icestream("schema", "show", name).out.splitlines()[0]
    assert shown == "table           lake.demo.orders"


@pytest.mark.parametrize(
    "command",
    [
        ["snapshots", "inventory.ordres"],
        ["schema", "show", "inventory.ordres"],
        ["query", "SELECT * FROM inventory.ordres"],
    ],
)
def test_misspelt_name_of_the_source_gets_a_suggestion(
    icestream: Icestream, tmp_path: Path, command: list[str]
) -> None:
    make_tables(tmp_path, "orders", "items")

    ended = icestream(*command)

    assert (ended.code, ended.err) == (
        1,
        "error: no table is called 'inventory.ordres'\n"
        "  Did you mean 'demo.orders'? Available: lake.demo.items, lake.demo.orders.\n",
    )


def test_listing_names_a_dropped_table(icestream: Icestream, tmp_path: Path) -> None:
    make_tables(tmp_path, "orders", "items")
    plan_of(tmp_path).catalogs["lake"].client().drop_table("demo.items")

    lines = icestream("snapshots").out.splitlines()

    assert lines[2] == (
        "lake.demo.items: the table was dropped, and the rows that this pipeline committed went "
        "with it"
    )
    ended = icestream("snapshots", "items")
    assert (ended.code, ended.err) == (
        1,
        "error: no table is called 'lake.demo.items'\n"
        "  Did you mean 'lake.demo.orders'? Available: lake.demo.orders.\n",
    )


def test_foreign_table_of_the_namespace_is_not_listed(icestream: Icestream, tmp_path: Path) -> None:
    make_tables(tmp_path, "orders")
    client = plan_of(tmp_path).catalogs["lake"].client()
    client.create_table(("demo", "foreign"), schema=rows_of(0).schema)

    document = icestream("snapshots", "--output", "json").document

    assert [one["table"] for one in document["tables"]] == ["lake.demo.orders"]
