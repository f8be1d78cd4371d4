"""Where a run resumes: from the checkpoint, from the marks in the tables, or from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.sink import LostRows
from icestream.engine.dead_letters.dedup import letters_end_ahead
from icestream.engine.recovery.checkpoint import read_checkpoint
from icestream.engine.recovery.reconcile import (
    LastCommit,
    find_missing_batch,
    find_renamed_pipeline,
    lost_rows_error,
    reconcile,
    renamed_pipeline_error,
)
from icestream.errors import CheckpointLostError, SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import Sink
    from icestream.engine.recovery.checkpoint import Checkpoint
    from icestream.engine.recovery.reconcile import Choice, StartDecision
    from icestream.engine.state import PipelineState
    from icestream.plan.plan import PipelinePlan


def refuse_renamed_pipeline(choice: Choice, pipeline: str, table: str, old: BatchMark) -> None:
    """Refuse to go on under a new name: the marks of the tables go by the old one.

    Raises:
        CheckpointLostError: always, unless the choice is to start over.
    """
    if choice == "start-over":
        return
    raise CheckpointLostError(
        f"the tables hold rows of the same source by pipeline {old.pipeline!r}, which the file no "
        f"longer has, up to batch {old.epoch}",
        where=f"pipeline {pipeline!r}, table {table}",
        todo=f"Call the pipeline {old.pipeline!r} again: its marks in the tables have that name.\n"
        "To read the source from its beginning again, next to what the tables hold: list the "
        "tables in `allowed_tables` of the sink, since another pipeline created them, then run "
        f"icestream run --pipeline {pipeline} --start-over",
    )


def resolve_start(
    plan: PipelinePlan, state: PipelineState, choice: Choice, known: Collection[str]
) -> tuple[Offset, Offset | None]:
    """Return where the pipeline stands, and the end of the batch that Spark will replay, if any.

    Args:
        plan: the pipeline, its sink opened.
        state: what we remember of it.
        choice: what to do when checkpoint and table disagree.
        known: the names of every pipeline in the file.

    Raises:
        CheckpointLostError: they disagree, and a person has to choose.
    """
    checkpoint = read_checkpoint(state.checkpoint)
    mark = plan.sink.last_mark()
    table = plan.sink.identity()
    committed = _last_commit(state, table)
    beginning = reconcile(
        pipeline=plan.name,
        table=table,
        checkpoint=checkpoint,
        mark=mark,
        accepted=state.accepted(),
        # Of many tables it is known which ones lack rows.
        committed=None if plan.sink.has_many_tables else committed,
        choice=choice,
    )
    if not beginning.ignores_checkpoint:
        _refuse_other_connector(plan, mark)
        current, ahead = _resume_from_checkpoint(state, checkpoint)
        _refuse_lost_rows(plan, current, choice, committed)
        if choice == "resume":
            state.forget_commit()
        return current, ahead
    began = None if choice == "start-over" else state.start()
    position, ahead = _resume(plan, mark, beginning, choice)
    position = position or began
    if position is None and choice != "start-over":
        position = _resume_renamed(plan, choice, known)
    state.forget()
    current = position or plan.source.initial()
    ahead, letters_end, ignored = _resume_letters(plan, state, mark, current, choice, ahead)
    # In this order: a mark that was accepted before the start is known would, after a crash in
    # between, let the source be read from its beginning.
    state.remember_start(current)
    state.remember_letters(letters_end, ignored)
    state.accept(mark.to_json() if mark is not None else None)
    state.forget_commit()
    # After that: a table that lacks rows must not look sound to the checkpoint that was set aside.
    for sink in _all_sinks(plan):
        sink.accept_lost_rows()
    state.publish(ahead or current)
    return current, ahead


def _last_commit(state: PipelineState, table: str) -> LastCommit | None:
    status = state.status() or {}
    remembered = status.get("committed")
    if isinstance(remembered, dict):
        return LastCommit(**remembered)
    # Earlier versions remembered whether rows were committed, and not which batch was the last.
    return LastCommit(status.get("table", table), "", -1) if remembered is True else None


def _all_sinks(plan: PipelinePlan) -> list[Sink[Any]]:
    return [plan.sink] if plan.dead_letter is None else [plan.sink, plan.dead_letter]


def _refuse_lost_rows(
    plan: PipelinePlan, current: Offset, choice: Choice, committed: LastCommit | None
) -> None:
    """Look whether the tables still hold what was committed to them.

    Args:
        plan: the pipeline.
        current: where it continues.
        choice: what to do if they do not.
        committed: the newest batch that the pipeline remembers to have committed.

    Raises:
        CheckpointLostError: they do not, and the person has not chosen how to continue.
    """
    loaded = plan.source.loaded_tables(current)
    lost = [one for sink in _all_sinks(plan) for one in sink.lost_rows(loaded)]
    if not lost and committed is not None:
        table = plan.sink.identity()
        problem = find_missing_batch(committed, plan.sink.last_mark(), table)
        lost = [] if problem is None else [LostRows(table, problem)]
    if not lost:
        return
    if choice == "resume":
        for sink in _all_sinks(plan):
            sink.accept_lost_rows()
        return
    again = [one.source_table for one in lost if one.source_table is not None]
    if choice != "reload" or len(again) < len(lost):
        raise lost_rows_error(plan.name, lost)
    plan.source.reload(again)
    plan.sink.reload(again)


def _resume(
    plan: PipelinePlan, mark: BatchMark | None, beginning: StartDecision, choice: Choice
) -> tuple[Offset | None, Offset | None]:
    """Return where to go on after the mark, and where the first batch ends if that is fixed."""
    if beginning.offset is not None and mark is not None:
        letters = plan.dead_letter.last_mark() if plan.dead_letter is not None else None
        return plan.sink.resume(mark, letters)
    if choice == "start-over":
        plan.sink.start_over()
    return None, None


def _resume_letters(
    plan: PipelinePlan,
    state: PipelineState,
    mark: BatchMark | None,
    current: Offset,
    choice: Choice,
    ahead: Offset | None,
) -> tuple[Offset | None, Offset | None, str | None]:
    """Return where the first batch ends, where if its letters are written, and which to ignore."""
    if choice == "start-over":
        held = plan.dead_letter.last_mark() if plan.dead_letter is not None else None
        return ahead, None, held.to_json() if held is not None else None
    ignored = state.ignored_letters()
    if plan.sink.has_many_tables and mark is not None:
        # The marks of the tables say which letters there are. A run that resumed may have been
        # cut off before its first batch.
        again = plan.sink.repeated_batch()
        repeated = again.end if again is not None and again.start == current else None
        return ahead or repeated, None, ignored
    letters_end = letters_end_ahead(plan, mark, current, ignored)
    return ahead or letters_end, letters_end, ignored


def _refuse_other_connector(plan: PipelinePlan, mark: BatchMark | None) -> None:
    """Refuse positions that another kind of source wrote; they mean nothing to this one."""
    ours = plan.source.identity()
    if mark is not None and mark.source.partition(" ")[0] != ours.partition(" ")[0]:
        raise SourceChangedError(
            f"the pipeline has read from {mark.source!r} so far, and now the file says {ours!r}",
            where=f"pipeline {plan.name!r}",
            todo="Give the new pipeline a name of its own, or start over on purpose with "
            f"`icestream run --pipeline {plan.name} --start-over`.",
        )


def _resume_from_checkpoint(
    state: PipelineState, checkpoint: Checkpoint
) -> tuple[Offset, Offset | None]:
    start = state.start() or {}
    planned = checkpoint.end_of(checkpoint.planned) if checkpoint.planned >= 0 else start
    state.publish(planned)
    if checkpoint.planned <= checkpoint.done:
        return planned, None
    # Spark will replay the batch that it planned and never saw finished.
    done = checkpoint.end_of(checkpoint.done) if checkpoint.done >= 0 else start
    return done, planned


def _resume_renamed(plan: PipelinePlan, choice: Choice, known: Collection[str]) -> Offset | None:
    """Return where a pipeline ended that this one seems to be under a new name."""
    old = find_renamed_pipeline(
        source=plan.source.identity(), others=plan.sink.foreign_marks(), known=known
    )
    if old is None:
        return None
    if plan.sink.has_many_tables:
        refuse_renamed_pipeline(choice, plan.name, plan.sink.identity(), old)
    if choice == "ask":
        raise renamed_pipeline_error(plan.name, plan.sink.identity(), old)
    return old.end
