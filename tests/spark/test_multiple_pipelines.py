"""Several pipelines in one process: one that fails does not stop the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.fixtures.waiting import wait_until

from icestream.engine.run import Run, RunChoices
from icestream.errors import BadRecordError, UnreachableError
from icestream.metrics.events import BatchWritten, PipelineRestarted
from icestream.plan.plan import Batching, Plan, RestartPolicy
from icestream.testing.scripted import ScriptedOptions, ScriptedSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake

    from icestream.contracts.offset import Offset
    from icestream.plan.plan import PipelinePlan

SCHEMA = pa.schema([("id", pa.int64())])


def scripted(name: str, rows: int) -> ScriptedSource:
    source = ScriptedSource(ScriptedOptions(name=name), schema=SCHEMA)
    source.append_rows({"id": n} for n in range(rows))
    return source


def run_of(lake: Lake, *pipelines: PipelinePlan, once: bool = True) -> Run:
    plan = Plan(
        path=lake.folder / "icestream.yaml",
        state=lake.state,
        pipelines=pipelines,
        catalogs={lake.name: lake.catalog},
        jars=(),
        master="local[2]",
        spark_conf={},
    )
    return Run(plan, RunChoices(once=once), lake.events.append)


def test_failing_pipeline_stops_alone_and_sets_the_exit_code(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = scripted("broken", 5)

    def refuse(*_: object) -> None:
        raise BadRecordError("record 3 can't be decoded")

    monkeypatch.setattr(broken, "splits", refuse)
    run = run_of(
        lake,
        lake.plan(broken, name="broken", table="broken"),
        lake.plan(scripted("good", 7), name="good", table="good"),
    )
    run.start()
    run.wait()

    assert [type(runner.error) for runner in run.runners] == [BadRecordError, type(None)]
    assert run.exit_code() == 5
    assert [row["id"] for row in lake.rows("good")] == list(range(7))


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let scripted sources not answer the first times that they are asked."""

    def silence(times: int) -> None:
        left = iter(range(times))
        answer = ScriptedSource.latest

        def latest(self: ScriptedSource, current: Offset) -> Offset:
            if next(left, None) is not None:
                raise UnreachableError("nobody answers")
            return answer(self, current)

        monkeypatch.setattr(ScriptedSource, "latest", latest)

    return silence


def test_transient_fault_restarts_the_pipeline_by_its_policy(
    lake: Lake, silent: Callable[[int], None]
) -> None:
    source = scripted("flaky", 4)
    silent(2)
    lake.run(replace(lake.plan(source), restart=RestartPolicy(max=2, backoff_secs=0.05)))

    assert [row["id"] for row in lake.rows()] == list(range(4))
    restarts = [event for event in lake.events if isinstance(event, PipelineRestarted)]
    assert [event.attempt for event in restarts] == [1, 2]


def test_fault_that_persists_after_every_restart_stops_the_pipeline(
    lake: Lake, silent: Callable[[int], None]
) -> None:
    source = scripted("flaky", 4)
    silent(9)
    run = run_of(lake, replace(lake.plan(source), restart=RestartPolicy(max=2, backoff_secs=0.05)))
    run.start()
    run.wait()

    assert run.exit_code() == 3
    assert str(run.runners[0].error) == "nobody answers"
    status = run.runners[0].state.status() or {}
    assert status["state"] == "failed"
    assert status["error"] == {
        "type": "UnreachableError",
        "message": "nobody answers",
        "needs_person": False,
    }


def test_pipelines_started_together_may_share_a_new_namespace_and_table(lake: Lake) -> None:
    plans = [lake.plan(scripted(f"s{n}", 3), name=f"p{n}", table="shared") for n in range(3)]
    # Spark gives a Python process ten seconds to come up, and here three start at a time.
    run = run_of(lake, *(replace(plan, restart=RestartPolicy(max=5)) for plan in plans))
    run.start()
    run.wait()

    assert [runner.error for runner in run.runners] == [None] * 3
    assert sorted(row["id"] for row in lake.rows("shared")) == sorted([0, 1, 2] * 3)


def test_pipelines_started_one_by_one_share_the_memory_of_the_driver(lake: Lake) -> None:
    def planned(name: str, rows: int) -> PipelinePlan:
        batching = Batching(1, 0.1, 12, lambda running: 12 // running)
        return lake.plan(scripted(name, rows), name=name, table=name, batching=batching)

    def batch_sizes(name: str) -> list[int]:
        events = [event for event in lake.events if isinstance(event, BatchWritten)]
        return [event.rows for event in events if event.pipeline == name]

    started = run_of(lake, planned("idle", 1), once=False)
    started.start()
    wait_until(lambda: batch_sizes("idle") == [1], "the first pipeline to wait for rows")
    for name in ("beside", "alone"):
        run = run_of(lake, planned(name, 12))
        run.start()
        run.wait()
        started.stop()
        started.wait()

    assert batch_sizes("beside") == [6, 6]
    assert batch_sizes("alone") == [12]
