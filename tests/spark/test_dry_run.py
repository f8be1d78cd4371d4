"""Dry runs give the rows and dead letters that a run writes, and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.test_expectations import expectation, steps

from icestream.engine.dry_run.dry_run import dry_run
from icestream.engine.dry_run.preview import first_blocks, preview
from icestream.errors import (
    BadRecordError,
    IcestreamError,
    SchemaMismatchError,
    UnmetExpectationError,
)
from icestream.formats.json import JsonDecoder
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream
    from tests.fixtures.spark import Lake

    from icestream.engine.dry_run.dry_run import DryRunResult
    from icestream.plan.plan import PipelinePlan

RECORDS = [
    b'{"id": 1, "kind": "a", "amount": "10"}',
    b'{"id": 2, "kind": "b", "amount": "x"}',
    b'{"id": 3, "kind": "a", "amount": "-4"}',
    b'{"id": 4, "kind": "c", "amount": "7"}',
    b'{"id": 5,',
    b'{"kind": "a", "amount": "9"}',
]
STEPS: list[tuple[str, Any]] = [
    ("filter", "kind <> 'c'"),
    ("cast", {"amount": "int"}),
    ("select", ["id", "upper(kind) AS kind", "amount"]),
]
RULES = [
    expectation("positive", "amount > 0", "dead_letter"),
    expectation("known", "id is not null", "drop"),
]


def records(*values: bytes) -> ScriptedSource:
    source = ScriptedSource(decoder=JsonDecoder())
    source.append_values(values)
    return source


def dry(lake: Lake, plan: PipelinePlan, **options: Any) -> DryRunResult:
    blocks = list(first_blocks(plan.source, 1_000))
    return dry_run(plan, blocks, lambda: lake.spark, **options)


def rows_of(result: DryRunResult) -> list[dict[str, Any]]:
    return [row for parts in result.tables.values() for part in parts for row in part.to_pylist()]


@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        ([], {}),
        ([], {"expect": RULES[1:]}),
        (STEPS, {}),
        (STEPS, {"expect": RULES}),
        (STEPS, {"expect": RULES, "commit_mode": "upsert", "key_fields": ("id",)}),
        # An aggregate loses which record a row came from.
        ([STEPS[1], ("select", ["kind", "count(*) OVER (PARTITION BY kind) AS n", "amount"])], {}),
    ],
    ids=["plain", "expect", "transforms", "both", "upsert", "window"],
)
@pytest.mark.parametrize("on_error", ["dead_letter", "drop"])
def test_dry_run_gives_what_a_run_writes(
    lake: Lake, transforms: list[tuple[str, Any]], options: dict[str, Any], on_error: str
) -> None:
    plan = lake.plan(records(*RECORDS), on_error=on_error, **options)
    if options.get("expect") == RULES:
        plan = replace(plan, dead_letter=lake.sink("dead"))
    plan = replace(plan, transforms=steps(*transforms))

    result = dry(lake, plan)
    assert not lake.state.exists()
    lake.run(plan)

    by_text = sorted(map(str, rows_of(result)))
    assert by_text == sorted(map(str, lake.rows()))
    letters = [] if plan.dead_letter is None else lake.rows("dead")
    assert sorted((str(one.reason), str(one.position), one.raw) for one in result.bad) == sorted(
        (str(row["reason"]), str(row["position"]), row["raw"]) for row in letters
    )


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, BadRecordError, "record scripted[3] can't be decoded: not JSON"),
        (
            {"on_error": "drop", "expect": [expectation("positive", "amount > 0", "fail")]},
            UnmetExpectationError,
            "expectation 'positive' is not met by 1 row: amount > 0",
        ),
        (
            {"on_error": "drop", "expect": [expectation("positive", "amont > 0", "fail")]},
            SchemaMismatchError,
            "expectation 'positive' does not fit the rows",
        ),
        (
            {"on_error": "drop", "partitioning": ["days(amount)"]},
            SchemaMismatchError,
            "partitioning: column 'amount' is",
        ),
    ],
)
def test_dry_run_fails_as_a_run_does(
    lake: Lake, options: dict[str, Any], kind: type[IcestreamError], message: str
) -> None:
    castable = [record for record in RECORDS if b'"x"' not in record]
    plan = replace(lake.plan(records(*castable), **options), transforms=steps(*STEPS))

    with pytest.raises(kind) as dried:
        dry(lake, plan)
    assert message in str(dried.value)
    with pytest.raises(kind) as run:
        lake.run(plan)
    assert str(run.value).splitlines()[0].endswith(str(dried.value.what))


def test_preview_keeps_bad_rows_whatever_the_pipeline_does_with_them(lake: Lake) -> None:
    rules = [expectation("positive", "amount > 0", "fail")]
    plan = lake.plan(records(*RECORDS), on_error="fail", expect=rules)
    plan = replace(plan, transforms=steps(*STEPS))

    found = preview(plan, lambda: lake.spark, rows=1)

    assert (found.records, found.left_out, found.is_inferred) == (6, 1, True)
    [table] = found.tables
    assert (table.rows, table.count) == ([{"id": 1, "kind": "A", "amount": 10}], 2)
    assert [(one.name, one.on_fail, count) for one, count in found.unmet] == [
        ("positive", "fail", 1)
    ]
    assert sorted(str(bad.position) for bad in found.bad) == [
        "scripted[1]",
        "scripted[2]",
        "scripted[4]",
    ]


def test_routes_by_expression_are_computed(lake: Lake) -> None:
    from icestream.sinks.iceberg.multi.fan_out import FanOutSink
    from icestream.sinks.iceberg.options import IcebergOptions

    options = IcebergOptions(namespace=("db",), route_by="concat('of_', kind)")
    plan = lake.plan(records(*RECORDS), on_error="drop")
    plan = replace(plan, sink=FanOutSink(options, lake.catalog, "lake"))

    result = dry(lake, plan)

    counts = {table: sum(part.num_rows for part in parts) for table, parts in result.tables.items()}
    assert counts == {
        f"{lake.name}.db.of_a": 3,
        f"{lake.name}.db.of_b": 1,
        f"{lake.name}.db.of_c": 1,
    }


FILE = """\
sources:
  orders: {connector: kafka, config: {brokers: "${BROKERS}", topics: [orders]}}
