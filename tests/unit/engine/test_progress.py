"""How a pipeline is doing, as others read it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from icestream.contracts.offset import BatchMark
from icestream.contracts.sink import Commit
from icestream.engine import progress as progress_module
from icestream.engine.batch.batch import BatchResult
from icestream.engine.batch.commit import CommittedBatch
from icestream.engine.progress import RATE_WINDOW_SECS, Progress
from icestream.errors import RefusedError, UnreachableError


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress_module, "time", made)
    return made


@pytest.fixture
def progress() -> Progress:
    return Progress("orders", "lake.db.orders")


def result(rows: int, bad: int = 0) -> BatchResult:
    commit = Commit(77, rows, rows * 100, 1, 0, 0.1) if rows else None
    commits = {"lake.db.orders": commit} if commit is not None else {}
    return BatchResult(rows, bad, write_secs=1.0, committed=CommittedBatch(commit, commits))


def test_batches_add_up_in_the_status_file(progress: Progress, clock: Clock) -> None:
    progress.set_state("running")
    progress.measure(1_234, 5.67891)
    progress.add(0, result(100, bad=2))
    clock.now += 1.5
    progress.add(1, result(50))
    progress.remember_commit(BatchMark("orders", "q1", 1, "kafka", {}, {}))

    assert json.loads(json.dumps(progress.to_json())) == {
        "pipeline": "orders",
        "table": "lake.db.orders",
        "state": "running",
        "pid": os.getpid(),
        "rows": 150,
        "committed": {"table": "lake.db.orders", "query_id": "q1", "epoch": 1},
        "bad": 2,
        "batches": 2,
        "epoch": 1,
        "lag_rows": 1084,
        "lag_secs": 5.679,
        "last_commit_at": "2023-11-14T22:13:21.500+00:00",
        "snapshot_id": 77,
        "error": None,
        "updated_at": "2023-11-14T22:13:21.500+00:00",
    }


def test_batch_that_wrote_nothing_is_not_a_commit(progress: Progress) -> None:
    progress.add(0, result(0, bad=3))

    status = progress.to_json()
    assert (status["batches"], status["bad"], status["epoch"]) == (1, 3, 0)
    assert status["last_commit_at"] is None
    assert status["committed"] is None


def test_rate_is_over_the_last_half_minute(progress: Progress, clock: Clock) -> None:
    assert progress.rows_per_second() == 0.0
    progress.add(0, result(1_000))
    assert progress.rows_per_second() == 1_000, "the first moments count as one second"
    clock.now += 10
    progress.add(1, result(1_000))
    assert progress.rows_per_second() == 200
    clock.now += RATE_WINDOW_SECS - 10 + 0.1
    assert progress.rows_per_second() == pytest.approx(1_000 / 20.1)
    clock.now += RATE_WINDOW_SECS
    assert progress.rows_per_second() == 0.0


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            UnreachableError("nobody answers", where="broker h:9092"),
            {
                "type": "UnreachableError",
                "message": "broker h:9092: nobody answers",
                "needs_person": False,
            },
        ),
        (KeyError("x"), {"type": "KeyError", "message": "'x'", "needs_person": False}),
    ],
)
def test_fault_is_reported_and_then_cleared(
    progress: Progress, error: BaseException, shown: dict[str, Any]
) -> None:
    progress.set_waiting(error)
    assert (progress.to_json()["state"], progress.to_json()["error"]) == ("waiting", shown)
    progress.fail(error)
    assert (progress.to_json()["state"], progress.to_json()["error"]) == ("failed", shown)
    progress.set_state("running")
    assert (progress.to_json()["state"], progress.to_json()["error"]) == ("running", None)


def test_attention_is_needed_once_the_pipeline_has_given_up(progress: Progress) -> None:
    refused = RefusedError("the token has run out", where="catalog 'lake'")
    shown = {"type": "RefusedError", "message": "catalog 'lake': the token has run out"}

    progress.set_waiting(refused)
    assert progress.to_json()["error"] == {**shown, "needs_person": False}
    progress.fail(refused)
    assert progress.to_json()["error"] == {**shown, "needs_person": True}


def test_batch_committed_by_an_earlier_run_is_restored() -> None:
    committed = {"table": "lake.db.other", "query_id": "q1", "epoch": 3}
    for status, expected in [({"committed": committed}, committed), ({}, None), (None, None)]:
        progress = Progress("orders", "lake.db.orders")
        progress.restore(status)
        assert progress.to_json()["committed"] == expected
    progress.remember_commit(None)
    assert progress.to_json()["committed"] is None


def test_old_batches_are_discarded_even_if_the_rate_is_never_read(
    progress: Progress, clock: Clock
) -> None:
    for epoch in range(1_000):
        progress.add(epoch, result(rows=1))
        clock.now += 1.0
    assert len(progress._recent) <= RATE_WINDOW_SECS + 1
