"""Debezium's tombstones, wherever batches are cut between them and their deletes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.mirrored_tables import MirroredTable
from tests.unit.formats.debezium_events import decode, envelope

from icestream.contracts.changes import OP, TOMBSTONE, change_schema_of
from icestream.formats.debezium.json import DebeziumJsonDecoder

TOPICS = ["shop.public.orders", "rerouted"]
Event = tuple[dict[str, Any], dict[str, Any] | None]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Draw changes of two tables with the same keys; a delete is followed by its tombstone."""
    events: list[Event] = []
    for _ in range(draw(st.integers(1, 12))):
        number, table = draw(st.integers(1, 3)), draw(st.sampled_from(["orders", "people"]))
        row, key = {"id": number, "note": draw(st.sampled_from("abc"))}, {"id": number}
        if draw(st.booleans()):
            events.append((key, envelope(draw(st.sampled_from("cu")), after=row, table=table)))
        else:
            events += [(key, envelope("d", before=row, table=table)), (key, None)]
    return events


def applied(
    batches: list[list[Event]], topic: str
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return what upserted tables hold, and what is appended, if each batch has a new decoder."""
    tables: dict[str, MirroredTable] = {}
    appended: dict[str, list[Any]] = {}
    for events in batches:
        changes = decode(DebeziumJsonDecoder(), events, topic)
        assert changes.bad == []
        for block in changes.blocks:
            shape = change_schema_of(block.schema)
            name, rows = ".".join(shape.table), block.to_pylist()
            operations = [(row["id"], row[OP]) for row in rows if row[OP] != TOMBSTONE]
            if name in tables or not shape.is_tombstones:  # as the sink does
                appended.setdefault(name, []).extend(operations)
                tables.setdefault(name, MirroredTable()).apply(shape, rows)
    keys = {name: sorted(table.keyed) for name, table in tables.items()}
    return keys, appended


@given(events=histories(), is_shared=st.booleans())
def test_tombstones_change_nothing_wherever_batches_are_cut(
    events: list[Event], *, is_shared: bool
) -> None:
    topic = TOPICS[is_shared]
    if not is_shared:  # a topic that is named after its table carries only that table
        events = [
            (key, value and {**value, "source": {**value["source"], "table": "orders"}})
            for key, value in events
        ]
    plain = [event for event in events if event[1] is not None]
    expected = applied([plain], topic)
    assert applied([events], topic) == expected
    for cut in range(1, len(events)):
        assert applied([events[:cut], events[cut:]], topic) == expected
