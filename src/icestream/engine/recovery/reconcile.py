"""Compares a pipeline's checkpoint with the marks in its table, before anything is read.

The checkpoint says where to resume, the mark says what the table holds. While they agree, the
pipeline resumes. If they disagree, rows would be lost or duplicated, so the user has to decide.
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
    from icestream.engine.state import Checkpoint


_DROPPED = (
    "the pipeline has committed rows, but the table has no mark of it: it was dropped or "
    "recreated, or the mark was removed"
)
# How many of the tables that lost rows the error names, besides the first.
_NAMED = 5

Choice = Literal["ask", "resume", "start-over", "reload"]


@dataclass(frozen=True)
class LastCommit:
    """The last batch that a pipeline recorded as committed, and its table."""

    table: str
    query_id: str
    epoch: int


@dataclass(frozen=True)
class StartDecision:
    """How a pipeline starts.

    Attributes:
        ignores_checkpoint: whether to ignore the checkpoint, if there is one.
        offset: where to start in that case; None for the source's initial offset.
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
    """Decide how a pipeline starts, or raise an error that lists the user's options.

    Args:
        pipeline: the pipeline's name.
        table: the table's name, for messages.
        checkpoint: Spark's checkpoint.
        mark: the pipeline's newest mark in the table.
        accepted: the mark that the table held when the pipeline last started without its
            checkpoint, if it ever did.
        committed: the last batch that the pipeline recorded as committed, if any.
        choice: what the user chose for this run.
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
    *, source: str, others: Collection[BatchMark], pipelines: Collection[str]
) -> BatchMark | None:
    """Return the mark of a pipeline that read the same source and is no longer in the file."""
    for mark in others:
        if mark.source == source and mark.pipeline not in pipelines:
            return mark
    return None


def renamed_pipeline_error(pipeline: str, table: str, old: BatchMark) -> CheckpointLostError:
    """Return the error for a pipeline that seems to be another one, renamed."""
    return CheckpointLostError(
        f"the table holds rows of the same source up to batch {old.epoch}, written by pipeline "
        f"{old.pipeline!r}, which is no longer in the file",
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
        return (
            f"{held} of query {mark.query_id}, but the checkpoint belongs to query "
            f"{checkpoint.query_id}"
        )
    if mark.epoch > checkpoint.planned:
        return f"{held}, but the checkpoint, an older copy, ends at batch {checkpoint.planned}"
    return None


def find_missing_batch(committed: LastCommit, mark: BatchMark | None, table: str) -> str | None:
    """Return why the table lacks the mark of a committed batch; None if the mark is there."""
    if mark is None and committed.table == table:
        return _DROPPED
    if mark is None:
        return (
            f"the pipeline has committed rows to {committed.table}, but the file says {table}, "
            "which has none of them"
        )
    if mark.query_id == committed.query_id and mark.epoch < committed.epoch:
        return (
            f"the table holds this pipeline's rows up to batch {mark.epoch}, but batch "
            f"{committed.epoch} was committed to it: it is an older copy"
        )
    return None


def lost_rows_error(pipeline: str, lost: Sequence[LostRows]) -> CheckpointLostError:
    """Return the error for tables that no longer hold their committed rows."""
    first, *others = {one.problem + one.table: one for one in lost}.values()
    lines = [f"table {one.table}: {one.problem}" for one in others[:_NAMED]]
    if len(others) > _NAMED:
        lines.append(f"and {len(others) - _NAMED} more tables")
    repairable = [one for one in (first, *others) if one.remedy]
    if len(repairable) > 1:
        lines.append(f"{len(repairable)} tables can be repaired; shown for {repairable[0].table}:")
    lines += [one.remedy for one in repairable[:1]]
    command = f"icestream run --pipeline {pipeline}"
    if all(one.source_table is not None for one in lost):
        what = "the table" if len(lost) == 1 else f"these {len(lost)} tables"
        lines.append(f"To load {what} again from the source: {command} --reload")
    lines.append(f"To continue without the rows: {command} --resume")
    lines.append(f"To read the source from the beginning: {command} --start-over")
    return CheckpointLostError(
        first.problem,
        where=f"pipeline {pipeline!r}, table {first.table}",
        todo="\n".join(lines),
    )


def _remedies(pipeline: str, mark: BatchMark | None) -> str:
    lines = []
    if mark is not None:
        lines.append(
            f"To resume after the last committed row, at {short_text(mark.end)}: "
            f"icestream run --pipeline {pipeline} --resume"
        )
    lines.append(
        "To read the source from the beginning, keeping the rows in the table: "
        f"icestream run --pipeline {pipeline} --start-over"
    )
    return "\n".join(lines)
