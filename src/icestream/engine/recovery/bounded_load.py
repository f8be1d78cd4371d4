"""Bounded loads: the batches of one `run --once`, whose rows together replace what was there.

The load has an id, remembered before its first batch and in each batch's mark. A run that died
half-way leaves it unfinished, and the next one goes on with it: it adds to the rows of the first
part, which it would otherwise replace.
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
    """Return the id of the load that this run begins or goes on with; empty if it is none.

    Args:
        plan: the pipeline, its sink opened.
        state: what we remember of it.
        choice: how the pipeline begins; a load begins anew with it.
        once: whether the run goes up to where the source ends now.

    Raises:
        AttentionError: a load was not finished, and a run without an end would replace its rows.
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
            f"the table holds a part of a load, up to batch {mark.epoch}, that has not come to "
            "its end; a run without `--once` would replace its rows",
            where=f"pipeline {plan.name!r}, table {plan.sink.identity()}",
            todo=f"Finish the load first: icestream run --pipeline {plan.name} --once",
        )
    return ""


def end_load(state: PipelineState, load: str) -> None:
    """Note that a load has come to its end, so that the next one replaces its rows."""
    if load:
        state.remember_load(load, ended=True)


def _unfinished_load(kept: dict[str, Any] | None, mark: BatchMark | None) -> str:
    """Return the load to go on with, empty for none."""
    if kept is not None and not kept.get("ended"):
        return str(kept.get("id") or "")
    held = mark.load if mark is not None else ""
    # The table speaks of a load of which we don't know that it ended: adding to its rows loses
    # none of them, replacing them might.
    known = kept is not None and kept.get("id") == held
    return "" if known else held
