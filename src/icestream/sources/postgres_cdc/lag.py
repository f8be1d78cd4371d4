"""How far the slot is behind the end of the log, in bytes and in seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 4096


class Lag:
    """Remembers when the log ended where, to tell the age of what the slot still holds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self._confirmed: int | None = None

    def log_ends(self, lsn: int) -> None:
        """Take note of where the log ends now."""
        with self._lock:
            if not self._ends or lsn > self._ends[-1][1]:
                self._ends.append((self._clock(), lsn))

    def slot_stands(self, lsn: int) -> None:
        """Take note of where the slot stands now."""
        with self._lock:
            self._confirmed = max(lsn, self._confirmed or 0)
            while self._ends and self._ends[0][1] <= self._confirmed and len(self._ends) > 1:
                self._ends.popleft()

    def measure(self) -> dict[str, float]:
        """Return the lag, nothing before the first look."""
        with self._lock:
            if self._confirmed is None or not self._ends:
                return {}
            behind = max(self._ends[-1][1] - self._confirmed, 0)
            oldest = next((at for at, end in self._ends if end > self._confirmed), None)
            seconds = 0.0 if oldest is None else self._clock() - oldest
            return {"slot_lag_bytes": float(behind), "slot_lag_seconds": seconds}
