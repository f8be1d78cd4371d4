"""Checkpoint and table agree, or the pipeline stops until a person decides."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from icestream.contracts.offset import BatchMark
from icestream.contracts.sink import LostRows
from icestream.engine.recovery.reconcile import (
    Choice,
    LastCommit,
    StartDecision,
    find_renamed_pipeline,
    lost_rows_error,
    reconcile,
    renamed_pipeline_error,
)
from icestream.engine.state import Checkpoint
from icestream.errors import CheckpointLostError

NO_CHECKPOINT = Checkpoint(Path("nowhere"), None, -1, -1)
RESUME = (
    'To resume after the last committed row, at {"row": 40}: '
    "icestream run --pipeline orders --resume"
)
START_OVER = (
    "To read the source from the beginning, keeping the rows in the table: "
    "icestream run --pipeline orders --start-over"
)


def mark(epoch: int = 3, *, query: str = "q1", pipeline: str = "orders") -> BatchMark:
    return BatchMark(pipeline, query, epoch, "kafka orders", {"row": 30}, {"row": 40}, 10, "i1")


def checkpoint(planned: int = 3, done: int = 3, *, query: str = "q1") -> Checkpoint:
    return Checkpoint(Path("checkpoints/orders"), query, planned, done)


def begin(
    found: Checkpoint,
    held: BatchMark | None,
    *,
    accepted: str | None = None,
    committed: LastCommit | None = None,
    choice: Choice = "ask",
) -> StartDecision:
    return reconcile(
        pipeline="orders",
        table="lake.db.orders",
        checkpoint=found,
        mark=held,
        accepted=accepted,
        committed=committed,
        choice=choice,
    )


def test_first_start_uses_the_initial_offset() -> None:
    assert begin(NO_CHECKPOINT, None) == StartDecision(ignores_checkpoint=True, offset=None)


@pytest.mark.parametrize(
    ("planned", "done", "epoch"), [(3, 3, 3), (3, 2, 3), (3, 2, 2), (9, 9, 3), (3, 3, 0)]
)
def test_mark_that_matches_the_checkpoint_lets_the_pipeline_continue(
    planned: int, done: int, epoch: int
) -> None:
    assert begin(checkpoint(planned, done), mark(epoch)) == StartDecision(ignores_checkpoint=False)


def test_checkpoint_without_any_commit_continues() -> None:
    assert begin(checkpoint(), None, committed=None) == StartDecision(ignores_checkpoint=False)


@pytest.mark.parametrize(
    ("found", "held", "what"),
    [
        (
            NO_CHECKPOINT,
            mark(),
            "the table holds this pipeline's rows up to batch 3, but there is no checkpoint",
        ),
        (
            checkpoint(query="q2"),
            mark(),
            "the table holds this pipeline's rows up to batch 3 of query q1, but the checkpoint "
            "belongs to query q2",
        ),
        (
            checkpoint(planned=2, done=2),
            mark(),
            "the table holds this pipeline's rows up to batch 3, but the checkpoint, an older "
            "copy, ends at batch 2",
        ),
    ],
)
def test_mark_without_a_matching_checkpoint_stops_with_two_remedies(
    found: Checkpoint, held: BatchMark, what: str
) -> None:
    with pytest.raises(CheckpointLostError) as caught:
        begin(found, held, committed=LastCommit("lake.db.orders", "q1", 3))

    assert str(caught.value) == (
        f"pipeline 'orders', table lake.db.orders: {what}\n  {RESUME}\n  {START_OVER}"
    )
    assert caught.value.exit_code == 5
    assert begin(found, held, choice="resume") == StartDecision(
        ignores_checkpoint=True, offset={"row": 40}
    )
    assert begin(found, held, choice="start-over") == StartDecision(
        ignores_checkpoint=True, offset=None
    )


@pytest.mark.parametrize(
    ("committed_to", "what"),
    [
        (
            "lake.db.orders",
            "the pipeline has committed rows, but the table has no mark of it: it was dropped or "
            "recreated, or the mark was removed",
        ),
        (
            "lake.old.orders",
            "the pipeline has committed rows to lake.old.orders, but the file says "
            "lake.db.orders, which has none of them",
        ),
    ],
)
def test_table_without_a_mark_can_only_be_started_over(committed_to: str, what: str) -> None:
    committed = LastCommit(committed_to, "q1", 3)
    choices: tuple[Choice, ...] = ("ask", "resume", "reload")
    for choice in choices:
        with pytest.raises(CheckpointLostError) as caught:
            begin(checkpoint(), None, committed=committed, choice=choice)
        assert str(caught.value) == (
            f"pipeline 'orders', table lake.db.orders: {what}\n  {START_OVER}"
        )
    assert begin(NO_CHECKPOINT, None, committed=committed) == StartDecision(ignores_checkpoint=True)


def test_older_copy_of_the_table_is_reported_and_filled_from_its_mark() -> None:
    committed = LastCommit("lake.db.orders", "q1", 5)
    with pytest.raises(CheckpointLostError) as caught:
        begin(checkpoint(planned=6, done=5), mark(3), committed=committed)

    assert str(caught.value) == (
        "pipeline 'orders', table lake.db.orders: the table holds this pipeline's rows up to batch "
        f"3, but batch 5 was committed to it: it is an older copy\n  {RESUME}\n  {START_OVER}"
    )
    resumed = begin(checkpoint(6, 5), mark(3), committed=committed, choice="resume")
    assert resumed == StartDecision(ignores_checkpoint=True, offset={"row": 40})
    for other in (replace(committed, query_id="q0"), replace(committed, epoch=3)):
        assert begin(checkpoint(6, 5), mark(3), committed=other) == StartDecision(
            ignores_checkpoint=False
        )


def test_every_table_that_lost_rows_is_reported_with_the_remedies() -> None:
    lost = [
        LostRows(f"lake.db.t{n}", "the table was dropped", source_table=("db", f"t{n}"))
        for n in range(8)
    ]
    error = lost_rows_error("orders", lost)

    assert str(error).splitlines() == [
        "pipeline 'orders', table lake.db.t0: the table was dropped",
        *(f"  table lake.db.t{n}: the table was dropped" for n in range(1, 6)),
        "  and 2 more tables",
        "  To load these 8 tables again from the source: icestream run --pipeline orders --reload",
        "  To continue without the rows: icestream run --pipeline orders --resume",
        "  To read the source from the beginning: icestream run --pipeline orders --start-over",
    ]


def test_remedy_of_one_table_says_how_many_others_have_one() -> None:
    restored = LostRows("a", "x", "Restore it.")
    assert str(lost_rows_error("orders", [restored])).splitlines()[1:3] == [
        "  Restore it.",
        "  To continue without the rows: icestream run --pipeline orders --resume",
    ]
    lost = [LostRows("gone", "x"), restored, LostRows("b", "x", "Restore b.")]
    assert str(lost_rows_error("orders", lost)).splitlines()[3:5] == [
        "  2 tables can be repaired; shown for a:",
        "  Restore it.",
    ]


def test_mark_that_was_started_over_is_not_reported_again() -> None:
    held = mark()

    assert begin(checkpoint(query="q2"), held, accepted=held.to_json()) == StartDecision(
        ignores_checkpoint=False
    )
    assert begin(NO_CHECKPOINT, held, accepted=held.to_json()) == StartDecision(
        ignores_checkpoint=True
    )
    with pytest.raises(CheckpointLostError, match="of query q1"):
        begin(checkpoint(query="q2"), mark(4), accepted=held.to_json())


def test_resume_has_no_effect_if_nothing_is_wrong() -> None:
    assert begin(checkpoint(), mark(), choice="resume") == StartDecision(ignores_checkpoint=False)


def test_long_offset_is_truncated_in_the_message() -> None:
    long = BatchMark("orders", "q1", 3, "kafka", {}, {f"topic-{n}": n for n in range(500)})
    with pytest.raises(CheckpointLostError) as caught:
        begin(NO_CHECKPOINT, long)

    line = str(caught.value).splitlines()[1]
    assert len(line) < 400
    assert re.search(r"\.\.\. \(sha256 \w{12}\): icestream run --pipeline orders --resume$", line)


def test_pipeline_missing_from_the_file_with_the_same_source_was_renamed() -> None:
    old = mark(pipeline="old")

    assert find_renamed_pipeline(source="kafka orders", others=[old], pipelines=["orders"]) == old
    assert find_renamed_pipeline(source="kafka other", others=[old], pipelines=["orders"]) is None
    assert (
        find_renamed_pipeline(source="kafka orders", others=[old], pipelines=["orders", "old"])
        is None
    )
    assert str(renamed_pipeline_error("orders", "lake.db.orders", old)) == (
        "pipeline 'orders', table lake.db.orders: the table holds rows of the same source up to "
        "batch 3, written by pipeline 'old', which is no longer in the file\n"
        f"  {RESUME}\n  {START_OVER}"
    )
