"""Columns followed from the source through the transforms to the sink, with their places."""

from __future__ import annotations

import pytest

from icestream.config import parse
from icestream.errors import ConfigError
from icestream.plan import build

FILE = """\
sources:
  shop:
    connector: datagen
    config:
      schema: SCHEMA
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      OPTIONS
pipelines:
  orders:
    source: shop
    sink: lake
    transforms:
      - STEP
"""
SCHEMA = "id bigint, name string, at date"
THEY_HAVE = "They have: id, name, at."


def text(
    step: str, options: str = "create: true", schema: str = "id bigint, name string, at date"
) -> str:
    return FILE.replace("STEP", step).replace("OPTIONS", options).replace("SCHEMA", schema)


def message(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        build(parse(text(*arguments), "orders.yaml"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("step", "place"),
    [
        ("drop: [id, nam]", "18:20 pipelines.orders.transforms[0].drop[1]"),
        ("drop: {columns: [id, nam]}", "18:30 pipelines.orders.transforms[0].drop.columns[1]"),
        ("filter: nam = 'x'", "18:17 pipelines.orders.transforms[0].filter"),
        ("filter: {expr: nam = 'x'}", "18:24 pipelines.orders.transforms[0].filter.expr"),
        ("cast: {nam: int}", "18:16 pipelines.orders.transforms[0].cast.nam"),
        ("cast: {columns: {nam: int}}", "18:26 pipelines.orders.transforms[0].cast.columns.nam"),
        ("rename: {nam: title}", "18:18 pipelines.orders.transforms[0].rename.nam"),
        ("select: [id, nam]", "18:22 pipelines.orders.transforms[0].select[1]"),
    ],
)
def test_unknown_column_is_reported_at_its_item(step: str, place: str) -> None:
    assert message(step) == (
        f"orders.yaml:{place}: the rows have no column 'nam'\n  Did you mean 'name'? {THEY_HAVE}"
    )


def test_mistakes_of_several_steps_and_of_the_sink_are_reported_together() -> None:
    step = "filter: nam = 'x'\n      - rename: {nme: title}\n      - filter: title >"
    options = 'sort_order: [titel]\n      partitioning: ["hours(at)"]'
    assert [line.partition(": ")[0] for line in message(step, options).splitlines()[::2]] == [
        "orders.yaml:12:20 sinks.lake.config.sort_order[0]",
        "orders.yaml:13:22 sinks.lake.config.partitioning[0]",
        "orders.yaml:19:17 pipelines.orders.transforms[0].filter",
        "orders.yaml:20:18 pipelines.orders.transforms[1].rename.nme",
        "orders.yaml:21:17 pipelines.orders.transforms[2].filter",
    ]


def test_every_mistake_of_a_schema_is_reported_at_its_key() -> None:
    found = message("drop: [id]", "create: true", "id bigin, name strng")
    assert [line for line in found.splitlines() if not line.startswith(" ")] == [
        "orders.yaml:5:15 sources.shop.config.schema: 'id bigin' has the unknown type 'bigin'",
        "orders.yaml:5:15 sources.shop.config.schema: 'name strng' has the unknown type 'strng'",
    ]


def test_nothing_is_said_after_a_transform_whose_result_is_unknown() -> None:
    step = "select: [id, upper(name)]\n      - filter: nam > 0"
    (pipeline,) = build(parse(text(step, "sort_order: [nam]"), "orders.yaml")).pipelines
    assert pipeline.columns.names == ["id"]
    assert not pipeline.columns.is_complete


def test_columns_of_the_table_are_those_after_the_transforms() -> None:
    (pipeline,) = build(parse(text("rename: {at: day}"), "orders.yaml")).pipelines
    assert pipeline.columns.names == ["id", "name", "day"]


def test_options_for_a_change_source_are_not_bound() -> None:
    mirror = (
        "sources: {pg: {connector: postgres-cdc, config: {host: h, database: d, user: u}}}\n"
        "sinks: {lake: {connector: iceberg, config: {partitioning: [anything]}}}\n"
        "pipelines: {p: {source: pg, sink: lake}}\n"
    )
    (pipeline,) = build(parse(mirror, "orders.yaml")).pipelines
    assert not pipeline.columns.is_complete
