"""Turns the engine's events into counters and Prometheus series."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields, replace
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from icestream.metrics.events import (
    BatchSkipped,
    BatchWritten,
    CommitFailed,
    Event,
    ExpectationUnmet,
    LagMeasured,
    MultiTableBatchWritten,
    PipelineRestarted,
    RecordsFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client import Metric


_HELP = {
    "records_written": "Total records written",
    "records_failed": "Total records failed",
    "bytes_written": "Total bytes written",
    "commits_success": "Total successful commits",
    "commits_failed": "Total failed commits",
    "commit_retries": "Total commit retries",
    "files_created": "Total files created",
    "batches_flushed": "Total batches flushed",
    "commit_latency_us": "Total commit latency in microseconds",
    "write_latency_us": "Total write latency in microseconds",
    "batch_size_min": "Records in the smallest batch",
    "batch_size_max": "Records in the largest batch",
    "batch_size_sum": "Total records in all batches",
    "commit_latency_avg_ms": "Average commit latency in milliseconds",
    "write_latency_avg_ms": "Average write latency in milliseconds",
    "batch_size_avg": "Average records in a batch",
    "success_rate": "Share of commits that succeeded",
    "retry_rate": "Retries for each commit",
}


def prometheus_text(
    prefix: str,
    counters: Mapping[str, int],
    thousandths: Mapping[str, float],
    rates: Mapping[str, float],
) -> str:
    """Return counters and gauges as lines of `name value`, each with its HELP and TYPE.

    Args:
        prefix: what every name starts with, before `_iceberg_`.
        counters: counters by name; `_total` is added to each.
        thousandths: gauges shown with 3 decimals.
        rates: gauges shown with 4 decimals.
    """
    lines: list[str] = []
    for name, count in counters.items():
        lines += _series(f"{prefix}_iceberg_{name}_total", "counter", _HELP[name], str(count))
    for name, value in thousandths.items():
        lines += _series(f"{prefix}_iceberg_{name}", "gauge", _HELP[name], f"{value:.3f}")
    for name, value in rates.items():
        lines += _series(f"{prefix}_iceberg_{name}", "gauge", _HELP[name], f"{value:.4f}")
    return "\n".join(lines) + "\n"


def _series(name: str, kind: str, meaning: str, value: str) -> tuple[str, str, str]:
    return (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value}")


class ComputedMetrics(ABC):
    """Values computed from the counters; 0 where nothing was counted."""

    @abstractmethod
    def snapshot(self) -> MetricsSnapshot:
        """Return the counters at one moment."""

    @property
    def avg_commit_latency_ms(self) -> float:
        """Return the mean time of a commit, in milliseconds."""
        counts = self.snapshot()
        return _ratio(counts.commit_latency_us, counts.commits_success * 1_000)

    @property
    def avg_write_latency_ms(self) -> float:
        """Return the mean time to write a batch's files, in milliseconds."""
        counts = self.snapshot()
        return _ratio(counts.write_latency_us, counts.batches_flushed * 1_000)

    @property
    def avg_batch_size(self) -> float:
        """Return the mean number of rows in a batch."""
        counts = self.snapshot()
        return _ratio(counts.batch_size_sum, counts.batches_flushed)

    @property
    def success_rate(self) -> float:
        """Return the share of commits that succeeded; 1.0 before the first."""
        counts = self.snapshot()
        commits = counts.commits_success + counts.commits_failed
        return counts.commits_success / commits if commits else 1.0

    @property
    def retry_rate(self) -> float:
        """Return the number of retries per commit."""
        counts = self.snapshot()
        return _ratio(counts.commit_retries, counts.commits_success + counts.commits_failed)

    def bytes_per_second(self, secs: float) -> float:
        """Return the bytes written per second over `secs` seconds."""
        return _ratio(self.snapshot().bytes_written, secs)

    def records_per_second(self, secs: float) -> float:
        """Return the records written per second over `secs` seconds."""
        return _ratio(self.snapshot().records_written, secs)

    def to_prometheus_format(self, prefix: str) -> str:
        """Return the counters and computed values in Prometheus' text format."""
        counts = self.snapshot()
        thousandths = {
            "commit_latency_avg_ms": counts.avg_commit_latency_ms,
            "write_latency_avg_ms": counts.avg_write_latency_ms,
            "batch_size_avg": counts.avg_batch_size,
        }
        rates = {"success_rate": counts.success_rate, "retry_rate": counts.retry_rate}
        return prometheus_text(prefix, asdict(counts), thousandths, rates)


