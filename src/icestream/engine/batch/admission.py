"""Decides when the next batch starts, and at which offset it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Source
    from icestream.plan.plan import Batching


@dataclass(frozen=True)
class Lag:
    """How far a pipeline is behind: the pending rows, and how long the oldest has waited."""

    rows: int
    seconds: float


class Admission:
    """Admits a batch at `batch_size` pending rows, or when the oldest is `flush_interval_secs` old.

    `batch_size` is a trigger, never a limit: all pending rows go into the batch, up to
    `max_batch_rows`.

    Args:
        running: returns how many running pipelines of this process share the driver's memory.
        target: if given, everything up to this offset is admitted at once, and nothing after it.
    """

    def __init__(
        self,
        source: Source[Any],
        batching: Batching,
        *,
        target: Offset | None = None,
        clock: Callable[[], float] = time.monotonic,
        running: Callable[[], int] = lambda: 1,
    ) -> None:
        self._source = source
        self._batching = batching
        self._target = target
        self._clock = clock
        self._running = running
        self._waiting_since: float | None = None
        self.lag = Lag(0, 0.0)

    def next_end(self, current: Offset) -> Offset | None:
        """Return the end offset for a batch that starts at `current`, or None to wait."""
        newest = self._target if self._target is not None else self._source.latest(current)
        rows = self._source.rows_between(current, newest)
        if rows == 0:
            self._waiting_since = None
            self.lag = Lag(0, 0.0)
            return None
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        waited = now - self._waiting_since
        self.lag = Lag(rows, waited)
        enough = (
            rows >= self._batching.batch_size
            or waited >= self._batching.flush_interval_secs
            or self._target is not None
            or self._source.ends(newest)
        )
        if not enough:
            return None
        most_rows = self._batching.most_rows(self._running())
        end = self._source.limit(current, newest, most_rows)
        # Rows left out of this batch keep their waiting time.
        self._waiting_since = None if end == newest else self._waiting_since
        return end
