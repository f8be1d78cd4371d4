"""Compares a pipeline's checkpoint with the marks in its table, before anything is read.

The checkpoint says where to go on, the mark says what the table holds. As long as both tell one
story the pipeline goes on. When they don't, rows would be lost or doubled, so a person decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from icestream.errors import CheckpointLostError

if TYPE_CHECKING:
    from collections.abc import Collection

    from icestream.contracts.mark import BatchMark
    from icestream.contracts.position import Position
    from icestream.engine.checkpoint import Checkpoint

_DROPPED = (
    "the pipeline has committed rows, and the table holds no mark of it: it was dropped and made "
    "anew, or another table was put in its place"
)

Choice = Literal["ask", "resume", "start-over"]


@dataclass(frozen=True)
class Beginning:
    """How a pipeline begins.

    Attributes:
        anew: the checkpoint, if there is one, is set aside.
        position: where to begin then; None for where the source begins.
    """

    anew: bool
    position: Position | None = None


def reconcile(
    *,
    pipeline: str,
    table: str,
    checkpoint: Checkpoint,
    mark: BatchMark | None,
    accepted: str | None,
    committed: bool,
    choice: Choice,
) -> Beginning:
    """Decide how a pipeline begins, or raise with the ways that a person can choose from.

    Args:
        pipeline: the pipeline's name.
        table: the table's name, for messages.
        checkpoint: what Spark remembers.
        mark: the newest mark of the pipeline in the table.
        accepted: the mark that a person chose to begin anew over, if one ever did.
        committed: whether the pipeline remembers rows that it committed.
        choice: what the person chose this time.
    """
    if choice == "start-over":
        return Beginning(anew=True)
    problem = _disagreement(checkpoint, mark, accepted, committed=committed)
    if problem is None:
        return Beginning(anew=not checkpoint.exists)
    if choice == "resume" and mark is not None:
        return Beginning(anew=True, position=mark.end)
    raise CheckpointLostError(
        problem,
        where=f"pipeline {pipeline!r}, table {table}",
        todo=_ways(pipeline, mark),
    )


def renamed_from(
    *, source: str, others: Collection[BatchMark], known: Collection[str]
) -> BatchMark | None:
    """Return the mark of a pipeline that read the same source and is no longer in the file."""
    for mark in others:
        if mark.source == source and mark.pipeline not in known:
            return mark
    return None


def refuse_rename(pipeline: str, table: str, old: BatchMark) -> CheckpointLostError:
    """Return the error for a pipeline that seems to be another one, renamed."""
    return CheckpointLostError(
        f"the table holds rows of the same source by pipeline {old.pipeline!r}, which the file "
        f"no longer has, up to batch {old.epoch}",
        where=f"pipeline {pipeline!r}, table {table}",
        todo=_ways(pipeline, old),
    )


def _disagreement(
    checkpoint: Checkpoint, mark: BatchMark | None, accepted: str | None, *, committed: bool
) -> str | None:
    if mark is None:
        return _DROPPED if committed and checkpoint.exists else None
    if accepted is not None and mark.to_json() == accepted:
        return None
    held = f"the table holds this pipeline's rows up to batch {mark.epoch}"
    if not checkpoint.exists:
        return f"{held}, but there is no checkpoint"
    if checkpoint.query_id != mark.query_id:
        return f"{held} of query {mark.query_id}, but the checkpoint is of {checkpoint.query_id}"
    if mark.epoch > checkpoint.planned:
        return f"{held}, but the checkpoint, an older copy, ends at batch {checkpoint.planned}"
    return None


def _ways(pipeline: str, mark: BatchMark | None) -> str:
    ways = []
    if mark is not None:
        ways.append(
            f"To go on after the last row that the table holds, at {_short(mark.end)}: "
            f"icestream run --pipeline {pipeline} --resume"
        )
    ways.append(
        "To read the source from its beginning again, next to what the table holds: "
        f"icestream run --pipeline {pipeline} --start-over"
    )
    return "\n".join(ways)


def _short(position: Position) -> str:
    text = json.dumps(position, sort_keys=True)
    return text if len(text) <= 200 else text[:197] + "..."
