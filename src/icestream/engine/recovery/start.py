"""Where a run resumes: from the checkpoint, from the marks in the tables, or from the start.

The decision table is in docs/design/exactly-once.md, "Checkpoint and mark".

Also the bounded load: the batches of one `run --once`, whose rows together replace the table's.
Each load has an id, which is saved before its first batch and in the mark of each batch. If a run
dies half-way, the next one resumes the unfinished load: it adds to the rows that the first run
wrote instead of replacing them.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.sink import LostRows
from icestream.engine.dead_letters.dedup import find_dead_letters_end
from icestream.engine.recovery.reconcile import (
    LastCommit,
    find_missing_batch,
    find_renamed_pipeline,
    lost_rows_error,
    reconcile,
    renamed_pipeline_error,
)
from icestream.engine.state import read_checkpoint
from icestream.errors import AttentionError, CheckpointLostError, SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.sink import Sink
    from icestream.engine.recovery.reconcile import Choice, StartDecision
    from icestream.engine.state import Checkpoint, PipelineState
    from icestream.plan.plan import PipelinePlan


def refuse_renamed_pipeline(choice: Choice, pipeline: str, table: str, old: BatchMark) -> None:
    """Refuse to continue a renamed pipeline: the tables' marks carry the old name.

    Raises:
        CheckpointLostError: always, unless the choice is `start-over`.
    """
    if choice == "start-over":
        return
    raise CheckpointLostError(
        f"the tables hold rows of the same source up to batch {old.epoch}, written by pipeline "
        f"{old.pipeline!r}, which is no longer in the file",
        where=f"pipeline {pipeline!r}, table {table}",
        todo=f"Rename the pipeline back to {old.pipeline!r}: the tables' marks carry that name.\n"
        "To read the source from the beginning, keeping the rows in the tables: list the "
        "tables in `allowed_tables` of the sink, since another pipeline created them, then run "
        f"icestream run --pipeline {pipeline} --start-over",
    )


def resolve_start(
    plan: PipelinePlan, state: PipelineState, choice: Choice, pipelines: Collection[str]
) -> tuple[Offset, Offset | None]:
    """Return the offset to resume from, and the end offset of the first batch if it is fixed.

    The end is fixed if Spark will replay a batch, or if some of its rows are already written.

    Args:
        plan: the pipeline, with its sink open.
        state: the pipeline's saved state.
        choice: what to do when checkpoint and table disagree.
        pipelines: the names of all pipelines in the file.

    Raises:
        CheckpointLostError: they disagree, and the user has to choose.
    """
    checkpoint = read_checkpoint(state.checkpoint)
    mark = plan.sink.last_mark()
    table = plan.sink.identity()
    committed = _last_commit(state, table)
    decision = reconcile(
        pipeline=plan.name,
        table=table,
        checkpoint=checkpoint,
        mark=mark,
        accepted=state.accepted(),
        # With many tables, `_refuse_lost_rows` checks each one.
        committed=None if plan.sink.single_table() is None else committed,
        choice=choice,
    )
    if not decision.ignores_checkpoint:
        _refuse_other_connector(plan, mark)
        current, first_batch_end = _resume_from_checkpoint(state, checkpoint)
        _refuse_lost_rows(plan, current, choice, committed)
        if choice == "resume":
            state.forget_commit()
        return current, first_batch_end
    start = None if choice == "start-over" else state.start()
    offset, first_batch_end = _resume(plan, mark, decision, choice)
    offset = offset or start
    if offset is None and choice != "start-over":
        offset = _resume_renamed(plan, choice, pipelines)
    state.forget()
    current = offset or plan.source.initial()
    letters = _resume_dead_letters(plan, state, mark, current, choice)
    first_batch_end = first_batch_end or letters.first_batch_end
    # The order matters: if the mark were accepted before the start is saved, a crash in between
    # would make the next run read the source from its beginning.
    state.remember_start(current)
    state.remember_dead_letters(letters.dead_letters_end, letters.ignored_mark)
    state.accept(mark.to_json() if mark is not None else None)
    state.forget_commit()
    # Only now: the discarded checkpoint must not find a table that lacks rows marked as intact.
    for sink in _all_sinks(plan):
        sink.accept_lost_rows()
    state.publish(first_batch_end or current)
    return current, first_batch_end


def _last_commit(state: PipelineState, table: str) -> LastCommit | None:
    status = state.status() or {}
    committed = status.get("committed")
    if isinstance(committed, dict):
        return LastCommit(**committed)
    # Earlier versions saved only whether rows were committed, not the last batch.
    return LastCommit(status.get("table", table), "", -1) if committed is True else None


def _all_sinks(plan: PipelinePlan) -> list[Sink[Any]]:
    return [plan.sink] if plan.dead_letter is None else [plan.sink, plan.dead_letter]


def _refuse_lost_rows(
    plan: PipelinePlan, current: Offset, choice: Choice, committed: LastCommit | None
) -> None:
    """Check that the tables still hold their committed rows.

    Args:
        plan: the pipeline.
        current: the offset that it resumes from.
        choice: what to do if rows are missing.
        committed: the last batch that the pipeline recorded as committed.

    Raises:
        CheckpointLostError: rows are missing, and the user has not chosen how to continue.
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
    reloadable = [one.source_table for one in lost if one.source_table is not None]
    if choice != "reload" or len(reloadable) < len(lost):
        raise lost_rows_error(plan.name, lost)
    plan.source.reload(reloadable)
    plan.sink.reload(reloadable)


