"""Crash points: places where a test can kill the process, as a power cut would.

`ICESTREAM_CRASH_AT=before-commit:3` kills the process the third time it reaches that
point. Without the variable nothing happens.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

POINTS = ("before-write", "before-commit", "after-commit", "after-batch")
# Reached once for each table of a batch, only in sinks of many tables.
AFTER_TABLE = "after-table"
VARIABLE = "ICESTREAM_CRASH_AT"

_reached: Counter[str] = Counter()
_one_at_a_time = threading.Lock()  # tables are committed concurrently


def crash_point(point: str) -> None:
    """Kill the process with SIGKILL if the variable names this point and count."""
    setting = os.environ.get(VARIABLE)
    if not setting:
        return
    name, _, times = setting.partition(":")
    with _one_at_a_time:
        _reached[point] += 1
        if name == point and _reached[point] == int(times or 1):
            os.kill(os.getpid(), signal.SIGKILL)
