"""Rows of a mirror that a filter, an expectation or `on_error` leaves out never leave a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.scripted_events import ScriptedEvents
from tests.fixtures.scripted_orders import mirror, rows, steps
from tests.spark.test_debezium_transforms import event, typed
from tests.spark.test_mirror_unchanged_columns import OPEN, doc, docs, found, plan, unsent

from icestream.errors import AttentionError
from icestream.testing.scripted import change_block

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

UNKNOWN_VALUE = "was sent without column 'note', a large value that did not change"
NOT_BAD = {"name": "good", "expr": "state <> 'bad'", "on_fail": "drop"}


def events(lake: Lake, *batches: list[Any], **options: Any) -> PipelinePlan:
    return replace(mirror(lake, ScriptedEvents(*batches), **options), transforms=steps(OPEN))


def test_old_version_of_a_row_that_fails_an_expectation_gives_no_values(lake: Lake) -> None:
    batches = [
        [docs(doc(1, "open", "A"), doc(2, "open"))],
        [docs(doc(1, "bad", "B", op="u"))],
        [docs(unsent(1, "fine", "note"))],
    ]
    lake.run(plan(lake, batches[:2], expect=[NOT_BAD]))
    assert [row["id"] for row in found(lake)] == [2]

    with pytest.raises(AttentionError, match=UNKNOWN_VALUE):
        lake.run(plan(lake, batches, expect=[NOT_BAD]))


def test_row_that_was_dropped_as_bad_does_not_come_back_with_a_null(lake: Lake) -> None:
    batches = [[docs(doc(1, "bad", "A"))], [docs(unsent(1, "7", "note"))]]
    with pytest.raises(AttentionError, match=UNKNOWN_VALUE):
        lake.run(replace(plan(lake, batches, ("cast", {"state": "int"})), on_error="drop"))


def test_table_remembers_that_it_was_filtered_after_the_filter_is_removed(lake: Lake) -> None:
    batches = [[docs(doc(1, "closed", "A"), doc(2, "open"))], [docs(unsent(1, "open", "note"))]]
    lake.run(plan(lake, batches[:1], OPEN))

    with pytest.raises(AttentionError, match=UNKNOWN_VALUE):
        lake.run(plan(lake, batches))


def test_table_that_is_loaded_again_without_the_filter_has_all_rows(lake: Lake) -> None:
    first = docs(doc(1, "closed", "A"), is_snapshot=True, is_first=True)
    lake.run(plan(lake, [[first]], OPEN))
    assert found(lake) == []

    lake.run(plan(lake, [[first], [first], [docs(unsent(1, "open", "note"))]]))
    assert [(row["state"], row["note"]) for row in found(lake)] == [("open", "A")]


def test_insert_that_is_left_out_deletes_the_row_with_its_key(lake: Lake) -> None:
    # A compacted topic may lack the delete between two inserts.
    lake.run(events(lake, typed([event("c", 1)]), typed([event("c", 1, "closed")])))
    assert rows(lake, "public.orders") == []


def test_history_has_nothing_of_a_snapshot_row_that_is_left_out(lake: Lake) -> None:
    lake.run(events(lake, typed([event("r", 1), event("r", 2, "closed")]), commit_mode="append"))
    assert [row["id"] for row in rows(lake, "public.orders")] == [1]


def test_rename_leaves_no_row_out(lake: Lake) -> None:
    lake.run(plan(lake, [[docs(unsent(1, "open", "note"))]], ("rename", {"extra": "more"})))
    assert [(row["id"], row["note"]) for row in found(lake)] == [(1, None)]


def test_column_computed_from_the_key_and_a_value_that_was_not_sent_is_kept(lake: Lake) -> None:
    batches = [[docs(doc(1, "open", "large"))], [docs(unsent(1, "closed", "note"))]]
    lake.run(plan(lake, batches, ("compute", {"name": "concat(id, note)"})))
    assert [(row["state"], row["name"]) for row in found(lake)] == [("closed", "1large")]


@pytest.mark.parametrize("mode", ["soft", "ignore"])
def test_deleted_rows_are_not_kept_where_rows_are_left_out(lake: Lake, mode: str) -> None:
    with pytest.raises(AttentionError) as caught:
        lake.run(plan(lake, [[docs(doc(1, "open"))]], OPEN, delete_mode=mode))
    assert str(caught.value) == (
        f"table {lake.name}.shop.docs: delete_mode {mode!r} can't be used: a `filter`, an "
        "expectation or `on_error` has left out rows of the source\n"
        "  Use `delete_mode: hard`, or read the tables again without these: `icestream run "
        "--start-over`."
    )


def test_source_column_called_op_is_kept_in_a_dead_letter(lake: Lake) -> None:
    block = change_block("shop.docs", {"id": pa.int64(), "op": pa.string()}, [])
    row = pa.RecordBatch.from_pylist([{"id": 1, "op": "mine", "__op": "i"}], schema=block.schema)
    above = {"name": "x", "expr": "id > 1", "on_fail": "dead_letter"}
    lake.run(replace(plan(lake, [[row]], expect=[above]), dead_letter=lake.sink("dead")))
    assert [one["raw"] for one in lake.rows("dead")] == [b'{"id": 1, "op": "mine", "_op": "i"}']
