"""A result that is lost on its way to the driver: nothing is committed, the batch is replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.fan_outs import planned, row, scripted
from tests.spark.test_expectations import steps

from icestream.contracts import reports
from icestream.engine.batch.sql_path import ReportParam
from icestream.errors import BadRecordError, LostReportsError
from icestream.metrics.events import BatchWritten, PipelineRestarted
from icestream.plan.plan import RestartPolicy
from icestream.testing.scripted import ScriptedSource

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
UPSERT = {"commit_mode": "upsert", "key_fields": ("id",)}


def source_of(*ids: int) -> ScriptedSource:
    source = ScriptedSource(schema=SCHEMA)
    source.append_rows([{"id": n, "name": f"row {n}"} for n in ids])
    return source


def lose(monkeypatch: pytest.MonkeyPatch, number: int, *, kept: int = 0) -> list[int]:
    """Lose all but `kept` rows of the result with this number; returns the sizes of all results."""
    seen: list[int] = []
    collect = reports.collect_rows

    def collected(rows: Any) -> list[Any]:
        found = collect(rows)
        seen.append(len(found))
        return found[:kept] if len(seen) == number else found

    monkeypatch.setattr(reports, "collect_rows", collected)
    return seen


def restarts(lake: Lake) -> list[str]:
    return [event.reason for event in lake.events if isinstance(event, PipelineRestarted)]


# An upsert gathers reports from the reading, the look-up of its keys, and the writing.
@pytest.mark.parametrize(
    ("number", "kept", "options"),
    [
        (1, 0, {}),
        (1, 1, {}),
        (1, 0, UPSERT),
        (2, 0, UPSERT),
        (3, 1, UPSERT),
        (1, 0, {"sort_order": ("id desc",)}),
    ],
)
def test_batch_with_a_lost_report_is_replayed_without_duplicates(
    number: int, kept: int, options: dict[str, Any], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(*range(10))
    plan = replace(lake.plan(source, **options), restart=RestartPolicy(max=1, backoff_secs=0.01))
    lake.run(plan)
    source.append_rows([{"id": n, "name": "new"} for n in range(10, 20)])
    if options == UPSERT:
        source.append_rows([{"id": n, "name": "new"} for n in range(10)])
    lake.events.clear()
    lose(monkeypatch, number, kept=kept)
    lake.run(plan)

    [reason] = restarts(lake)
    assert "the driver" in reason
    assert sorted(row["id"] for row in lake.rows()) == list(range(20))
    assert len([event for event in lake.events if isinstance(event, BatchWritten)]) == 1
    assert len(lake.sql("SELECT * FROM lake.db.events.snapshots")) == 2


def test_reports_lost_in_every_restart_leave_the_table_unchanged(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "collect_rows", lambda _: [])
    with pytest.raises(LostReportsError, match="did not reach the driver"):
        lake.run(lake.plan(source_of(1, 2)))
    monkeypatch.undo()
    assert lake.rows() == []
    lake.run(lake.plan(source_of(1, 2)))
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]


def test_lost_accumulator_update_fails_the_batch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ReportParam.addInPlace

    def lossy(self: ReportParam, value1: Any, value2: list[Any]) -> Any:
        kept = value2 if isinstance(value1, list) else value2[:0]
        return add(self, value1, kept)

    monkeypatch.setattr(ReportParam, "addInPlace", lossy)
    plan = replace(lake.plan(source_of(1, 2)), transforms=steps(("filter", "id > 1")))
    with pytest.raises(LostReportsError, match="did not reach the driver: 0"):
        lake.run(plan)


def test_error_of_a_writer_is_reported_although_reading_never_ended(
    lake: Lake, request: pytest.FixtureRequest
) -> None:
    # More than the sockets between Spark and its workers buffer.
    rows = [row(n, "a", "x" * 100_000) for n in range(1_000)]
    rows[0]["kind"] = "../b"
    plan = replace(planned(lake, scripted(*rows)), transforms=steps(("filter", "id >= 0")))
    at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = lake.spark.conf.get(at_once)
    assert before is not None
    lake.spark.conf.set(at_once, 10)
    request.addfinalizer(lambda: lake.spark.conf.set(at_once, before))
    with pytest.raises(BadRecordError, match=r"'\.\./b' is not a valid table name"):
        lake.run(plan)
    assert list(lake.folder.rglob("staged-*")) == []


def test_filter_that_no_row_can_pass_reads_nothing(lake: Lake) -> None:
    plan = replace(lake.plan(source_of(1, 2)), transforms=steps(("filter", "1 = 0")))
    lake.run(plan)
    assert lake.rows() == []
