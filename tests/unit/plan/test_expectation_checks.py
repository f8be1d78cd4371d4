"""Expectations looked at before there are rows: their words, their names, their columns."""

from __future__ import annotations

import pytest

from icestream.config import parse
from icestream.errors import ConfigError
from icestream.plan import build
from icestream.schemas.expressions import CONDITION_EXAMPLE
from icestream.schemas.sql_syntax import SPLIT

FILE = """\
sources:
  shop:
    connector: datagen
    config: {rows: 10, schema: "id bigint, amount double, tags array<string>"}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      dead_letter: sales.bad
      expect:
%s
pipelines:
  shop:
    source: shop
    sink: lake
"""


def text(*expectations: str) -> str:
    return FILE % "\n".join(f"        - {one}" for one in expectations)


def message(*expectations: str) -> str:
    with pytest.raises(ConfigError) as caught:
        build(parse(text(*expectations), "orders.yaml"))
    return str(caught.value)


GOOD = '{name: kept, expr: "amount > 0 AND exists(tags, t -> t = ID)", on_fail: dead_letter}'


def test_expectation_uses_spark_sql_and_plans_a_dead_letter_table() -> None:
    (pipeline,) = build(parse(text(GOOD), "orders.yaml")).pipelines
    assert pipeline.uses_spark_sql()
    assert pipeline.dead_letter is not None
    assert pipeline.dead_letter.identity() == "lake.sales.bad"
    assert [one.on_fail for one in pipeline.sink.expectations()] == ["dead_letter"]


@pytest.mark.parametrize(
    ("expr", "what"),
    [
        ("amount >", "not a SQL condition, near '>' in column 8: 'amount >'"),
        ("amount > 0)", "not a SQL condition, near ')' in column 11: 'amount > 0)'"),
        ("SELECT 1", "not a SQL condition, near 'SELECT' in column 1: 'SELECT 1'"),
        ("true; false", "not a SQL condition, near ';' in column 5: 'true; false'"),
    ],
)
def test_invalid_sql_is_reported_at_its_location(expr: str, what: str) -> None:
    assert message(GOOD, f'{{name: odd, expr: "{expr}"}}') == (
        f"orders.yaml:14:29 sinks.lake.config.expect[1].expr: {what}\n"
        f"  {SPLIT if ';' in expr else CONDITION_EXAMPLE}"
    )


def test_two_expectations_of_one_name_are_refused() -> None:
    assert message(GOOD, "{name: kept, expr: id > 0}") == (
        "orders.yaml:14:18 sinks.lake.config.expect[1].name: duplicate expectation name 'kept'\n"
        "  Expectations are counted by name: give each its own."
    )


def test_unknown_column_is_reported_before_anything_runs() -> None:
    assert message(GOOD, "{name: odd, expr: price.net > 0}") == (
        "orders.yaml:14:29 sinks.lake.config.expect[1].expr: the rows have no column 'price'\n"
        "  They have: id, amount, tags."
    )


def test_conditions_see_the_columns_after_the_transforms() -> None:
    changed = text("{name: odd, expr: price > 0}", "{name: old, expr: amount > 0}") + (
        "    transforms: [{rename: {amount: price}}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        build(parse(changed.replace("      dead_letter: sales.bad\n", ""), "orders.yaml"))
    assert str(caught.value) == (
        "orders.yaml:13:29 sinks.lake.config.expect[1].expr: the rows have no column 'amount'\n"
        "  They have: id, price, tags."
    )


def test_dead_letter_table_is_needed_by_an_expectation_alone() -> None:
    without = text(GOOD).replace("      dead_letter: sales.bad\n", "")
    with pytest.raises(ConfigError) as caught:
        build(parse(without, "orders.yaml"))
    assert str(caught.value) == (
        "orders.yaml:11:7 sinks.lake.config.dead_letter: expectation 'kept' needs a table for the "
        "bad rows, and none is named\n"
        "  Add e.g. `dead_letter: sales.bad_rows`."
    )
