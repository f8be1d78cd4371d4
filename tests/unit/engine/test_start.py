"""Where a pipeline begins, and what a crash while that is being decided leaves behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.offset import BatchMark
from icestream.contracts.sink import LostRows, Sink
from icestream.engine.recovery.start import resolve_start
from icestream.engine.state import PipelineState
from icestream.errors import CheckpointLostError, SourceChangedError
from icestream.plan.plan import Batching, PipelinePlan, RestartPolicy
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.engine.recovery.reconcile import Choice

MARK = BatchMark("p", "query", 4, "scripted scripted", {"row": 0}, {"row": 50}, 50, "other")


class MarkedTable:
    """The part of a single table's sink that recovery uses."""

    may_refuse_rows = False
    resume = Sink.resume
    start_over = Sink.start_over
    replayed_batch = Sink.replayed_batch

    def __init__(self, mark: BatchMark | None) -> None:
        self._mark = mark
        self.lost: list[LostRows] = []

    def identity(self) -> str:
        return "lake.db.t"

    def single_table(self) -> tuple[str, ...]:
        return ("db", "t")

    def last_mark(self) -> BatchMark | None:
        return self._mark

    def foreign_marks(self) -> list[BatchMark]:
        return []

    def lost_rows(self, loaded: object = None) -> list[LostRows]:
        return list(self.lost)

    def accept_lost_rows(self) -> None:
        self.lost.clear()


def plan_over(mark: BatchMark | None) -> PipelinePlan:
    sink: Any = MarkedTable(mark)
    return PipelinePlan(
        name="p",
        source_name="s",
        source=ScriptedSource(schema=pa.schema([("id", pa.int64())])),
        sink_name="t",
        sink=sink,
        batching=Batching(1, 1, 1),
        restart=RestartPolicy(),
        on_error="fail",
    )


@pytest.fixture
def state(tmp_path: Path) -> PipelineState:
    state = PipelineState(tmp_path, "p")
    state.make()
    return state


def checkpointed(state: PipelineState) -> None:
    """Leave a checkpoint whose batch 4 is done."""
    for folder in ("offsets", "commits"):
        (state.checkpoint / folder).mkdir(parents=True)
        (state.checkpoint / folder / "4").write_text('v1\n{}\n{"row": 50}')
    (state.checkpoint / "metadata").write_text('{"id": "query"}')


def test_initial_offset_is_stored_and_passed_to_spark(state: PipelineState) -> None:
    assert resolve_start(plan_over(None), state, "ask", ()) == ({"row": 0}, None)
    assert state.start() == {"row": 0}


def test_resumed_pipeline_starts_where_the_mark_ends_even_after_a_restart(
    state: PipelineState,
) -> None:
    assert resolve_start(plan_over(MARK), state, "resume", ()) == ({"row": 50}, None)
    assert resolve_start(plan_over(MARK), state, "ask", ()) == ({"row": 50}, None)
    assert resolve_start(plan_over(MARK), state, "resume", ()) == ({"row": 50}, None), (
        "asked for twice"
    )


def test_other_kind_of_source_under_the_same_name_is_refused(state: PipelineState) -> None:
    checkpointed(state)
    with pytest.raises(SourceChangedError) as caught:
        resolve_start(plan_over(replace(MARK, source="kafka orders")), state, "ask", ())

    assert str(caught.value) == (
        "pipeline 'p': the pipeline has read from 'kafka orders' so far, but the file now says "
        "'scripted scripted'\n"
        "  Give the new pipeline a name of its own, or start over deliberately with "
        "`icestream run --pipeline p --start-over`."
    )


@pytest.mark.parametrize("lost", ["remember_start", "accept"])
def test_crash_while_resuming_never_reads_from_the_beginning(
    state: PipelineState, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    class PowerCutError(Exception):
        pass

    def cut(*_: object) -> None:
        raise PowerCutError

    monkeypatch.setattr(PipelineState, lost, cut)
    with pytest.raises(PowerCutError):
        resolve_start(plan_over(MARK), state, "resume", ())
    monkeypatch.undo()

    with pytest.raises(CheckpointLostError):
        resolve_start(plan_over(MARK), state, "ask", ())


LETTERS = replace(MARK, start={"row": 10}, end={"row": 30}, rows=3)


def plan_with_letters(mark: BatchMark | None, letters: BatchMark) -> PipelinePlan:
    dead_letter: Any = MarkedTable(letters)
    return replace(plan_over(mark), dead_letter=dead_letter)


def test_dead_letters_of_the_first_batch_are_known_to_be_written(state: PipelineState) -> None:
    first = replace(LETTERS, start={"row": 0})
    assert resolve_start(plan_with_letters(None, first), state, "ask", ()) == (
        {"row": 0},
        {"row": 30},
    )
    assert state.dead_letters_end() == {"row": 30}


def test_later_dead_letters_prove_nothing_without_the_table(state: PipelineState) -> None:
    assert resolve_start(plan_with_letters(None, LETTERS), state, "ask", ()) == ({"row": 0}, None)
    assert state.dead_letters_end() is None


def test_starting_over_ignores_dead_letters_even_after_a_crash(state: PipelineState) -> None:
    plan = plan_with_letters(None, replace(LETTERS, start={"row": 0}))
    assert resolve_start(plan, state, "start-over", ()) == ({"row": 0}, None)
    assert resolve_start(plan, state, "ask", ()) == ({"row": 0}, None), "no batch was planned yet"
    assert state.dead_letters_end() is None


def test_starting_over_without_the_table_is_confirmed_only_once(state: PipelineState) -> None:
    state.write_status({"committed": {"table": "lake.db.t", "query_id": "query", "epoch": 4}})
    checkpointed(state)
    with pytest.raises(CheckpointLostError):
        resolve_start(plan_over(None), state, "ask", ())
    resolve_start(plan_over(None), state, "start-over", ())
    checkpointed(state)

    assert resolve_start(plan_over(None), state, "ask", ()) == ({"row": 50}, None)


def test_lost_rows_are_refused_until_a_person_accepts_them(state: PipelineState) -> None:
    plan = plan_with_letters(MARK, LETTERS)
    checkpointed(state)
    for sink in (plan.sink, plan.dead_letter):
        lost: Any = sink
        lost.lost.append(LostRows("lake.db.t", "it was rolled back"))
        choices: tuple[Choice, ...] = ("ask", "reload")
        for choice in choices:
            with pytest.raises(CheckpointLostError) as caught:
                resolve_start(plan, state, choice, ())
            assert caught.value.what == "it was rolled back"
        assert resolve_start(plan, state, "resume", ()) == ({"row": 50}, None)
        assert resolve_start(plan, state, "ask", ()) == ({"row": 50}, None)


def test_status_file_of_an_earlier_version_only_shows_that_rows_were_committed(
    state: PipelineState,
) -> None:
    checkpointed(state)
    state.write_status({"table": "lake.db.t", "committed": False})
    assert resolve_start(plan_over(None), state, "ask", ()) == ({"row": 50}, None)
    state.write_status({"table": "lake.db.t", "committed": True})
    assert resolve_start(plan_over(MARK), state, "ask", ()) == ({"row": 50}, None)
    with pytest.raises(CheckpointLostError, match="the table has no mark of it"):
        resolve_start(plan_over(None), state, "ask", ())
