"""Transforms on changes that were sent without large values that did not change."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.scripted_orders import mirror, rows, steps

from icestream.errors import AttentionError, BadRecordError
from icestream.metrics.events import RecordsFailed
from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

COLUMNS = {"id": pa.int64(), "state": pa.string(), "note": pa.string(), "extra": pa.string()}
OPEN = ("filter", "state = 'open'")


def docs(*given: dict[str, Any], **shape: Any) -> pa.RecordBatch:
    return change_block("shop.docs", COLUMNS, given, **shape)


def doc(number: int, state: str, note: str | None = "n", **values: Any) -> dict[str, Any]:
    return {"id": number, "state": state, "note": note, "extra": "x", **values}


def unsent(number: int, state: str, *names: str) -> dict[str, Any]:
    """Return an update that was sent without some columns."""
    values = doc(number, state, op="u", unsent=list(names))
    return {**values, **dict.fromkeys(names)}


def plan(
    lake: Lake, batches: Sequence[Sequence[pa.RecordBatch]], *given: tuple[str, Any], **options: Any
) -> PipelinePlan:
    return replace(mirror(lake, ScriptedChanges(*batches), **options), transforms=steps(*given))


def found(lake: Lake) -> list[dict[str, Any]]:
    return rows(lake, "shop.docs")


@pytest.mark.parametrize(
    ("given", "column", "value"),
    [
        (("drop", ["extra"]), "note", "large"),
        (("rename", {"note": "remark"}), "remark", "large"),
        (("cast", {"note": "string"}), "note", "large"),
        (("compute", {"note": "upper(note)"}), "note", "LARGE"),
        (("compute", {"digest": "sha2(note, 256)"}), "digest", sha256(b"large").hexdigest()),
        (("select", ["id", "state", "upper(note) AS loud"]), "loud", "LARGE"),
        (OPEN, "note", "large"),
    ],
)
def test_value_that_was_not_sent_is_kept(
    lake: Lake, given: tuple[str, Any], column: str, value: str
) -> None:
    batches = [
        [docs(doc(1, "open", "large"), is_snapshot=True, is_first=True)],
        [docs(unsent(1, "open", "note"))],
    ]

    lake.run(plan(lake, batches, given))

    assert [row[column] for row in found(lake)] == [value]


def test_column_computed_from_values_that_were_sent_is_updated(lake: Lake) -> None:
    batches = [[docs(doc(1, "open", "large"))], [docs(unsent(1, "closed", "note"))]]

    lake.run(plan(lake, batches, ("compute", {"loud": "upper(state)", "fixed": "1"})))

    assert [(row["note"], row["loud"]) for row in found(lake)] == [("large", "CLOSED")]


REASON = (
    "{} note, which the change was sent without, as it is large and did not change. Set REPLICA "
    "IDENTITY FULL on the table, so that changes have all columns"
)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            ("compute", {"both": "concat(state, note)"}),
            REASON.format("'both' is computed from"),
        ),
        (("filter", "length(note) > 3"), REASON.format("a filter uses")),
    ],
)
def test_row_that_needs_a_value_that_was_not_sent_is_bad(
    lake: Lake, given: tuple[str, Any], reason: str
) -> None:
    batches = [[docs(doc(1, "open", "large"))], [docs(unsent(1, "closed", "note"))]]

    with pytest.raises(BadRecordError) as caught:
        lake.run(plan(lake, batches, given))

    assert str(caught.value) == (
        f"pipeline 'events', batch 1: table 'shop.docs': the row with id = 1 can't be transformed: "
        f"{reason}\n  Nothing of the batch was written. Change the transforms, or set `on_error: "
        "dead_letter` with a `dead_letter` table, or `on_error: drop`, on the sink."
    )
    assert [row["state"] for row in found(lake)] == ["open"]


def test_such_a_row_can_be_dropped(lake: Lake) -> None:
    changes = docs(unsent(1, "closed", "note"), doc(2, "open", "other", op="u"))
    given = ("compute", {"both": "concat(state, note)"})

    lake.run(replace(plan(lake, [[docs(doc(1, "open"))], [changes]], given), on_error="drop"))

    assert [row["both"] for row in found(lake)] == ["openother"]
    failed = [one for one in lake.events if isinstance(one, RecordsFailed)]
    assert [(one.count, one.dead_letters) for one in failed] == [(1, 0)]


def test_row_outside_of_the_filter_may_lack_values_of_a_computed_column(lake: Lake) -> None:
    batches = [[docs(doc(1, "open", "large"))], [docs(unsent(1, "closed", "note"))]]

    lake.run(plan(lake, batches, OPEN, ("compute", {"both": "concat(extra, note)"})))

    assert found(lake) == []


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(
            [[docs(doc(1, "closed", "large"))], [docs(unsent(1, "open", "note"))]],
            id="never-in-the-table",
        ),
        pytest.param(
            [
                [docs(doc(1, "open", "large"))],
                [docs(unsent(1, "closed", "note"), unsent(1, "open", "note"))],
            ],
            id="deleted-in-the-same-batch",
        ),
    ],
)
def test_row_does_not_enter_the_filter_with_a_null_for_an_unknown_value(
    lake: Lake, batches: list[list[pa.RecordBatch]]
) -> None:
    with pytest.raises(AttentionError) as caught:
        lake.run(plan(lake, batches, OPEN))

    assert str(caught.value) == (
        f"pipeline 'events', batch 1, table {lake.name}.shop.docs: a row that is not in the table "
        "was sent without column 'note', a large value that did not change, so it can't be added\n"
        "  It was left out by a `filter` or an expectation until now. Set REPLICA IDENTITY FULL on "
        "the source table, so that changes have all columns, and read the tables again: "
        "`icestream run --start-over`."
    )


def test_row_enters_the_filter_with_the_values_of_an_earlier_change_of_the_batch(
    lake: Lake,
) -> None:
    changes = docs(doc(1, "open", "new", op="u"), unsent(1, "open", "note"))

    lake.run(plan(lake, [[docs(doc(1, "closed"))], [changes]], OPEN))

    assert [row["note"] for row in found(lake)] == ["new"]


def test_history_has_a_delete_for_a_row_that_leaves_the_filter(lake: Lake) -> None:
    batches = [
        [docs(doc(1, "open"), doc(2, "closed"), is_snapshot=True, is_first=True)],
        [docs(doc(1, "closed", op="u"), doc(3, "closed"), doc(4, "open"))],
    ]

    lake.run(plan(lake, batches, OPEN, commit_mode="append"))

    assert [(row["id"], row["state"], row["_op"]) for row in found(lake)] == [
        (1, "open", "r"),
        (1, None, "d"),
        (4, "open", "i"),
    ]
