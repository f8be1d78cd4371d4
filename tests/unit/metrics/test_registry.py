"""Events become Prometheus series."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from icestream.metrics.events import (
    BatchSkipped,
    BatchWritten,
    CommitFailed,
    ExpectationUnmet,
    LagMeasured,
    MultiTableBatchWritten,
    PipelineRestarted,
    RecordsFailed,
)
from icestream.metrics.registry import PipelineMetrics

WRITTEN = BatchWritten(
    pipeline="orders",
    table="lake.sales.orders",
    epoch=4,
    rows=1_500,
    bytes=64_000,
    files=2,
    write_secs=0.5,
    commit_secs=0.2,
    retries=1,
    snapshot_id=77,
    newest_row_at=1_000.0,
)
LABELS = {"pipeline": "orders", "table": "lake.sales.orders"}


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_010.0

    def __call__(self) -> float:
        return self.seconds


def value(metrics: PipelineMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels or LABELS)


def test_written_batch_is_counted_under_the_documented_names() -> None:
    metrics = PipelineMetrics(now=Clock())

    metrics.observe(WRITTEN)
    metrics.observe(replace(WRITTEN, epoch=5, rows=500, retries=0, commit_secs=3.0))

    assert value(metrics, "iceberg_records_written_total") == 2_000
    assert value(metrics, "iceberg_batches_committed_total") == 2
    assert value(metrics, "iceberg_bytes_written_total") == 128_000
    assert value(metrics, "iceberg_commit_duration_seconds_count") == 2
    assert value(metrics, "iceberg_commit_duration_seconds_sum") == pytest.approx(3.2)
    quick = value(metrics, "iceberg_commit_duration_seconds_bucket", **LABELS, le="0.25")
    assert quick == 1
    assert value(metrics, "iceberg_records_per_batch_bucket", **LABELS, le="1000.0") == 1
    assert value(metrics, "iceberg_records_per_batch_sum") == 2_000
    assert value(metrics, "icestream_commit_retries_total") == 1
    assert value(metrics, "icestream_last_commit_timestamp_seconds") == 1_010.0


def test_written_batch_reaches_the_sinks_own_counters() -> None:
    metrics = PipelineMetrics()

    metrics.observe(WRITTEN)
    metrics.observe(CommitFailed("orders", "lake.sales.orders", retries=3, reason="moved"))
    metrics.observe(RecordsFailed("orders", "lake.sales.orders", count=5, dead_letters=4))

    counts = metrics.sink("orders", "lake.sales.orders").snapshot()
    assert (counts.records_written, counts.records_failed) == (1_500, 5)
    assert (counts.commits_success, counts.commits_failed, counts.commit_retries) == (1, 1, 4)
    assert (counts.files_created, counts.bytes_written) == (2, 64_000)
    assert (counts.commit_latency_us, counts.write_latency_us) == (200_000, 500_000)
    assert list(metrics.sinks()) == [("orders", "lake.sales.orders")]


def test_expectations_are_counted_by_name() -> None:
    metrics = PipelineMetrics()
    for name, count in (("positive", 2), ("positive", 3), ("known", 1)):
        metrics.observe(ExpectationUnmet("orders", "lake.sales.orders", name, count))

    series = "icestream_expectation_failures_total"
    assert value(metrics, series, **LABELS, expectation="positive") == 5
    assert value(metrics, series, **LABELS, expectation="known") == 1


def test_tables_are_counted_separately() -> None:
    metrics = PipelineMetrics()
    metrics.observe(WRITTEN)
    metrics.observe(replace(WRITTEN, table="lake.sales.refunds", rows=3))

    assert value(metrics, "iceberg_records_written_total") == 1_500
    refunds = value(
        metrics, "iceberg_records_written_total", pipeline="orders", table="lake.sales.refunds"
    )
    assert refunds == 3


def test_freshness_grows_while_nothing_is_committed() -> None:
    clock = Clock()
    metrics = PipelineMetrics(now=clock)
    metrics.observe(WRITTEN)

    assert value(metrics, "icestream_freshness_seconds") == 10.0
    clock.seconds += 5
    assert value(metrics, "icestream_freshness_seconds") == 15.0

    metrics.observe(replace(WRITTEN, newest_row_at=1_014.0))
    assert value(metrics, "icestream_freshness_seconds") == 1.0


def test_older_row_does_not_make_a_table_less_fresh() -> None:
    metrics = PipelineMetrics(now=Clock())
    metrics.observe(WRITTEN)
    metrics.observe(replace(WRITTEN, newest_row_at=500.0))

    assert value(metrics, "icestream_freshness_seconds") == 10.0


def test_freshness_is_absent_where_it_is_unknown() -> None:
    metrics = PipelineMetrics()
    metrics.observe(replace(WRITTEN, newest_row_at=None))

    assert value(metrics, "icestream_freshness_seconds") is None


def test_failures_lag_and_restarts_are_counted() -> None:
    metrics = PipelineMetrics()

    metrics.observe(CommitFailed("orders", "lake.sales.orders", retries=3, reason="moved"))
    metrics.observe(RecordsFailed("orders", "lake.sales.orders", count=5, dead_letters=4))
    metrics.observe(BatchSkipped("orders", "lake.sales.orders", epoch=3))
    metrics.observe(MultiTableBatchWritten("orders", 3, 0, 1, 0, 0, 0.1, 0.2))
    metrics.observe(LagMeasured("orders", rows=42, seconds=1.5))
    metrics.observe(PipelineRestarted("orders", attempt=1, reason="broker away"))

    assert value(metrics, "icestream_commits_failed_total") == 1
    assert value(metrics, "icestream_commit_retries_total") == 3
    assert value(metrics, "icestream_records_failed_total") == 5
    assert value(metrics, "icestream_dead_letters_total") == 4
    assert value(metrics, "icestream_batches_skipped_total") == 1
    assert value(metrics, "icestream_source_lag_rows", pipeline="orders") == 42
    assert value(metrics, "icestream_source_lag_seconds", pipeline="orders") == 1.5
    assert value(metrics, "icestream_pipeline_restarts_total", pipeline="orders") == 1


def test_lag_in_seconds_is_absent_where_it_is_unknown() -> None:
    metrics = PipelineMetrics()
    metrics.observe(LagMeasured("orders", rows=42, seconds=None))

    assert value(metrics, "icestream_source_lag_seconds", pipeline="orders") is None


def test_no_created_series_is_shown() -> None:
    metrics = PipelineMetrics()
    metrics.observe(WRITTEN)

    page = generate_latest(metrics.registry).decode()

    assert "iceberg_records_written_total{" in page
    assert "_created" not in page


def test_two_metrics_of_one_process_are_independent() -> None:
    one, other = PipelineMetrics(), PipelineMetrics()
    one.observe(WRITTEN)

    assert value(other, "iceberg_records_written_total") is None


def test_measurement_of_a_source_becomes_a_gauge() -> None:
    metrics = PipelineMetrics()
    behind = {"slot_lag_bytes": 4096.0, "slot_lag_seconds": 2.5}

    metrics.observe(LagMeasured("orders", rows=0, seconds=0.0, measures=behind))

    labels = {"pipeline": "orders"}
    assert metrics.registry.get_sample_value("icestream_slot_lag_bytes", labels) == 4096
    assert metrics.registry.get_sample_value("icestream_slot_lag_seconds", labels) == 2.5
