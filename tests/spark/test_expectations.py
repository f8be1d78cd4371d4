"""Expectations on a sink: rows that do not meet one are dropped, kept aside, or end the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.power_cut import power_cut_before_rows

from icestream.contracts import registry
from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.errors import BadRecordError, SchemaMismatchError, UnmetExpectationError
from icestream.formats.json import JsonDecoder
from icestream.metrics.events import BatchWritten, ExpectationUnmet, RecordsFailed
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.contracts.transform import Transform
    from icestream.plan.plan import PipelinePlan

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])


def steps(*given: tuple[str, Any]) -> tuple[Transform[Any], ...]:
    built = []
    for kind, value in given:
        transform = registry.find("transforms", kind)
        built.append(transform(transform.options_type.model_validate(value)))
    return tuple(built)


def expectation(name: str, expr: str, on_fail: str) -> dict[str, str]:
    return {"name": name, "expr": expr, "on_fail": on_fail}


def amounts(*given: int | None) -> ScriptedSource:
    source = ScriptedSource(schema=SCHEMA)
    source.append_rows({"id": number, "amount": amount} for number, amount in enumerate(given))
    return source


def with_dead_letters(lake: Lake, plan: PipelinePlan) -> PipelinePlan:
    return replace(plan, dead_letter=lake.sink("dead"))


def unmet(lake: Lake) -> list[tuple[str, int]]:
    return [(e.expectation, e.count) for e in lake.events if isinstance(e, ExpectationUnmet)]


def failed(lake: Lake) -> list[tuple[int, int]]:
    return [(e.count, e.dead_letters) for e in lake.events if isinstance(e, RecordsFailed)]


def test_rows_that_fail_an_expectation_are_dropped_and_counted_by_its_name(
    lake: Lake,
) -> None:
    rules = [
        expectation("positive", "amount > 0", "drop"),
        expectation("even", "amount % 2 = 0", "drop"),
    ]
    runner = lake.run(lake.plan(amounts(2, -1, 3, None, 4), expect=rules))

    assert sorted((row["id"], row["amount"]) for row in lake.rows()) == [(0, 2), (3, None), (4, 4)]
    assert unmet(lake) == [("positive", 1), ("even", 2)]
    assert failed(lake) == [(2, 0)], "a row that fails twice is one row"
    assert [e.rows for e in lake.events if isinstance(e, BatchWritten)] == [3]
    assert (runner.progress.rows, runner.progress.bad) == (3, 2)
    assert {
        field.name for field in lake.catalog.client().load_table(("db", "events")).schema().fields
    } == {
        "id",
        "amount",
    }


def test_null_condition_is_not_a_failure(lake: Lake) -> None:
    rules = [
        expectation("positive", "amount > 0", "fail"),
        expectation("nothing", "CAST(NULL AS BOOLEAN)", "fail"),
    ]
    lake.run(lake.plan(amounts(1, None), expect=rules))

    assert sorted(row["id"] for row in lake.rows()) == [0, 1]


def test_condition_on_an_absent_column_is_skipped(lake: Lake) -> None:
    """The table's value stays, and was looked at when it came."""
    unsent = pa.field(UNCHANGED_COLUMNS, pa.list_(pa.string()))
    source = ScriptedSource(schema=pa.schema([*SCHEMA, ("note", pa.string()), unsent]))
    rules = [
        expectation("noted", "NOTE IS NOT NULL", "drop"),
        expectation("positive", "amount > 0", "drop"),
        expectation("always", "TRUE", "drop"),
    ]
    keyed: dict[str, Any] = {"commit_mode": "upsert", "key_fields": ("id",), "expect": rules}
    source.append_rows({"id": n, "amount": 1, "note": "big"} for n in range(4))
    lake.run(lake.plan(source, **keyed))
    source.append_rows(
        [
            {"id": 0, "amount": 2, UNCHANGED_COLUMNS: ["note"]},
            {"id": 1, "amount": 2, UNCHANGED_COLUMNS: []},
            {"id": 2, "amount": -2, UNCHANGED_COLUMNS: ["note"]},
            {"id": 3, "amount": 2, "note": None, UNCHANGED_COLUMNS: ["other"]},
        ]
    )
    lake.run(lake.plan(source, **keyed))

    assert sorted((row["id"], row["amount"], row["note"]) for row in lake.rows()) == [
        (0, 2, "big"),
        (1, 1, "big"),
        (2, 1, "big"),
        (3, 1, "big"),
    ]
    assert unmet(lake) == [("noted", 2), ("positive", 1)]


def test_failed_expectation_fails_the_batch_and_nothing_is_written(lake: Lake) -> None:
    rules = [
        expectation("known", "id IS NOT NULL", "drop"),
        expectation("positive", "amount > 0", "fail"),
    ]
    with pytest.raises(UnmetExpectationError) as caught:
        lake.run(lake.plan(amounts(1, 2, -3, 0), expect=rules))

    assert str(caught.value) == (
        "pipeline 'events', batch 0: expectation 'positive' is not met by 2 rows: amount > 0, "
        'found {"id": 2, "amount": -3}\n'
        "  Nothing of the batch was written. Fix the rows at their source, or set "
        "`on_fail: dead_letter` or `on_fail: drop` for it on sink 'lake'."
    )
    assert caught.value.exit_code == 5
    assert lake.rows() == []
    assert list(lake.folder.rglob("*.parquet")) == [], "files of the batch are removed"


