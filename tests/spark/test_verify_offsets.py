"""`verify` of tables that real pipelines appended to, and that were damaged afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.errors import CheckpointLostError
from icestream.plan.plan import Batching
from icestream.testing.scripted import ScriptedSource
from icestream.transforms.filter import FilterOptions, FilterTransform
from icestream.verify.pipelines import _offset_pipeline

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan
    from icestream.verify.offsets import OffsetReport

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string())])
BATCHING = Batching(1, 0.1, 10)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "kind": "odd" if number % 2 else "even"} for number in range(count)]


def plan_of(lake: Lake, count: int, **options: Any) -> PipelinePlan:
    source = ScriptedSource(schema=SCHEMA)
    source.append_rows(rows(count))
    return lake.plan(source, batching=BATCHING, **options)


def verify(lake: Lake, plan: PipelinePlan) -> OffsetReport:
    pipeline = _offset_pipeline(plan)
    (table,) = pipeline.tables()
    return pipeline.check.report(table)  # type: ignore[arg-type]


def table(lake: Lake) -> Any:
    return lake.catalog.client().load_table((*lake.namespace, "events"))


def call(lake: Lake, procedure: str) -> None:
    lake.sql(f"CALL lake.system.{procedure}")


def test_appended_batches_join(lake: Lake) -> None:
    plan = plan_of(lake, 35)
    lake.run(plan)
    report = verify(lake, plan)
    assert (report.status, report.problems) == ("same", ())
    assert (report.batches, report.rows, report.records, report.total) == (4, 35, 35, 35)
    assert (report.start, report.end) == ('{"row": 0}', '{"row": 35}')


def test_batches_without_rows_and_filtered_records_leave_no_gap(lake: Lake) -> None:
    # Batches of ten rows; those from 10 to 29 have no row that passes.
    condition = FilterTransform(FilterOptions(expr="id < 10 or id % 2 = 0 and id >= 30"))
    plan = replace(plan_of(lake, 40), transforms=(condition,))
    lake.run(plan)
    report = verify(lake, plan)
    assert (report.status, report.problems) == ("same", ())
    assert (report.batches, report.rows, report.records) == (2, 15, 20)


def test_compaction_is_no_difference(lake: Lake) -> None:
    plan = plan_of(lake, 30)
    lake.run(plan)
    call(lake, "rewrite_data_files(table => 'db.events', options => map('rewrite-all', 'true'))")
    report = verify(lake, plan)
    assert (report.status, report.batches, report.total) == ("same", 3, 30)


def test_rows_that_another_writer_deleted_are_reported(lake: Lake) -> None:
    plan = plan_of(lake, 30)
    lake.run(plan)
    lake.sql("DELETE FROM lake.db.events WHERE id < 10")
    snapshot = table(lake).current_snapshot().snapshot_id
    report = verify(lake, plan)
    assert [(problem.kind, problem.what) for problem in report.problems] == [
        ("removed", f"another tool removed 10 rows in snapshot {snapshot} (delete)")
    ]
    assert (report.status, report.total) == ("different", 20)


def test_rollback_is_reported_before_and_after_the_pipeline_goes_on(lake: Lake) -> None:
    plan = plan_of(lake, 30)
    lake.run(plan)
    first = table(lake).snapshots()[0].snapshot_id
    call(lake, f"rollback_to_snapshot('db.events', {first})")
    assert [problem.kind for problem in verify(lake, plan).problems] == ["lost"]

    more = plan_of(lake, 40)
    with pytest.raises(CheckpointLostError):
        lake.run(more)
    lake.run(more, recovery="resume")
    snapshot = table(lake).current_snapshot().snapshot_id
    report = verify(lake, more)
    assert [problem.what for problem in report.problems] == [
        f"20 offsets missing before batch 3 (snapshot {snapshot}): row from 10 to 30"
    ]
    assert (report.status, report.rows) == ("different", 20)


def test_source_that_was_read_again_is_reported(lake: Lake) -> None:
    plan = plan_of(lake, 10)
    lake.run(plan)
    lake.run(plan, recovery="start-over")
    report = verify(lake, plan)
    snapshot = table(lake).current_snapshot().snapshot_id
    assert [problem.what for problem in report.problems] == [
        f"10 offsets read again by batch 0 (snapshot {snapshot}): row from 0 to 10"
    ]
    assert report.total == 20


def test_upserts_are_verified_without_their_rows(lake: Lake) -> None:
    plan = plan_of(lake, 30, commit_mode="upsert", key_fields=("kind",))
    lake.run(plan)
    report = verify(lake, plan)
    assert (report.status, report.batches, report.rows) == ("same", 3, None)
