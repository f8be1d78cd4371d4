"""Bounded loads: the batches of one `run --once`, whose rows together replace the table's rows.

Each load has an id, which is saved before its first batch and in the mark of each batch. If a run
dies half-way, the next one resumes the unfinished load: it adds to the rows that the first run
wrote instead of replacing them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from icestream.errors import AttentionError

if TYPE_CHECKING:
    from icestream.contracts.offset import BatchMark
    from icestream.engine.recovery.reconcile import Choice
    from icestream.engine.state import PipelineState
    from icestream.plan.plan import PipelinePlan


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
