"""Places where a test can end the process, as a power cut would.

`ICESTREAM_CRASH_AT=before-commit:3` ends the process the third time it gets there. Without the
variable nothing happens.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

POINTS = ("before-write", "before-commit", "after-commit", "after-batch")
# Reached once for each table of a batch, and only where there are many.
AFTER_TABLE = "after-table"
VARIABLE = "ICESTREAM_CRASH_AT"

_reached: Counter[str] = Counter()
_one_at_a_time = threading.Lock()  # tables are committed side by side


def crash_point(point: str) -> None:
    """End the process with SIGKILL if this is the place and the time that was asked for."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    name, _, times = wanted.partition(":")
    with _one_at_a_time:
        _reached[point] += 1
        if name == point and _reached[point] == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)
