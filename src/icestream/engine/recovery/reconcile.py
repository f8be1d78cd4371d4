"""Compares a pipeline's checkpoint with the marks in its table, before anything is read.

The checkpoint says where to go on, the mark says what the table holds. As long as both tell one
story the pipeline goes on. When they don't, rows would be lost or doubled, so a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from icestream.contracts.offset import short_text
from icestream.errors import CheckpointLostError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import LostRows
    from icestream.engine.recovery.checkpoint import Checkpoint


_DROPPED = (
    "the pipeline has committed rows, and the table has no mark of it: it was dropped or "
    "recreated, or the mark was removed"
)
# Of many tables that lost rows, the error names these.
_NAMED = 5

Choice = Literal["ask", "resume", "start-over", "reload"]


@dataclass(frozen=True)
class LastCommit:
    """The newest batch that a pipeline remembers to have committed, and the table."""

    table: str
    query_id: str
    epoch: int


@dataclass(frozen=True)
class StartDecision:
    """How a pipeline begins.

    Attributes:
        anew: the checkpoint, if there is one, is set aside.
        position: where to begin then; None for where the source begins.
    """

    ignores_checkpoint: bool
    offset: Offset | None = None


def reconcile(
    *,
    pipeline: str,
    table: str,
    checkpoint: Checkpoint,
    mark: BatchMark | None,
    accepted: str | None,
    committed: LastCommit | None,
    choice: Choice,
) -> StartDecision:
    """Decide how a pipeline begins, or raise with the ways that a person can choose from.

    Args:
        pipeline: the pipeline's name.
        table: the table's name, for messages.
        checkpoint: what Spark remembers.
        mark: the newest mark of the pipeline in the table.
        accepted: the mark that a person chose to begin anew over, if one ever did.
        committed: the newest batch that the pipeline remembers to have committed, if any.
        choice: what the person chose this time.
    """
    if choice == "start-over":
        return StartDecision(ignores_checkpoint=True)
    problem = _find_conflict(checkpoint, mark, accepted)
    if problem is None and checkpoint.exists and committed is not None:
        problem = find_missing_batch(committed, mark, table)
    if problem is None:
        return StartDecision(ignores_checkpoint=not checkpoint.exists)
    if choice == "resume" and mark is not None:
        return StartDecision(ignores_checkpoint=True, offset=mark.end)
    raise CheckpointLostError(
        problem,
        where=f"pipeline {pipeline!r}, table {table}",
        todo=_remedies(pipeline, mark),
    )


def find_renamed_pipeline(
    *, source: str, others: Collection[BatchMark], known: Collection[str]
) -> BatchMark | None:
    """Return the mark of a pipeline that read the same source and is no longer in the file."""
    for mark in others:
        if mark.source == source and mark.pipeline not in known:
            return mark
    return None


def renamed_pipeline_error(pipeline: str, table: str, old: BatchMark) -> CheckpointLostError:
    """Return the error for a pipeline that seems to be another one, renamed."""
    return CheckpointLostError(
        f"the table holds rows of the same source by pipeline {old.pipeline!r}, which the file "
        f"no longer has, up to batch {old.epoch}",
        where=f"pipeline {pipeline!r}, table {table}",
        todo=_remedies(pipeline, old),
    )


def _find_conflict(
    checkpoint: Checkpoint, mark: BatchMark | None, accepted: str | None
) -> str | None:
    if mark is None or mark.to_json() == accepted:
        return None
    held = f"the table holds this pipeline's rows up to batch {mark.epoch}"
    if not checkpoint.exists:
        return f"{held}, but there is no checkpoint"
    if checkpoint.query_id != mark.query_id:
        return f"{held} of query {mark.query_id}, but the checkpoint is of {checkpoint.query_id}"
    if mark.epoch > checkpoint.planned:
        return f"{held}, but the checkpoint, an older copy, ends at batch {checkpoint.planned}"
    return None


def find_missing_batch(committed: LastCommit, mark: BatchMark | None, table: str) -> str | None:
    """Return why the table lacks the mark of a batch that was committed; None if it has it."""
    if mark is None and committed.table == table:
        return _DROPPED
    if mark is None:
        return (
            f"the pipeline has committed rows to {committed.table}, and the file says {table}, "
            "which has none of them"
        )
    if mark.query_id == committed.query_id and mark.epoch < committed.epoch:
        return (
            f"the table holds this pipeline's rows up to batch {mark.epoch}, and batch "
            f"{committed.epoch} was committed to it: it is an older copy"
        )
    return None


def lost_rows_error(pipeline: str, lost: Sequence[LostRows]) -> CheckpointLostError:
    """Return the error for tables that no longer hold the rows that were committed to them."""
    first, *others = {one.problem + one.table: one for one in lost}.values()
    ways = [f"table {one.table}: {one.problem}" for one in others[:_NAMED]]
    if len(others) > _NAMED:
        ways.append(f"and {len(others) - _NAMED} more tables")
    remedied = [one for one in (first, *others) if one.remedy]
    if len(remedied) > 1:
        ways.append(f"{len(remedied)} tables can be repaired; shown for {remedied[0].table}:")
    ways += [one.remedy for one in remedied[:1]]
    command = f"icestream run --pipeline {pipeline}"
    if all(one.source_table is not None for one in lost):
        what = "the table" if len(lost) == 1 else f"these {len(lost)} tables"
        ways.append(f"To load {what} again from the source: {command} --reload")
    ways.append(f"To continue without the rows: {command} --resume")
    ways.append(f"To read the source from its beginning again: {command} --start-over")
    return CheckpointLostError(
        first.problem,
        where=f"pipeline {pipeline!r}, table {first.table}",
        todo="\n".join(ways),
    )


def _remedies(pipeline: str, mark: BatchMark | None) -> str:
    ways = []
    if mark is not None:
        ways.append(
            f"To go on after the last row that the table holds, at {short_text(mark.end)}: "
            f"icestream run --pipeline {pipeline} --resume"
        )
    ways.append(
        "To read the source from its beginning again, next to what the table holds: "
        f"icestream run --pipeline {pipeline} --start-over"
    )
    return "\n".join(ways)