def test_rows_are_checked_as_written_and_dead_letters_keep_the_record(lake: Lake) -> None:
    source = ScriptedSource(decoder=JsonDecoder())
    values = [b'{"id":%d,"amount":%d}' % (n, n - 2) for n in range(6)]
    source.append_values([*values, b"not JSON"])
    rules = [expectation("positive", "doubled >= 0", "dead_letter")]
    plan = replace(
        lake.plan(source, expect=rules, on_error="dead_letter", sort_order=["doubled desc"]),
        transforms=steps(("filter", "id <> 0"), ("select", ["id", "amount * 2 AS doubled"])),
    )
    lake.run(plan)

    assert sorted((row["id"], row["doubled"]) for row in lake.rows()) == [
        (2, 0),
        (3, 2),
        (4, 4),
        (5, 6),
    ]
    letters = sorted(lake.rows("dead"), key=lambda row: str(row["position"]))
    assert [(row["raw"], row["reason"], row["position"], row["epoch"]) for row in letters] == [
        (values[1], "expectation 'positive' is not met: doubled >= 0", "scripted[1]", 0),
        (b"not JSON", letters[1]["reason"], "scripted[6]", 0),
    ]
    assert unmet(lake) == [("positive", 1)]
    assert failed(lake) == [(2, 2)]


def test_dead_letters_of_expectations_do_not_depend_on_on_error(lake: Lake) -> None:
    rules = [
        expectation("positive", "amount > 0", "dead_letter"),
        expectation("small", "amount < 100", "drop"),
    ]
    plan = with_dead_letters(lake, lake.plan(amounts(1, -1, 200, 2), expect=rules))
    lake.run(plan)

    assert sorted(row["id"] for row in lake.rows()) == [0, 3]
    assert [(row["raw"], row["position"]) for row in lake.rows("dead")] == [
        (b'{"id": 1, "amount": -1}', "scripted scripted, part 0, row 1")
    ]
    assert failed(lake) == [(2, 1)]
    assert unmet(lake) == [("positive", 1), ("small", 1)]


def test_row_of_several_records_is_kept_as_it_would_be_written(lake: Lake) -> None:
    rules = [expectation("few", "n < 3", "dead_letter")]
    plan = replace(
        with_dead_letters(lake, lake.plan(amounts(1, 1, 1, 2), expect=rules)),
        transforms=steps(("select", ["count(*) AS n"])),
    )
    lake.run(plan)

    assert lake.rows() == []
    assert [(row["raw"], row["position"]) for row in lake.rows("dead")] == [(b'{"n": 4}', None)]


def test_rows_exploded_from_one_record_become_separate_dead_letters(lake: Lake) -> None:
    rules = [expectation("few", "n < 3", "dead_letter")]
    plan = replace(
        with_dead_letters(lake, lake.plan(amounts(1), expect=rules)),
        transforms=steps(("select", ["id", "explode(sequence(1, 4)) AS n"])),
    )
    lake.run(plan)

    assert sorted(row["n"] for row in lake.rows()) == [1, 2]
    assert sorted((row["raw"], row["position"]) for row in lake.rows("dead")) == [
        (b'{"id": 0, "n": 3}', None),
        (b'{"id": 0, "n": 4}', None),
    ]


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (
            "nothing > 1",
            "expectation 'odd' does not fit the rows: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A "
            "column, variable, or function parameter with name `nothing` cannot be resolved. Did "
            "you mean one of the following? [`id`, `amount`]. SQLSTATE: 42703\n"
            "  Their columns, after the transforms: id, amount.",
        ),
        (
            "amount >",
            "expectation 'odd' does not fit the rows: [PARSE_SYNTAX_ERROR] Syntax error at or "
            "near end of input. SQLSTATE: 42601 (line 1, pos 8)\n"
            "  Their columns, after the transforms: id, amount.",
        ),
        (
            "amount + 1",
            "expectation 'odd' has the type bigint, not boolean: amount + 1\n"
            "  Write a condition that is true or false, e.g. `amount > 0`.",
        ),
    ],
)
def test_expectation_that_does_not_match_the_columns_is_reported(
    lake: Lake, expr: str, message: str
) -> None:
    rules = [expectation("fine", "id >= 0", "drop"), expectation("odd", expr, "drop")]
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(lake.plan(amounts(1), expect=rules))

    assert str(caught.value) == f"pipeline 'events': {message}"


def test_expectation_that_spark_cannot_compute_needs_a_person(lake: Lake) -> None:
    rules = [expectation("ratio", "10 / amount > 1", "drop")]
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(amounts(1, 0), expect=rules))

    assert caught.value.what.startswith("an expectation can't be applied to a row: ")
    assert "DIVIDE_BY_ZERO" in caught.value.what
    assert lake.rows() == []


def test_replayed_batch_counts_and_keeps_each_dead_letter_once(lake: Lake) -> None:
    source = amounts(1, -1, 2, -2)
    rules = [expectation("positive", "amount > 0", "dead_letter")]
    plan = with_dead_letters(lake, lake.plan(source, expect=rules))
    with power_cut_before_rows():
        lake.run(plan)
    assert lake.rows() == []
    lake.run(plan)

    assert sorted(row["id"] for row in lake.rows()) == [0, 2]
    assert len(lake.rows("dead")) == 2