@dataclass(frozen=True)
class MetricsSnapshot(ComputedMetrics):
    """The counters of a sink at one moment. Times are in microseconds."""

    records_written: int = 0
    records_failed: int = 0
    bytes_written: int = 0
    commits_success: int = 0
    commits_failed: int = 0
    commit_retries: int = 0
    files_created: int = 0
    batches_flushed: int = 0
    commit_latency_us: int = 0
    write_latency_us: int = 0
    batch_size_min: int = 0
    batch_size_max: int = 0
    batch_size_sum: int = 0

    def snapshot(self) -> MetricsSnapshot:
        return self

    def to_json(self) -> str:
        """Return the counters as a JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MetricsSnapshot:
        """Read what `to_json` wrote; raises ValueError for anything else."""
        counters = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(counters, dict) or counters.keys() != names:
            raise ValueError("the text is not a JSON object with the counters of a sink")
        for name, value in counters.items():
            if type(value) is not int:
                raise ValueError(f"counter {name!r} is {value!r}, not an integer")
        return cls(**counters)


class _CounterView:
    """One counter of a live `SinkMetrics`, read only."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, metrics: SinkMetrics, owner: type | None = None) -> int:
        return int(getattr(metrics.snapshot(), self._name))


class SinkMetrics(ComputedMetrics):
    """The live counters of one sink.

    Any thread may record and read. Readers see everything that a call records, or nothing of it.
    """

    records_written = _CounterView()
    records_failed = _CounterView()
    bytes_written = _CounterView()
    commits_success = _CounterView()
    commits_failed = _CounterView()
    commit_retries = _CounterView()
    files_created = _CounterView()
    batches_flushed = _CounterView()
    commit_latency_us = _CounterView()
    write_latency_us = _CounterView()
    batch_size_min = _CounterView()
    batch_size_max = _CounterView()
    batch_size_sum = _CounterView()

    def __init__(self) -> None:
        self._lock = Lock()
        # Replaced, never changed, so that readers have a consistent set.
        self._counts = MetricsSnapshot()

    def record_batch(self, *, rows: int, size: int, files: int, write_secs: float) -> None:
        """Count a batch whose files are written, `size` bytes in total."""
        with self._lock:
            old = self._counts
            is_first = old.batches_flushed == 0
            self._counts = replace(
                old,
                records_written=old.records_written + rows,
                bytes_written=old.bytes_written + size,
                files_created=old.files_created + files,
                batches_flushed=old.batches_flushed + 1,
                write_latency_us=old.write_latency_us + _microseconds(write_secs),
                batch_size_min=rows if is_first else min(old.batch_size_min, rows),
                batch_size_max=max(old.batch_size_max, rows),
                batch_size_sum=old.batch_size_sum + rows,
            )

    def record_commit(self, *, commit_secs: float, retries: int = 0) -> None:
        """Count a successful commit, after `retries` failed attempts."""
        with self._lock:
            old = self._counts
            self._counts = replace(
                old,
                commits_success=old.commits_success + 1,
                commit_retries=old.commit_retries + retries,
                commit_latency_us=old.commit_latency_us + _microseconds(commit_secs),
            )

    def record_failed_commit(self, *, retries: int = 0) -> None:
        """Count a commit that failed even after its retries."""
        with self._lock:
            old = self._counts
            self._counts = replace(
                old,
                commits_failed=old.commits_failed + 1,
                commit_retries=old.commit_retries + retries,
            )

    def record_failed_records(self, count: int) -> None:
        """Count records that could not be written."""
        with self._lock:
            old = self._counts
            self._counts = replace(old, records_failed=old.records_failed + count)

    def snapshot(self) -> MetricsSnapshot:
        return self._counts

    def snapshot_and_reset(self) -> MetricsSnapshot:
        """Return the counters and reset them to zero, without losing a count in between."""
        with self._lock:
            taken, self._counts = self._counts, MetricsSnapshot()
            return taken


def _ratio(value: float, of: float) -> float:
    return value / of if of else 0.0


def _microseconds(secs: float) -> int:
    return round(secs * 1_000_000)


_COMMIT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS_PER_BATCH = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_TABLE = ("pipeline", "table")
_PIPELINE = ("pipeline",)


class _PlainRegistry(CollectorRegistry):
    """A registry without the `_created` series, which double the page and add little.

    The client library can disable them only for the whole process, which is the owner's decision.
    """

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


