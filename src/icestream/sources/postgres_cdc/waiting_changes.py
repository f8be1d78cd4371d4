"""How many changes wait in the log: counted where they are few, estimated where they are many."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from icestream.sources.postgres_cdc.driver import Driver

COUNTED_BYTES = 1 << 20
COUNT_SECS = 1.0
COUNT_SHARE = 20.0
BYTES_A_ROW = 150.0
LEAST_BYTES_A_ROW = 10.0
# A batch that brought fewer rows tells little about the next.
ENOUGH_ROWS = 1000
LOOKED_BYTES = 64 << 20
STRIDE = 4
LONGEST_STRIDE = 1 << 20


class WaitingChanges:
    """Decides whether what was added to the log is worth a batch.

    Args:
        heartbeat_secs: after so long a batch without rows moves the slot on, so that a quiet
            table does not keep the log of a busy one.
    """

    def __init__(self, heartbeat_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat_secs = heartbeat_secs
        self._clock = clock
        self._bytes_a_row = BYTES_A_ROW
        self._stride = 1
        self._stood_at: tuple[int, float] | None = None
        self._counted: tuple[int, int, int] | None = None  # from where, to where, how many
        self._count_at = float("-inf")

    def end(self, driver: Driver, start: int) -> int:
        """Return where the log ends if a batch from `start` is worth it, else `start`."""
        now = self._clock()
        if self._stood_at is None or self._stood_at[0] != start:
            self._stood_at = (start, now)
        end = driver.end_of_log()
        if end <= start:
            return start
        if end - start >= COUNTED_BYTES:
            return end
        counted = self._count(driver, start, end)
        if counted is not None and counted[2]:
            return counted[1]
        return end if now - self._stood_at[1] >= self._heartbeat_secs else start

    def _count(self, driver: Driver, start: int, end: int) -> tuple[int, int, int] | None:
        """Return the newest count from a place, made anew at most once a second."""
        is_known = self._counted is not None and self._counted[0] == start
        if is_known and self._counted is not None and self._counted[1] == end:
            return self._counted
        now = self._clock()
        if now >= self._count_at or not is_known:
            self._counted = (start, end, driver.count_changes(end))
            # The server begins to read at the oldest transaction that is open: it may take long.
            took = self._clock() - now
            self._count_at = now + max(COUNT_SECS, COUNT_SHARE * took)
        return self._counted

    def rows(self, start: int, end: int) -> int:
        """Return about how many rows are between two places; at least one unless none can be."""
        if end <= start:
            return 0
        if self._counted is not None and self._counted[:2] == (start, end):
            return max(self._counted[2], 1)
        return max(int((end - start) / self._bytes_a_row), 1)

    def cap(self, driver: Driver, start: int, end: int, max_rows: int) -> int:
        """Return a place about so many rows away."""
        if self.rows(start, end) <= max_rows:
            return end
        step = max(int(max_rows * self._bytes_a_row), 1)
        if step >= COUNTED_BYTES and self._stride == 1:
            return min(start + step, end)
        # Log of other databases tells nothing of ours, and small steps through it would never
        # end. So the server is asked, which passes over it, but not over all of it in one go.
        horizon = min(start + max(step, LOOKED_BYTES) * self._stride, end)
        told = driver.place_after(start, horizon, max_rows)
        return horizon if told is None else min(told, horizon)

    def learn(self, size: int, rows: int) -> None:
        """Take note of how many rows a piece of the log brought."""
        if size <= 0:
            return
        if rows == 0:
            # A long transaction, or somebody else's: each peek reads it from its beginning.
            if size >= COUNTED_BYTES:
                self._stride = min(self._stride * STRIDE, LONGEST_STRIDE)
            return
        self._stride = 1
        if rows >= ENOUGH_ROWS or size >= COUNTED_BYTES:
            seen = max(size / rows, LEAST_BYTES_A_ROW)
            self._bytes_a_row = min(seen, (self._bytes_a_row + seen) / 2)
