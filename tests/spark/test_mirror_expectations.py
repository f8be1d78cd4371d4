"""Expectations on a change source: on rows after the transforms, and never on deletes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.scripted_orders import (
    TableRules,
    mirror,
    of_orders,
    order,
    rows,
    snapshot,
    steps,
)

from icestream.contracts.sink import RowExpectation
from icestream.errors import BadRecordError, SchemaMismatchError, UnmetExpectationError
from icestream.metrics.events import ExpectationUnmet, RecordsFailed
from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan


def changes() -> ScriptedChanges:
    return ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"), order(3, "long"))],
        [of_orders(order(1, "long", op="u"), order(2, op="d"), order(4, "c"))],
    )


def expecting(lake: Lake, on_fail: str, *, expr: str = "length(note) < 3") -> PipelinePlan:
    one = {"name": "short", "expr": expr, "on_fail": on_fail}
    plan = mirror(lake, changes(), expect=[one])
    if on_fail != "dead_letter":
        return plan
    return replace(plan, dead_letter=lake.sink("dead"))


def test_row_that_fails_is_left_out_with_its_old_version(lake: Lake) -> None:
    lake.run(expecting(lake, "drop"))

    assert rows(lake) == [order(4, "c")]
    unmet = [one for one in lake.events if isinstance(one, ExpectationUnmet)]
    assert [(one.expectation, one.count) for one in unmet] == [("short", 1), ("short", 1)]
    failed = [one for one in lake.events if isinstance(one, RecordsFailed)]
    assert [(one.count, one.dead_letters) for one in failed] == [(1, 0), (1, 0)]


def test_dead_letter_has_the_row_after_the_transforms(lake: Lake) -> None:
    plan = expecting(lake, "dead_letter")

    lake.run(replace(plan, transforms=steps(("compute", {"secret": "'x'"}), ("drop", ["secret"]))))

    letters = sorted(lake.rows("dead"), key=lambda row: str(row["raw"]))
    assert [json.loads(row["raw"]) for row in letters] == [
        {"id": 1, "note": "long", "op": "u"},
        {"id": 3, "note": "long", "op": None},
    ]
    assert [row["position"] for row in letters] == [
        "scripted changes, part 0, row 0",
        "scripted changes, part 0, row 2",
    ]
    assert {row["reason"] for row in letters} == {
        "table shop.orders: expectation 'short' is not met: length(note) < 3"
    }


def test_pipeline_stops_at_a_row_that_fails(lake: Lake) -> None:
    with pytest.raises(UnmetExpectationError) as caught:
        lake.run(expecting(lake, "fail"))

    assert str(caught.value) == (
        "pipeline 'events', batch 0: expectation 'short' is not met by 1 row: length(note) < 3, "
        'found {"id": 3, "note": "long", "op": null}\n  Nothing of the batch was written. Fix the '
        "rows at their source, or set `on_fail: dead_letter` or `on_fail: drop` for it on sink "
        "'lake'."
    )


def test_table_has_expectations_of_its_own(lake: Lake) -> None:
    tags = change_block("shop.tags", {"id": pa.int64()}, [{"id": 1}])
    source = ScriptedChanges([of_orders(order(1, "a"), order(2, "long")), tags])
    rules = TableRules(
        "shop.orders", expectations=(RowExpectation("short", "length(note) < 3", "drop"),)
    )

    lake.run(replace(mirror(lake, source), tables=(rules,)))

    assert rows(lake) == [order(1, "a")]
    assert rows(lake, "shop.tags") == [{"id": 1}]


def test_expectation_of_the_sink_needs_its_columns_in_every_table(lake: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(expecting(lake, "drop", expr="nowhere > 0"))

    assert str(caught.value) == (
        "pipeline 'events', table 'shop.orders': expectation 'short' does not fit the rows: "
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name "
        "`nowhere` cannot be resolved. Did you mean one of the following? [`note`, `id`]. "
        "SQLSTATE: 42703\n  Their columns, after the transforms: id, note. Expectations of the "
        "sink apply to every table. Give those of one table under `tables`."
    )


def test_condition_on_a_value_that_was_not_sent_is_skipped(lake: Lake) -> None:
    later = of_orders({"id": 1, "op": "u", "unsent": ["note"]})
    source = ScriptedChanges([of_orders(order(1, "a"))], [later])
    one = {"name": "given", "expr": "note IS NOT NULL", "on_fail": "fail"}

    lake.run(mirror(lake, source, expect=[one]))

    assert rows(lake) == [order(1, "a")]


def cast_notes(lake: Lake, on_error: str) -> PipelinePlan:
    source = ScriptedChanges([of_orders(order(1, "7"), order(2, "b"), order(3, op="d"))])
    plan = replace(mirror(lake, source), transforms=steps(("cast", {"note": "int"})))
    letters = lake.sink("dead") if on_error == "dead_letter" else None
    return replace(plan, on_error=on_error, dead_letter=letters)


def test_value_that_cannot_be_cast_becomes_a_dead_letter(lake: Lake) -> None:
    lake.run(cast_notes(lake, "dead_letter"))

    assert rows(lake) == [{"id": 1, "note": 7}]
    assert [(json.loads(one["raw"]), one["reason"]) for one in lake.rows("dead")] == [
        (
            {"id": 2, "note": None, "op": "i"},
            "table shop.orders: column 'note': 'b' is not an int",
        )
    ]


def test_value_that_cannot_be_cast_stops_the_pipeline(lake: Lake) -> None:
    with pytest.raises(BadRecordError) as caught:
        lake.run(cast_notes(lake, "fail"))

    assert str(caught.value) == (
        "pipeline 'events', batch 0: table 'shop.orders': the row with id = 2 can't be "
        "transformed: column 'note': 'b' is not an int\n  Nothing of the batch was written. Change "
        "the transforms, or set `on_error: dead_letter` with a `dead_letter` table, or `on_error: "
        "drop`, on the sink."
    )


@pytest.mark.parametrize("step", ["filter", "compute"])
def test_expression_that_fails_for_a_value_stops_the_pipeline(lake: Lake, step: str) -> None:
    source = ScriptedChanges([of_orders(order(1, "b"))])
    value: Any = "1 / (id - 1) > 0" if step == "filter" else {"note": "1 / (id - 1)"}

    with pytest.raises(BadRecordError) as caught:
        lake.run(replace(mirror(lake, source), transforms=steps((step, value))))

    assert str(caught.value).startswith(
        "pipeline 'events', batch 0: a transform or an expectation can't be applied to a row: "
        "[DIVIDE_BY_ZERO]"
    )


def test_row_that_is_left_out_does_not_reach_later_expressions(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1, "b"), order(2, "c"), order(1, op="d"))])
    given = steps(("filter", "id > 1"), ("compute", {"share": "1 / (id - 1)"}))

    lake.run(replace(mirror(lake, source), transforms=given))

    assert rows(lake) == [{"id": 2, "note": "c", "share": 1.0}]
