"""The text form of a sink's counters."""

from __future__ import annotations

from dataclasses import fields

from prometheus_client.parser import text_string_to_metric_families

from icestream.metrics.registry import MetricsSnapshot, SinkMetrics

SNAPSHOT = MetricsSnapshot(
    records_written=123_456,
    commits_success=199,
    commits_failed=1,
    commit_retries=3,
    batches_flushed=7,
    commit_latency_us=199 * 5_234,
    batch_size_sum=20,
)


def test_counter_has_help_type_and_value() -> None:
    lines = SNAPSHOT.to_prometheus_format("shop").splitlines()

    assert lines[:3] == [
        "# HELP shop_iceberg_records_written_total Total records written",
        "# TYPE shop_iceberg_records_written_total counter",
        "shop_iceberg_records_written_total 123456",
    ]


def test_gauges_have_three_or_four_decimals() -> None:
    lines = SNAPSHOT.to_prometheus_format("shop").splitlines()

    assert "# TYPE shop_iceberg_commit_latency_avg_ms gauge" in lines
    assert "shop_iceberg_commit_latency_avg_ms 5.234" in lines
    assert "shop_iceberg_write_latency_avg_ms 0.000" in lines
    assert "shop_iceberg_batch_size_avg 2.857" in lines
    assert "shop_iceberg_success_rate 0.9950" in lines
    assert "shop_iceberg_retry_rate 0.0150" in lines


def test_every_counter_is_shown_once() -> None:
    lines = SNAPSHOT.to_prometheus_format("shop").splitlines()

    for field in fields(MetricsSnapshot):
        name = f"shop_iceberg_{field.name}_total"
        assert lines.count(f"# TYPE {name} counter") == 1
        assert lines.count(f"{name} {getattr(SNAPSHOT, field.name)}") == 1


def test_text_is_what_prometheus_reads() -> None:
    families = list(text_string_to_metric_families(SNAPSHOT.to_prometheus_format("shop")))

    assert len(families) == 18
    assert all(family.documentation for family in families)
    assert {family.type for family in families} == {"counter", "gauge"}


def test_live_metrics_print_as_their_snapshot() -> None:
    metrics = SinkMetrics()
    metrics.record_batch(rows=1, size=2, files=3, write_secs=4)

    assert metrics.to_prometheus_format("a") == metrics.snapshot().to_prometheus_format("a")
