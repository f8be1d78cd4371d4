"""How a pipeline is doing: for the live view, the log and the status file."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from icestream.contracts.offset import BatchMark
    from icestream.engine.batch.batch import BatchResult

RATE_WINDOW_SECS = 30.0


class Progress:
    """The state of one pipeline, safe to read while it changes.

    Attributes:
        state: `starting`, `running`, `waiting` (for a restart), `stopped`, `finished`, `failed`.
    """

    def __init__(self, pipeline: str, table: str) -> None:
        self.pipeline = pipeline
        self.table = table
        self.state = "starting"
        self.rows = 0
        self.bad = 0
        self.batches = 0
        self.epoch: int | None = None
        self.lag_rows = 0
        self.lag_secs = 0.0
        self.last_commit: float | None = None
        self.snapshot_id: int | None = None
        self.error: BaseException | None = None
        self.committed: dict[str, Any] | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def restore(self, status: dict[str, Any] | None) -> None:
        """Restore from an earlier run the newest batch that the table should hold."""
        if status is not None:
            self.committed = status.get("committed")

    def remember_commit(self, mark: BatchMark | None) -> None:
        """Record the newest batch that the table holds, for the next start to compare."""
        self.committed = (
            None
            if mark is None
            else {"table": self.table, "query_id": mark.query_id, "epoch": mark.epoch}
        )

    def set_state(self, state: str) -> None:
        """Set the state, and clear the last error."""
        with self._lock:
            self.state, self.error = state, None

    def set_waiting(self, error: BaseException) -> None:
        """Set the state to waiting for a restart after a fault."""
        with self._lock:
            self.state, self.error = "waiting", error

    def fail(self, error: BaseException) -> None:
        """Set the state to failed."""
        with self._lock:
            self.state, self.error = "failed", error

    def measure(self, rows: int, seconds: float) -> None:
        """Record the lag."""
        with self._lock:
            self.lag_rows, self.lag_secs = rows, seconds

    def add(self, epoch: int, result: BatchResult) -> None:
        """Record a committed batch."""
        with self._lock:
            self.epoch = epoch
            self.batches += 1
            self.bad += result.bad + result.refused
            if result.commit is not None:
                now = time.time()
                self.rows += result.commit.rows
                # The lag when the batch began, less its rows; the next measurement replaces it.
                self.lag_rows = max(self.lag_rows - result.commit.rows, 0)
                self.last_commit = now
                self.snapshot_id = result.commit.snapshot_id
                self._recent.append((now, result.commit.rows))
                self._forget(now)

    def rows_per_second(self) -> float:
        """Return the rate over the last half minute."""
        with self._lock:
            now = time.time()
            self._forget(now)
            if not self._recent:
                return 0.0
            span = max(now - self._recent[0][0], 1.0)
            return sum(rows for _, rows in self._recent) / span

    def _forget(self, now: float) -> None:
        """Drop samples that are too old for the rate."""
        while self._recent and now - self._recent[0][0] > RATE_WINDOW_SECS:
            self._recent.popleft()

    def to_json(self) -> dict[str, Any]:
        """Return the content of the status file."""
        with self._lock:
            return {
                "pipeline": self.pipeline,
                "table": self.table,
                "state": self.state,
                "pid": os.getpid(),
                "rows": self.rows,
                "committed": self.committed,
                "bad": self.bad,
                "batches": self.batches,
                "epoch": self.epoch,
                "lag_rows": self.lag_rows,
                "lag_secs": round(self.lag_secs, 3),
                "last_commit_at": _iso(self.last_commit),
                "snapshot_id": self.snapshot_id,
                "error": _error_json(self.error, is_over=self.state == "failed"),
                "updated_at": _iso(time.time()),
            }


def _iso(moment: float | None) -> str | None:
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, tz=timezone.utc).isoformat(timespec="milliseconds")


def _error_json(error: BaseException | None, *, is_over: bool) -> dict[str, Any] | None:
    if error is None:
        return None
    # After the first batch, refused credentials are retried, so no action is needed yet.
    needs_person = is_over and isinstance(error, IcestreamError) and error.exit_code == 5
    return {"type": type(error).__name__, "message": str(error), "needs_person": needs_person}