def _resume(
    plan: PipelinePlan, mark: BatchMark | None, decision: StartDecision, choice: Choice
) -> tuple[Offset | None, Offset | None]:
    """Return the offset to resume from after the mark, and the first batch's end if fixed."""
    if decision.offset is not None and mark is not None:
        letters = plan.dead_letter.last_mark() if plan.dead_letter is not None else None
        return plan.sink.resume(mark, letters)
    if choice == "start-over":
        plan.sink.start_over()
    return None, None


@dataclass(frozen=True)
class _ResumedDeadLetters:
    """What the dead letters of earlier runs mean for the first batch.

    Attributes:
        first_batch_end: where the first batch ends, if they fix it.
        dead_letters_end: the same, if the dead letters of that batch are already written.
        ignored_mark: the mark of dead letters that the user chose to ignore.
    """

    first_batch_end: Offset | None = None
    dead_letters_end: Offset | None = None
    ignored_mark: str | None = None


def _resume_dead_letters(
    plan: PipelinePlan,
    state: PipelineState,
    mark: BatchMark | None,
    current: Offset,
    choice: Choice,
) -> _ResumedDeadLetters:
    """Find the dead letters that the first batch may repeat."""
    if choice == "start-over":
        held = plan.dead_letter.last_mark() if plan.dead_letter is not None else None
        return _ResumedDeadLetters(ignored_mark=held.to_json() if held is not None else None)
    ignored = state.ignored_dead_letters()
    if plan.sink.may_refuse_rows and mark is not None:
        # Dead letters follow the tables, whose marks say which letters exist. An earlier resumed
        # run may have been interrupted before its first batch.
        replayed = plan.sink.replayed_batch()
        replayed_end = replayed.end if replayed is not None and replayed.start == current else None
        return _ResumedDeadLetters(first_batch_end=replayed_end, ignored_mark=ignored)
    end = find_dead_letters_end(plan, mark, current, ignored)
    return _ResumedDeadLetters(end, end, ignored)


def _refuse_other_connector(plan: PipelinePlan, mark: BatchMark | None) -> None:
    """Refuse offsets written by another type of source; this one can't interpret them."""
    ours = plan.source.identity()
    if mark is not None and mark.source.partition(" ")[0] != ours.partition(" ")[0]:
        raise SourceChangedError(
            f"the pipeline has read from {mark.source!r} so far, but the file now says {ours!r}",
            where=f"pipeline {plan.name!r}",
            todo="Give the new pipeline a name of its own, or start over deliberately with "
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
    # Spark will replay the batch that it planned but never logged as completed.
    done = checkpoint.end_of(checkpoint.done) if checkpoint.done >= 0 else start
    return done, planned


def _resume_renamed(
    plan: PipelinePlan, choice: Choice, pipelines: Collection[str]
) -> Offset | None:
    """Return the last offset of the pipeline that this one appears to be, renamed."""
    old = find_renamed_pipeline(
        source=plan.source.identity(), others=plan.sink.foreign_marks(), pipelines=pipelines
    )
    if old is None:
        return None
    if plan.sink.single_table() is None:
        refuse_renamed_pipeline(choice, plan.name, plan.sink.identity(), old)
    if choice == "ask":
        raise renamed_pipeline_error(plan.name, plan.sink.identity(), old)
    return old.end


def begin_load(plan: PipelinePlan, state: PipelineState, choice: Choice, *, once: bool) -> str:
    """Return the id of the load that this run starts or resumes; empty if it is not a load.

    Args:
        plan: the pipeline, with its sink open.
        state: the pipeline's saved state.
        choice: how the pipeline starts; `start-over` always starts a new load.
        once: whether the run stops at the source's current end.

    Raises:
        AttentionError: a load is unfinished, and an unbounded run would replace its rows.
    """
    if not plan.sink.replaces():
        return ""
    mark = plan.sink.last_mark()
    unfinished = "" if choice == "start-over" else _unfinished_load(state.load(), mark)
    if once or plan.source.has_end():
        load = unfinished or uuid.uuid4().hex
        state.remember_load(load, ended=False)
        return load
    if unfinished and mark is not None and mark.load == unfinished:
        raise AttentionError(
            f"the table holds an unfinished load, up to batch {mark.epoch}; a run without "
            "`--once` would replace its rows",
            where=f"pipeline {plan.name!r}, table {plan.sink.identity()}",
            todo=f"Finish the load first: icestream run --pipeline {plan.name} --once",
        )
    return ""


def end_load(state: PipelineState, load: str) -> None:
    """Record that a load has finished, so that the next one replaces its rows."""
    if load:
        state.remember_load(load, ended=True)


def _unfinished_load(saved: dict[str, Any] | None, mark: BatchMark | None) -> str:
    """Return the id of the load to resume, empty for none."""
    if saved is not None and not saved.get("ended"):
        return str(saved.get("id") or "")
    table_load = mark.load if mark is not None else ""
    # If the table's last load is not recorded as finished, resume it: adding to its rows loses
    # nothing, replacing them might.
    is_finished = saved is not None and saved.get("id") == table_load
    return "" if is_finished else table_load
