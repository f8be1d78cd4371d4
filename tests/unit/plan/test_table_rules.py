"""Transforms and expectations of CDC sources, for all tables and for single ones."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from icestream.config import parse
from icestream.contracts import registry
from icestream.contracts.sink import RowExpectation
from icestream.errors import ConfigError
from icestream.plan import build

if TYPE_CHECKING:
    from icestream.plan.plan import Plan, TableRules

FILE = """\
sources:
  shop:
    connector: postgres-cdc
    config: {{host: db, database: shop, user: me, tables: ["public.users", "sales.*"]}}
sinks:
  lake: {{connector: iceberg, config: {{{sink}}}}}
pipelines:
  shop:
    source: shop
    sink: lake
{pipeline}
"""


def planned(pipeline: str, sink: str = "") -> Plan:
    lines = "\n".join(f"    {line}" for line in pipeline.splitlines())
    return build(parse(FILE.format(pipeline=lines, sink=sink), "icestream.yaml"))


def problems(pipeline: str, sink: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        planned(pipeline, sink)
    return [str(problem) for problem in caught.value.problems]


TABLES = """\
transforms: [{drop: [ssn]}]
tables:
  public.users:
    transforms:
      - filter: active
      - compute: {email: "sha2(email, 256)"}
    expect: [{name: grown, expr: age > 17, on_fail: drop}]
  "sales.*":
    transforms: [{rename: {id: number}}]
"""


def test_tables_have_transforms_and_expectations_of_their_own() -> None:
    (pipeline,) = planned(TABLES).pipelines

    users, sales = pipeline.tables
    assert pipeline.steps == ('drop: ["ssn"]',)
    assert users.steps == ("filter: active", 'compute: {"email": "sha2(email, 256)"}')
    assert users.expectations == (RowExpectation("grown", "age > 17", "drop"),)
    assert sales.steps == ('rename: {"id": "number"}',)
    assert pipeline.all_steps() == [
        'drop: ["ssn"]',
        "public.users: filter: active",
        'public.users: compute: {"email": "sha2(email, 256)"}',
        'sales.*: rename: {"id": "number"}',
    ]
    assert pipeline.uses_spark_sql()


def test_mirror_without_transforms_does_not_use_spark_sql() -> None:
    assert not planned("").pipelines[0].uses_spark_sql()
    assert not planned("tables: {public.users: {}}").pipelines[0].uses_spark_sql()


def _matched(rules: tuple[TableRules, ...], table: tuple[str, ...]) -> list[str]:
    return [one.pattern for one in rules if one.matches(table)]


def test_patterns_match_names_of_the_source() -> None:
    rules = planned(TABLES).pipelines[0].tables

    assert _matched(rules, ("public", "users")) == ["public.users"]
    assert _matched(rules, ("sales", "orders")) == ["sales.*"]
    assert _matched(rules, ("public", "users2")) == []


def test_table_that_the_source_does_not_read_is_named() -> None:
    assert problems("tables:\n  public.user: {transforms: [{drop: [a]}]}") == [
        "icestream.yaml:12:7 pipelines.shop.tables.public.user: source 'shop' does not read a "
        "table 'public.user'\n  Did you mean 'public.users'? It reads: public.users."
    ]


@pytest.mark.usefixtures("shout")
def test_transform_that_is_not_row_by_row_is_refused() -> None:
    refused = (
        "transform 'shout' can't be used with a CDC source: it does not work row by row\n  Use "
        "`filter`, `select`, `compute`, `rename`, `cast` and `drop`, or transform the mirrored "
        "tables where they are read."
    )
    assert problems(
        "transforms: [{shout: a}]\ntables: {sales.orders: {transforms: [{shout: b}]}}"
    ) == [
        f"icestream.yaml:11:19 pipelines.shop.transforms[0].shout: {refused}",
        f"icestream.yaml:12:43 pipelines.shop.tables.sales.orders.transforms[0].shout: {refused}",
    ]


@pytest.fixture
def shout(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {role: registry._installed(role) for role in registry.ROLES}
    point = EntryPoint(
        "shout", "tests.fixtures.toys.toy_transform:ShoutTransform", "icestream.transforms"
    )
    installed["transforms"] = {**installed["transforms"], "shout": point}
    monkeypatch.setattr(registry, "_installed", installed.__getitem__)


def test_mistakes_inside_of_tables_have_their_line() -> None:
    text = """\
tables:
  public.users:
    transform: [{drop: [a]}]
  sales.orders:
    transforms: [{filtr: x}, {rename: [a]}]
    expect: [{name: a, expr: "a >"}, {name: b, expr: "1", on_fail: ignore}]
"""
    assert problems(text) == [
        "icestream.yaml:13:9 pipelines.shop.tables.public.users.transform: unknown key "
        "'transform'\n  Did you mean 'transforms'?",
        "icestream.yaml:15:23 pipelines.shop.tables.sales.orders.transforms[0].filtr: no "
        "transform is called 'filtr'\n  Did you mean 'filter'? Installed: cast, compute, drop, "
        "filter, rename, select.",
        "icestream.yaml:15:43 pipelines.shop.tables.sales.orders.transforms[1].rename: expected "
        "a mapping, found a list",
        "icestream.yaml:16:72 pipelines.shop.tables.sales.orders.expect[1].on_fail: expected "
        "one of 'drop', 'dead_letter', 'fail', found the text 'ignore'",
    ]


def test_condition_of_a_table_is_parsed() -> None:
    assert problems("tables: {sales.orders: {expect: [{name: a, expr: 'a >'}]}}") == [
        "icestream.yaml:11:54 pipelines.shop.tables.sales.orders.expect[0].expr: not a SQL "
        "condition, near '>' in column 3: 'a >'\n  Write a boolean expression, e.g. `amount > 0`."
    ]


def test_dead_letters_of_a_table_need_a_table() -> None:
    rules = "tables: {sales.orders: {expect: [{name: a, expr: b > 0, on_fail: dead_letter}]}}"

    assert problems(rules) == [
        "icestream.yaml:6:30 sinks.lake.config.dead_letter: expectation 'a' needs a table for the "
        "bad rows, and none is named\n  Add e.g. `dead_letter: analytics.bad_rows`."
    ]
    assert planned(rules, "dead_letter: db.bad").pipelines[0].dead_letter is not None


def test_missing_fields_are_not_kept_where_a_filter_may_need_them() -> None:
    assert problems("transforms: [{filter: a > 0}]", "missing_fields: keep") == [
        "icestream.yaml:6:55 sinks.lake.config.missing_fields: 'keep' can't be combined with "
        "`filter` of a CDC source: a row may lack the values that it needs\n  Take "
        "`missing_fields` or the transforms out."
    ]


def test_tables_of_a_source_of_events_are_refused() -> None:
    text = """\
sources: {made: {connector: datagen}}
sinks: {lake: {connector: iceberg, config: {namespace: db, table: events}}}
pipelines: {made: {source: made, sink: lake, tables: {events: {transforms: [{drop: [a]}]}}}}
"""
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "icestream.yaml"))

    assert [str(problem) for problem in caught.value.problems] == [
        "icestream.yaml:3:46 pipelines.made.tables: source 'made' has one stream of rows, and no "
        "tables\n  `tables` is for CDC sources. Move the steps to `transforms`, and the conditions "
        "to the sink's `expect`."
    ]