class PipelineMetrics:
    """The metrics of every pipeline of a process.

    `observe` may be called from any thread.

    Args:
        now: returns the time in epoch seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry: CollectorRegistry = _PlainRegistry()
        self._now = now
        self._lock = Lock()
        self._sinks: dict[tuple[str, str], SinkMetrics] = {}
        # The time of the newest row of each table, so that its age is right at every scrape.
        self._newest_row_at: dict[tuple[str, str], float] = {}
        self._measures: dict[str, Gauge] = {}
        self._observers: dict[type, Callable[..., None]] = {
            BatchWritten: self._batch_written,
            BatchSkipped: self._batch_skipped,
            MultiTableBatchWritten: lambda _: None,  # counted table by table
            CommitFailed: self._commit_failed,
            RecordsFailed: self._records_failed,
            ExpectationUnmet: self._expectation_unmet,
            LagMeasured: self._lag_measured,
            PipelineRestarted: self._pipeline_restarted,
        }
        self._make_series()

    def observe(self, event: Event) -> None:
        """Count an event."""
        self._observers[type(event)](event)

    def sink(self, pipeline: str, table: str) -> SinkMetrics:
        """Return the live counters of a pipeline's table."""
        with self._lock:
            return self._sinks.setdefault((pipeline, table), SinkMetrics())

    def sinks(self) -> dict[tuple[str, str], SinkMetrics]:
        """Return the live counters by pipeline and table."""
        with self._lock:
            return dict(self._sinks)

    def _make_series(self) -> None:
        self._records = self._counter("iceberg_records_written", "Records written.")
        self._batches = self._counter("iceberg_batches_committed", "Successful commits.")
        self._bytes = self._counter("iceberg_bytes_written", "Bytes of data files written.")
        self._commit_secs = Histogram(
            "iceberg_commit_duration_seconds",
            "How long a commit took, including retries.",
            _TABLE,
            registry=self.registry,
            buckets=_COMMIT_SECONDS,
        )
        self._batch_rows = Histogram(
            "iceberg_records_per_batch",
            "Records in a batch.",
            _TABLE,
            registry=self.registry,
            buckets=_ROWS_PER_BATCH,
        )
        self._skipped = self._counter(
            "icestream_batches_skipped", "Replayed batches that the table already held."
        )
        self._failed = self._counter("icestream_records_failed", "Records that could not be used.")
        self._dead = self._counter("icestream_dead_letters", "Records kept as dead letters.")
        self._unmet = self._counter(
            "icestream_expectation_failures",
            "Records that fail an expectation.",
            (*_TABLE, "expectation"),
        )
        self._retries = self._counter(
            "icestream_commit_retries", "Commit attempts that were retried."
        )
        self._refused = self._counter("icestream_commits_failed", "Commits that failed for good.")
        self._restarts = self._counter(
            "icestream_pipeline_restarts", "Restarts after a transient fault.", _PIPELINE
        )
        self._lag_rows = self._gauge(
            "icestream_source_lag_rows", "Rows in the source that are not read yet.", _PIPELINE
        )
        self._lag_secs = self._gauge(
            "icestream_source_lag_seconds", "Age of the oldest row not read yet.", _PIPELINE
        )
        self._freshness = self._gauge(
            "icestream_freshness_seconds", "Age of the newest committed row, now."
        )
        self._committed_at = self._gauge(
            "icestream_last_commit_timestamp_seconds", "When the last commit was made."
        )

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...] = _TABLE) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...] = _TABLE) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)

    def _batch_written(self, event: BatchWritten) -> None:
        labels = (event.pipeline, event.table)
        sink = self.sink(*labels)
        sink.record_batch(
            rows=event.rows, size=event.bytes, files=event.files, write_secs=event.write_secs
        )
        sink.record_commit(commit_secs=event.commit_secs, retries=event.retries)
        self._records.labels(*labels).inc(event.rows)
        self._batches.labels(*labels).inc()
        self._bytes.labels(*labels).inc(event.bytes)
        self._commit_secs.labels(*labels).observe(event.commit_secs)
        self._batch_rows.labels(*labels).observe(event.rows)
        self._retries.labels(*labels).inc(event.retries)
        self._committed_at.labels(*labels).set(self._now())
        if event.newest_row_at is not None:
            self._record_newest_row(labels, event.newest_row_at)

    def _record_newest_row(self, labels: tuple[str, str], at: float) -> None:
        with self._lock:
            is_first = labels not in self._newest_row_at
            self._newest_row_at[labels] = max(at, self._newest_row_at.get(labels, at))
        if is_first:
            self._freshness.labels(*labels).set_function(
                lambda: self._now() - self._newest_row_at[labels]
            )

    def _batch_skipped(self, event: BatchSkipped) -> None:
        self._skipped.labels(event.pipeline, event.table).inc()

    def _commit_failed(self, event: CommitFailed) -> None:
        self.sink(event.pipeline, event.table).record_failed_commit(retries=event.retries)
        self._refused.labels(event.pipeline, event.table).inc()
        self._retries.labels(event.pipeline, event.table).inc(event.retries)

    def _records_failed(self, event: RecordsFailed) -> None:
        self.sink(event.pipeline, event.table).record_failed_records(event.count)
        self._failed.labels(event.pipeline, event.table).inc(event.count)
        self._dead.labels(event.pipeline, event.table).inc(event.dead_letters)

    def _expectation_unmet(self, event: ExpectationUnmet) -> None:
        self._unmet.labels(event.pipeline, event.table, event.expectation).inc(event.count)

    def _lag_measured(self, event: LagMeasured) -> None:
        self._lag_rows.labels(event.pipeline).set(event.rows)
        if event.seconds is not None:
            self._lag_secs.labels(event.pipeline).set(event.seconds)
        self._record_measures(event)

    def _record_measures(self, event: LagMeasured) -> None:
        for name, value in event.measures.items():
            with self._lock:
                if name not in self._measures:
                    meaning = f"{name.replace('_', ' ').capitalize()} of the source."
                    self._measures[name] = self._gauge(f"icestream_{name}", meaning, _PIPELINE)
            self._measures[name].labels(event.pipeline).set(value)

    def _pipeline_restarted(self, event: PipelineRestarted) -> None:
        self._restarts.labels(event.pipeline).inc()
