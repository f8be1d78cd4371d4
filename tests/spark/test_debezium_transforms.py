"""Transforms on Debezium events, with and without schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.scripted_events import ScriptedEvents
from tests.fixtures.scripted_orders import mirror, rows, steps
from tests.unit.formats.debezium_events import envelope, member, with_schema

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

MEMBERS = (member("id", "int64"), member("state", "string"), member("note", "string"))
PLACEHOLDER = "__debezium_unavailable_value"


def event(op: str, number: int, state: str = "open", note: str | None = "n") -> Any:
    row = {"id": number, "state": state, "note": note}
    images = {"before": {"id": number}} if op == "d" else {"after": row}
    return {"id": number}, envelope(op, **images)


def typed(events: list[Any]) -> Any:
    """Return events with a schema."""
    return [
        (key, value if value is None else with_schema(value, *MEMBERS)) for key, value in events
    ]


@pytest.fixture(params=["schemas", "no schemas"])
def source(request: pytest.FixtureRequest) -> ScriptedEvents:
    def batch(*events: Any) -> Any:
        return typed(list(events)) if request.param == "schemas" else list(events)

    return ScriptedEvents(
        batch(event("r", 1), event("r", 2, "closed"), event("c", 3, note=None)),
        batch(event("u", 1, "closed"), event("u", 2, "open"), event("c", 4), event("c", 5)),
        batch(event("d", 4), ({"id": 4}, None)),
        batch(({"id": 5}, None), event("u", 3, "open", "late")),
    )


def test_events_are_filtered_masked_and_renamed(lake: Lake, source: ScriptedEvents) -> None:
    given = steps(
        ("filter", "state = 'open'"),
        ("compute", {"note": "upper(note)"}),
        ("rename", {"id": "number"}),
        ("drop", ["state"]),
    )

    lake.run(replace(mirror(lake, source), transforms=given))

    assert rows(lake, "public.orders") == [
        {"number": 2, "note": "N"},
        {"number": 3, "note": "LATE"},
    ]


def test_dead_letter_of_an_event_has_its_offset_and_the_masked_row(lake: Lake) -> None:
    source = ScriptedEvents(typed([event("c", 1), event("c", 2, "closed")]))
    one = {"name": "open", "expr": "state = 'open'", "on_fail": "dead_letter"}
    plan = mirror(lake, source, expect=[one])
    given = steps(("compute", {"note": "'masked'"}))

    lake.run(replace(plan, transforms=given, dead_letter=lake.sink("dead")))

    assert [row["id"] for row in rows(lake, "public.orders")] == [1]
    (letter,) = lake.rows("dead")
    assert letter["position"] == "shop.public.orders[0]@1"
    assert json.loads(letter["raw"]) == {
        "id": 2,
        "state": "closed",
        "note": "masked",
        "op": "c",
    }


def test_unchanged_large_value_keeps_what_was_computed_from_it(lake: Lake) -> None:
    source = ScriptedEvents(
        typed([event("c", 1, note="large")]), typed([event("u", 1, "closed", PLACEHOLDER)])
    )

    lake.run(replace(mirror(lake, source), transforms=steps(("compute", {"note": "upper(note)"}))))

    assert rows(lake, "public.orders") == [{"id": 1, "state": "closed", "note": "LARGE"}]
