"""Counters of one sink: added to by many threads, read as a whole."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields, replace
from threading import Lock

from icestream.metrics.prometheus import as_text


class Computed(ABC):
    """Values that follow from the counters. Where nothing was counted they are 0."""

    @abstractmethod
    def snapshot(self) -> MetricsSnapshot:
        """Return the counters as they are at one moment."""

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
        """Return the number of retries for each commit."""
        counts = self.snapshot()
        return _ratio(counts.commit_retries, counts.commits_success + counts.commits_failed)

    def bytes_per_second(self, secs: float) -> float:
        """Return the bytes written in each of `secs` seconds."""
        return _ratio(self.snapshot().bytes_written, secs)

    def records_per_second(self, secs: float) -> float:
        """Return the records written in each of `secs` seconds."""
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
        return as_text(prefix, asdict(counts), thousandths, rates)


@dataclass(frozen=True)
class MetricsSnapshot(Computed):
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
        """Read what `to_json` wrote; ValueError if it is something else."""
        found = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or found.keys() != names:
            raise ValueError("the text is not a JSON object with the counters of a sink")
        for name, value in found.items():
            if type(value) is not int:
                raise ValueError(f"counter {name!r} is {value!r}, not a whole number")
        return cls(**found)


class _Count:
    """One counter of a live `SinkMetrics`, read only."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, metrics: SinkMetrics, owner: type | None = None) -> int:
        return int(getattr(metrics.snapshot(), self._name))


class SinkMetrics(Computed):
    """The live counters of one sink.

    Any thread may record and read. What one call records is seen as a whole or not at all.
    """

    records_written = _Count()
    records_failed = _Count()
    bytes_written = _Count()
    commits_success = _Count()
    commits_failed = _Count()
    commit_retries = _Count()
    files_created = _Count()
    batches_flushed = _Count()
    commit_latency_us = _Count()
    write_latency_us = _Count()
    batch_size_min = _Count()
    batch_size_max = _Count()
    batch_size_sum = _Count()

    def __init__(self) -> None:
        self._lock = Lock()
        # Replaced, never changed: whoever holds it has a consistent set.
        self._counts = MetricsSnapshot()

    def record_batch(self, *, rows: int, size: int, files: int, write_secs: float) -> None:
        """Count a batch whose files are written, `size` bytes in all."""
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
        """Count a commit that the table took, after `retries` attempts that it refused."""
        with self._lock:
            old = self._counts
            self._counts = replace(
                old,
                commits_success=old.commits_success + 1,
                commit_retries=old.commit_retries + retries,
                commit_latency_us=old.commit_latency_us + _microseconds(commit_secs),
            )

    def record_failed_commit(self, *, retries: int = 0) -> None:
        """Count a commit that the table refused for good."""
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
        """Return the counters and begin again at zero; no count is lost in between."""
        with self._lock:
            taken, self._counts = self._counts, MetricsSnapshot()
            return taken


def _ratio(value: float, of: float) -> float:
    return value / of if of else 0.0


def _microseconds(secs: float) -> int:
    return round(secs * 1_000_000)
