"""In Python, a CDC source gets the same sink and the same checks as in a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.toys.toy_transform import ShoutOptions, ShoutTransform

from icestream import (
    IcebergOptions,
    IcebergSink,
    KafkaOptions,
    KafkaSource,
    Pipeline,
    PostgresCdcOptions,
    PostgresCdcSource,
    Settings,
    WebhookOptions,
    WebhookSource,
)
from icestream.api.pipeline import _count_as_one_table
from icestream.engine.run import Run
from icestream.errors import PlanError
from icestream.metrics.events import BatchWritten, PipelineRestarted
from icestream.metrics.registry import PipelineMetrics
from icestream.sinks.iceberg.multi.mirror import MirrorSink
from icestream.testing.scripted import ScriptedChanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icestream.contracts.source import Source
    from icestream.plan.plan import PipelinePlan


def postgres() -> PostgresCdcSource:
    return PostgresCdcSource(PostgresCdcOptions(host="localhost", database="shop", user="reader"))


def debezium() -> KafkaSource:
    options = {"brokers": "localhost:9092", "topics": ["shop"], "format": "debezium-json"}
    return KafkaSource(KafkaOptions.model_validate(options))


def webhook() -> WebhookSource:
    return WebhookSource(WebhookOptions(port=8080))


def sink(folder: Path, **options: Any) -> IcebergSink:
    return IcebergSink(IcebergOptions(**options), Settings(state=folder / ".icestream"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[PipelinePlan]:
    """Return the pipelines that were started; none of them runs."""
    plans: list[PipelinePlan] = []
    monkeypatch.setattr(Run, "start", lambda run: plans.extend(run.plan.pipelines))
    return plans


@pytest.mark.parametrize("source", [postgres, debezium, ScriptedChanges])
def test_cdc_source_needs_neither_namespace_nor_table(
    tmp_path: Path, started: list[PipelinePlan], source: Callable[[], Source[Any]]
) -> None:
    Pipeline.from_source(source()).to_sink(sink(tmp_path)).start("shop")

    assert [type(plan.sink) for plan in started] == [MirrorSink]
    assert started[0].sink.identity() == "lake.*"


def test_mirror_may_have_its_own_namespace_and_options(
    tmp_path: Path, started: list[PipelinePlan]
) -> None:
    mirror = sink(tmp_path, namespace=("db",), commit_mode="upsert", delete_mode="soft")

    Pipeline.from_source(postgres()).to_sink(mirror).start("shop")

    assert started[0].sink.identity() == "lake.db.*"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"route_by": "kind"},
            "`route_by` can't be used with a CDC source: each change names its table already"
            "\n  Remove it.",
        ),
        (
            {"commit_mode": "overwrite"},
            "commit_mode 'overwrite' would overwrite the rows of earlier changes\n  Leave it out: "
            "changes are then applied by key. `append` keeps every change as a row.",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_option_that_does_not_apply_to_changes_is_refused(
    tmp_path: Path, started: list[PipelinePlan], options: dict[str, Any], message: str
) -> None:
    pipeline = Pipeline.from_source(postgres()).to_sink(sink(tmp_path, **options))

    with pytest.raises(PlanError) as caught:
        pipeline.start("shop")

    assert str(caught.value) == f"pipeline 'shop', options of the sink: {message}"
    assert started == []


def test_transforms_of_a_cdc_source_apply_to_every_table(
    tmp_path: Path, started: list[PipelinePlan]
) -> None:
    pipeline = Pipeline.from_source(debezium()).filter("id > 0").compute({"a": "upper(a)"})

    pipeline.to_sink(sink(tmp_path)).start("shop")

    assert len(started[0].transforms) == 2


def test_transform_of_a_cdc_source_has_to_work_row_by_row(
    tmp_path: Path, started: list[PipelinePlan]
) -> None:
    shouting = (ShoutTransform(ShoutOptions(column="a")),)
    pipeline = replace(Pipeline.from_source(debezium()), transforms=shouting)

    with pytest.raises(PlanError) as caught:
        pipeline.to_sink(sink(tmp_path)).start("shop")

    assert str(caught.value) == (
        "pipeline 'shop': transform 'ShoutTransform' can't be used with a CDC source: it does not "
        "work row by row\n  Use `filter`, `select`, `compute`, `rename`, `cast` and `drop`, or "
        "transform the mirrored tables where they are read."
    )
    assert started == []


def test_source_of_events_still_needs_a_table(tmp_path: Path, started: list[PipelinePlan]) -> None:
    pipeline = Pipeline.from_source(webhook()).to_sink(sink(tmp_path, namespace=("shop",)))

    with pytest.raises(PlanError, match="'table' is missing"):
        pipeline.start("hooks")

    assert started == []


def test_write_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        sink(tmp_path).write(pa.table({"id": [1]}))

    assert str(caught.value) == (
        "IcebergOptions: `write` needs a table, and the options name none\n"
        "  Set `namespace` and `table`; only changes name their own tables."
    )


def test_counters_of_a_pipeline_sum_its_tables() -> None:
    metrics = PipelineMetrics()
    observe = _count_as_one_table(metrics, "lake.*")

    for table, rows in (("lake.shop.orders", 3), ("lake.shop.tags", 4)):
        observe(BatchWritten("shop", table, 0, rows, 10, 1, 0.5, 0.1, of_many=True))
    observe(PipelineRestarted("shop", 1, "a fault"))

    assert metrics.sink("shop", "lake.*").records_written == 7
    assert metrics.sink("shop", "lake.*").commits_success == 2