sinks:
  lake:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      on_error: dead_letter
      dead_letter: sales.dead
      expect: [{name: positive, expr: "amount > 0", on_fail: dead_letter}]
pipelines:
  orders:
    source: orders
    sink: lake
    transforms:
      - filter: "status <> 'cancelled'"
      - cast: {amount: "decimal(10,2)"}
"""
TESTS = """\
tests:
  - name: cancelled orders are left out
    given:
      - {order_id: 1, status: paid, amount: "10.5"}
      - {order_id: 2, status: cancelled, amount: "7"}
    expect:
      - {order_id: 1, amount: 10.5}
  - name: amounts must be positive numbers
    given:
      - {order_id: 3, status: paid, amount: lots}
      - {order_id: 4, status: paid, amount: "-1"}
    expect: []
    dead_letters:
      - {reason: "expectation 'positive' is not met"}
      - {reason: "'lots' is not a decimal(10,2)", record: {order_id: 3, status: paid, amount: lots}}
"""


@pytest.mark.usefixtures("spark")
def test_transforms_are_tested_by_the_command(icestream: Icestream, tmp_path: Path) -> None:
    (tmp_path / "icestream.yaml").write_text(FILE, encoding="utf-8")
    (tmp_path / "orders.test.yaml").write_text(TESTS, encoding="utf-8")
    ended = icestream("test")
    assert (ended.code, ended.err) == (0, "Starting Spark ...\n"), ended.out
    assert {path.name for path in tmp_path.iterdir()} == {"icestream.yaml", "orders.test.yaml"}
