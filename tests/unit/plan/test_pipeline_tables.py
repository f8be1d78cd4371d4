"""Which tables a pipeline has: by its source, by its state folder, or by the marks in a catalog."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from icestream.catalogs.jdbc import embedded
from icestream.config import parse
from icestream.contracts.changes import ChangeSchema
from icestream.errors import UnreachableError
from icestream.plan import build
from icestream.plan.pipeline_tables import find_pipeline_tables, load_tables
from icestream.sinks.iceberg.ledger import property_key
from icestream.sinks.iceberg.multi.state_file import FanOutStateFile
from icestream.sinks.iceberg.properties import CREATED_BY, SOURCE_TABLE
from icestream.testing.scripted import ScriptedChanges

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.pipeline_tables import PipelineTables
    from icestream.plan.plan import Plan

MIRROR = """\
sources:
  shop: {connector: kafka, config: {brokers: "db:9092", topics: [a], format: debezium-json}}
sinks: {lake: {connector: iceberg, config: {namespace: shop}}}
pipelines: {shop: {source: shop, sink: lake}}
"""
FAN_OUT = """\
sources: {shop: {connector: datagen, config: {rows: 10}}}
sinks: {lake: {connector: iceberg, config: {namespace: shop, route_by: event_type}}}
pipelines: {shop: {source: shop, sink: lake}}
"""
COLUMNS = Schema(NestedField(1, "id", LongType(), required=False))


def plan_of(folder: Path, text: str = MIRROR, source: ScriptedChanges | None = None) -> Plan:
    plan = build(parse(text, folder / "a.yaml"))
    if source is None:
        return plan
    return replace(plan, pipelines=(replace(plan.pipelines[0], source=source),))


def find(plan: Plan, *, asks_source: bool = False) -> PipelineTables:
    return find_pipeline_tables(plan, plan.pipelines[0], asks_source=asks_source)


def names(found: PipelineTables) -> list[str]:
    return [one.name for one in found.tables]


def make_tables(plan: Plan, *tables: str, **properties: str) -> None:
    client = plan.catalogs["lake"].client()
    for table in tables:
        client.create_namespace_if_not_exists(table.split(".")[0])
        client.create_table(table, COLUMNS, properties=properties)


def listed(table: str, *, key: tuple[str, ...] = ("id",), size: int | None = 0) -> pa.Schema:
    schema = ChangeSchema(
        tuple(table.split(".")), key, is_snapshot=True, is_first=True, source_bytes=size
    )
    return schema.on(pa.schema([pa.field("id", pa.int64())]))


def test_single_table_is_named_by_the_file(tmp_path: Path) -> None:
    found = find(plan_of(tmp_path, FAN_OUT.replace("route_by: event_type", "table: orders")))

    assert (names(found), found.named_by) == (["lake.shop.orders"], "file")
    assert found.tables[0].table is None
    assert not (tmp_path / "lake").exists()


def test_source_lists_the_tables_that_a_run_would_mirror(tmp_path: Path) -> None:
    source = ScriptedChanges()
    source.tables = [listed("public.orders"), listed("public.items")]

    found = find(plan_of(tmp_path, source=source), asks_source=True)

    assert names(found) == ["lake.shop.items", "lake.shop.orders"]
    assert [one.source for one in found.tables] == [("public", "items"), ("public", "orders")]
    assert (found.named_by, found.error) == ("source", None)


def test_source_is_not_asked_unless_wanted(tmp_path: Path) -> None:
    source = ScriptedChanges()
    source.tables = UnreachableError("the server does not answer")

    found = find(plan_of(tmp_path, source=source))

    assert (found.tables, found.error) == ((), None)


def test_unreachable_source_does_not_hide_the_tables_of_earlier_runs(tmp_path: Path) -> None:
    source = ScriptedChanges()
    source.tables = UnreachableError("the server does not answer")
    plan = plan_of(tmp_path, source=source)
    make_tables(plan, "shop.orders", **{property_key("shop"): "{}"})

    found = find(plan, asks_source=True)

    assert names(found) == ["lake.shop.orders"]
    assert found.error is source.tables


def test_two_source_tables_of_one_target_are_reported(tmp_path: Path) -> None:
    source = ScriptedChanges()
    source.tables = [listed("a.orders"), listed("b.orders")]

    first, second = find(plan_of(tmp_path, source=source), asks_source=True).tables

    assert (first.source, first.error) == (("a", "orders"), None)
    assert second.source == ("b", "orders")
    assert str(second.error) == (
        "two tables of the source would fill 'shop.orders': 'a.orders' and 'b.orders'\n"
        "  Leave `namespace` and `table` out, so that each has its own names, or read only one of "
        "them. The catalog may ignore case: rename one of them at the source."
    )


def test_source_table_with_an_invalid_name_is_reported(tmp_path: Path) -> None:
    source = ScriptedChanges()
    source.tables = [listed("public.a/b")]

    (one,) = find(plan_of(tmp_path, source=source), asks_source=True).tables

    assert one.error is not None
    assert one.error.what == (
        "table 'public.a/b' of the source cannot be mirrored: 'shop.a/b' is not a valid table "
        "name: it contains a path separator"
    )


@pytest.mark.parametrize("text", [MIRROR, FAN_OUT], ids=["mirror", "fan-out"])
def test_state_folder_names_the_tables(tmp_path: Path, text: str) -> None:
    plan = plan_of(tmp_path, text)
    make_tables(plan, "shop.orders", "shop.foreign")
    state = FanOutStateFile(plan.sink_cache("shop"))
    state.add(frozenset({("shop", "orders"), ("shop", "never_created")}))
    state.add_written(frozenset({("shop", "orders")}), "shop.*")

    found = find(plan)

    assert (names(found), found.named_by) == (["lake.shop.orders"], "rows")
    assert found.tables[0].table is not None
    assert found.tables[0].is_written


def test_dropped_table_that_the_state_names_is_kept(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, FAN_OUT)
    make_tables(plan, "shop.orders")
    state = FanOutStateFile(plan.sink_cache("shop"))
    state.add(frozenset({("shop", "orders"), ("shop", "gone"), ("shop", "given_up")}))
    state.add_written(frozenset({("shop", "gone"), ("shop", "given_up")}), "shop.*")
    written = frozenset({("shop", "gone")})
    state.record_given_up(written, "shop.*", frozenset({("shop", "given_up")}))

    found = find(plan)

    assert names(found) == ["lake.shop.gone", "lake.shop.orders"]
    assert (found.tables[0].table, found.tables[0].is_written) == (None, True)


def test_marks_name_the_tables_without_a_state_folder(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    mark = {property_key("shop"): "{}", SOURCE_TABLE + "shop": '["public", "orders"]'}
    make_tables(plan, "shop.orders", **mark)
    make_tables(plan, "shop.created", **{CREATED_BY: "shop"})
    make_tables(plan, "shop.foreign", **{property_key("other"): "{}"})
    make_tables(plan, "elsewhere.orders", **mark)

    found = find(plan)

    assert names(found) == ["lake.shop.created", "lake.shop.orders"]
    assert found.tables[1].source == ("public", "orders")


def test_mirror_without_a_namespace_is_found_in_the_whole_catalog(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, MIRROR.replace(", config: {namespace: shop}", ""))
    make_tables(plan, "a.orders", "b.orders", **{CREATED_BY: "shop"})
    make_tables(plan, "b.foreign")

    assert names(find(plan)) == ["lake.a.orders", "lake.b.orders"]


def test_unreachable_catalog_is_an_error_of_the_tables(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where a folder should be", encoding="utf-8")

    found = find(plan_of(tmp_path))

    assert found.tables == ()
    assert str(found.error).startswith("catalog 'lake'")


def test_many_tables_are_loaded_side_by_side(tmp_path: Path) -> None:
    catalog = embedded(tmp_path / "lake")
    client = catalog.client()
    client.create_namespace("shop")
    identifiers = [("shop", f"t{number}") for number in range(40)]
    for identifier in identifiers:
        client.create_table(identifier, COLUMNS)

    found = load_tables(catalog, [*identifiers, ("shop", "missing")])

    assert found.pop(("shop", "missing")) is None
    locations = [table.location() for table in found.values() if isinstance(table, Table)]
    assert len(found) == len(locations) == 40
    assert sorted(location.rpartition("/")[2] for location in locations) == sorted(
        name for _, name in identifiers
    )


def test_catalog_that_does_not_answer_costs_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, released = embedded(tmp_path / "lake"), Event()

    def wait(_: Any) -> None:
        released.wait(30)

    monkeypatch.setattr(catalog, "find_table", wait)

    found = load_tables(catalog, [("shop", "orders")], seconds=0.05)

    released.set()
    assert str(found["shop", "orders"]) == (
        "catalog 'lake': the table was not loaded within 0.05 s"
    )


def test_unexpected_fault_while_loading_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = embedded(tmp_path / "lake")

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(catalog, "find_table", fail)

    with pytest.raises(ZeroDivisionError):
        load_tables(catalog, [("shop", "orders")])
