"""Turns the engine's events into counters and Prometheus series."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from icestream.metrics.counters import SinkMetrics
from icestream.metrics.events import (
    BatchSkipped,
    BatchSpread,
    BatchWritten,
    CommitFailed,
    Event,
    ExpectationUnmet,
    LagMeasured,
    PipelineRestarted,
    RecordsFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

_COMMIT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS_A_BATCH = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
_TABLE = ("pipeline", "table")
_PIPELINE = ("pipeline",)


class _PlainRegistry(CollectorRegistry):
    """A registry without the `_created` series, which double the page and say little.

    The client library can leave them out only for the whole process, which is its owner's to ask.
    """

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


class PipelineMetrics:
    """The metrics of every pipeline of a process.

    `observe` may be called from any thread.

    Args:
        now: gives the time, in seconds since 1970.
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
            BatchSpread: lambda _: None,  # counted table by table
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
            "How long a commit took, its retries included.",
            _TABLE,
            registry=self.registry,
            buckets=_COMMIT_SECONDS,
        )
        self._batch_rows = Histogram(
            "iceberg_records_per_batch",
            "Records in a batch.",
            _TABLE,
            registry=self.registry,
            buckets=_ROWS_A_BATCH,
        )
        self._skipped = self._counter(
            "icestream_batches_skipped", "Replayed batches that the table held already."
        )
        self._failed = self._counter("icestream_records_failed", "Records that could not be used.")
        self._dead = self._counter("icestream_dead_letters", "Records kept as dead letters.")
        self._unmet = self._counter(
            "icestream_expectation_failures",
            "Records that do not meet an expectation.",
            (*_TABLE, "expectation"),
        )
        self._retries = self._counter("icestream_commit_retries", "Commit attempts made again.")
        self._refused = self._counter("icestream_commits_failed", "Commits refused for good.")
        self._restarts = self._counter(
            "icestream_pipeline_restarts", "Restarts after a passing fault.", _PIPELINE
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
            self._note_newest_row(labels, event.newest_row_at)

    def _note_newest_row(self, labels: tuple[str, str], at: float) -> None:
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
        self._note_measures(event)

    def _note_measures(self, event: LagMeasured) -> None:
        for name, value in event.measures.items():
            with self._lock:
                if name not in self._measures:
                    meaning = f"{name.replace('_', ' ').capitalize()} of the source."
                    self._measures[name] = self._gauge(f"icestream_{name}", meaning, _PIPELINE)
            self._measures[name].labels(event.pipeline).set(value)

    def _pipeline_restarted(self, event: PipelineRestarted) -> None:
        self._restarts.labels(event.pipeline).inc()
