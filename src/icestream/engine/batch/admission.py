"""The batching rule: where the next batch ends, and when it may begin."""

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
    """How far a pipeline is behind: rows that wait, and how long the oldest has waited."""

    rows: int
    seconds: float


class Admission:
    """Admits a batch when `batch_size` rows wait or the oldest waited `flush_interval_secs`.

    The size is a trigger, never a throttle: whatever waits by then goes into the batch, up to
    `max_batch_rows`.

    Args:
        running: returns how many pipelines of this process run now and share the driver's memory.
        target: with a target, everything up to it is admitted at once and nothing after it.
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
        """Return where a batch that starts at `current` should end, or None to wait."""
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
        # What stays behind has waited as long as we know; the clock goes on for it.
        self._waiting_since = None if end == newest else self._waiting_since
        return end
