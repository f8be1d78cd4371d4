"""Counters add up, with any number of threads that count and read."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from threading import Barrier, Thread

import pytest

from icestream.metrics.registry import MetricsSnapshot, SinkMetrics

NAMES = [field.name for field in fields(MetricsSnapshot)]


def busy() -> SinkMetrics:
    metrics = SinkMetrics()
    metrics.record_batch(rows=100, size=5_000, files=2, write_secs=0.25)
    metrics.record_batch(rows=300, size=7_000, files=1, write_secs=0.75)
    metrics.record_commit(commit_secs=0.004)
    metrics.record_commit(commit_secs=0.006, retries=2)
    metrics.record_failed_commit(retries=3)
    metrics.record_failed_records(7)
    return metrics


def test_every_counter_counts() -> None:
    assert busy().snapshot() == MetricsSnapshot(
        records_written=400,
        records_failed=7,
        bytes_written=12_000,
        commits_success=2,
        commits_failed=1,
        commit_retries=5,
        files_created=3,
        batches_flushed=2,
        commit_latency_us=10_000,
        write_latency_us=1_000_000,
        batch_size_min=100,
        batch_size_max=300,
        batch_size_sum=400,
    )


@pytest.mark.parametrize("name", NAMES)
def test_live_counter_reads_like_the_snapshot(name: str) -> None:
    metrics = busy()

    assert getattr(metrics, name) == getattr(metrics.snapshot(), name)


def test_live_counter_cannot_be_set_on_a_snapshot() -> None:
    with pytest.raises(FrozenInstanceError):
        busy().snapshot().records_written = 1  # type: ignore[misc]


def test_counters_and_computed_values_before_the_first_batch() -> None:
    fresh = SinkMetrics()

    assert all(getattr(fresh, name) == 0 for name in NAMES)
    assert fresh.avg_commit_latency_ms == 0
    assert fresh.avg_write_latency_ms == 0
    assert fresh.avg_batch_size == 0
    assert fresh.success_rate == 1.0
    assert fresh.retry_rate == 0
    assert fresh.bytes_per_second(10) == 0
    assert fresh.records_per_second(0) == 0


@pytest.mark.parametrize("metrics", [busy(), busy().snapshot()], ids=["live", "snapshot"])
def test_computed_values(metrics: SinkMetrics | MetricsSnapshot) -> None:
    assert metrics.avg_commit_latency_ms == 5.0
    assert metrics.avg_write_latency_ms == 500.0
    assert metrics.avg_batch_size == 200.0
    assert metrics.success_rate == pytest.approx(2 / 3)
    assert metrics.retry_rate == pytest.approx(5 / 3)
    assert metrics.bytes_per_second(6) == 2_000.0
    assert metrics.records_per_second(4) == 100.0
    assert metrics.bytes_per_second(0) == 0
    assert metrics.records_per_second(0) == 0


def test_smallest_batch_is_zero_only_before_the_first_or_for_an_empty_one() -> None:
    metrics = SinkMetrics()
    assert metrics.batch_size_min == 0

    metrics.record_batch(rows=9, size=1, files=1, write_secs=0)
    assert metrics.batch_size_min == 9

    metrics.record_batch(rows=0, size=0, files=0, write_secs=0)
    assert metrics.batch_size_min == 0


def test_only_failed_commits_have_a_success_rate_of_zero() -> None:
    metrics = SinkMetrics()
    metrics.record_failed_commit()

    assert metrics.success_rate == 0.0


def test_reset_sets_the_counters_to_zero() -> None:
    metrics = busy()
    before = metrics.snapshot()

    assert metrics.snapshot_and_reset() == before
    assert metrics.snapshot() == MetricsSnapshot()
    metrics.record_batch(rows=50, size=1, files=1, write_secs=0)
    assert metrics.batch_size_min == 50


def test_no_count_is_lost_between_snapshot_and_reset() -> None:
    metrics = SinkMetrics()
    writers, each = 4, 2_000
    start = Barrier(writers + 1)

    def write() -> None:
        start.wait()
        for _ in range(each):
            metrics.record_batch(rows=3, size=10, files=1, write_secs=0.001)
            metrics.record_commit(commit_secs=0.002, retries=1)

    threads = [Thread(target=write) for _ in range(writers)]
    for thread in threads:
        thread.start()
    start.wait()
    taken = []
    while any(thread.is_alive() for thread in threads):
        taken.append(metrics.snapshot_and_reset())
    taken.append(metrics.snapshot_and_reset())

    total = writers * each
    assert sum(part.records_written for part in taken) == 3 * total
    assert sum(part.commits_success for part in taken) == total
    assert sum(part.commit_retries for part in taken) == total
    assert sum(part.write_latency_us for part in taken) == 1_000 * total
    # Readers see all of a batch or nothing of it.
    assert all(part.records_written == 3 * part.batches_flushed for part in taken)
    assert all(part.bytes_written == 10 * part.files_created for part in taken)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "the text is not a JSON object with the counters of a sink"),
        ('{"records_written": 1}', "the text is not a JSON object with the counters of a sink"),
        (
            json.dumps({**json.loads(MetricsSnapshot().to_json()), "files_created": "3"}),
            "counter 'files_created' is '3', not an integer",
        ),
    ],
)
def test_other_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MetricsSnapshot.from_json(text)
