"""Bounded loads: which one a run starts, and which one it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.offset import BatchMark
from icestream.engine.recovery.start import begin_load, end_load
from icestream.engine.state import PipelineState
from icestream.errors import AttentionError
from icestream.plan.plan import Batching, PipelinePlan, RestartPolicy
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.engine.recovery.reconcile import Choice


class LoadedTable:
    """As much of a sink as a load asks for."""

    def __init__(self, load: str | None, *, replaces: bool) -> None:
        self._load = load
        self._replaces = replaces

    def identity(self) -> str:
        return "lake.db.t"

    def replaces(self) -> bool:
        return self._replaces

    def last_mark(self) -> BatchMark | None:
        if self._load is None:
            return None
        return BatchMark("p", "q1", 3, "scripted", {}, {}, load=self._load)


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    state = PipelineState(tmp_path, "p")
    state.make()
    return state


def begun(
    state: PipelineState,
    held: str | None = None,
    choice: Choice = "ask",
    *,
    once: bool = True,
    has_end: bool = False,
    replaces: bool = True,
) -> str:
    sink: Any = LoadedTable(held, replaces=replaces)
    source = ScriptedSource(schema=pa.schema([("id", pa.int64())]), has_end=has_end)
    plan = PipelinePlan(
        name="p",
        source_name="s",
        source=source,
        sink_name="t",
        sink=sink,
        batching=Batching(1, 1, 1),
        restart=RestartPolicy(),
        on_error="fail",
    )
    return begin_load(plan, state, choice, once=once)


def test_unfinished_load_is_resumed(state: PipelineState) -> None:
    first = begun(state)

    assert first
    assert begun(state, first) == first
    assert begun(state, "an older load") == first, "it had committed nothing yet"


def test_finished_load_is_followed_by_another(state: PipelineState) -> None:
    first = begun(state)
    end_load(state, first)
    second = begun(state, first)

    assert second not in ("", first)
    assert state.load() == {"id": second, "ended": False}


def test_bounded_source_is_a_load_by_default(state: PipelineState) -> None:
    assert begun(state, once=False, has_end=True)
    assert begun(state, once=False) == ""


def test_sink_that_replaces_nothing_has_no_loads(state: PipelineState) -> None:
    assert begun(state, replaces=False) == ""
    assert state.load() is None


def test_load_recorded_in_the_table_is_resumed_if_the_state_is_missing(
    state: PipelineState,
) -> None:
    assert begun(state, "theirs") == "theirs"


def test_load_recorded_in_the_table_is_resumed_if_the_state_is_older(state: PipelineState) -> None:
    end_load(state, "older")

    assert begun(state, "theirs") == "theirs"


def test_starting_over_is_a_new_load(state: PipelineState) -> None:
    first = begun(state)

    assert begun(state, first, "start-over") not in ("", first)


def test_unbounded_run_does_not_replace_the_rows_of_an_unfinished_load(
    state: PipelineState,
) -> None:
    first = begun(state)
    with pytest.raises(AttentionError) as caught:
        begun(state, first, once=False)

    assert str(caught.value) == (
        "pipeline 'p', table lake.db.t: the table holds an unfinished load, up to batch 3; a run "
        "without `--once` would replace its rows\n"
        "  Finish the load first: icestream run --pipeline p --once"
    )
    assert caught.value.exit_code == 5
    end_load(state, first)
    assert begun(state, first, once=False) == ""


def test_unbounded_run_ignores_a_load_that_wrote_nothing(state: PipelineState) -> None:
    begun(state)

    assert begun(state, once=False) == ""
    assert begun(state, "an older load", once=False) == ""
