"""What a process and all that it started used: CPU seconds, and memory at the highest.

Read from `/proc`. The kernel's own sums leave out what nobody waited for, and PySpark leaves its
JVM behind when it exits.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_SECS = 0.1
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Positions in `/proc/PID/stat`, counted behind the command's name in brackets.
PARENT, SESSION, USER_TIME, SYSTEM_TIME, RESIDENT = 1, 3, 11, 12, 21


@dataclass(frozen=True)
class Usage:
    """CPU seconds of every process of the tree, and the highest sum of their resident memory."""

    cpu_s: float
    peak_rss_mb: float


@dataclass
class _Seen:
    cpu: dict[int, float] = field(default_factory=dict)
    peak_rss: int = 0


class TreeWatch:
    """Samples a process that leads a session of its own, and its descendants, until it ends.

    Resident memory counts a page that two processes share twice.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen = _Seen()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def finish(self) -> Usage:
        """Take a last sample and return what was used."""
        self._over.set()
        self._thread.join()
        return Usage(sum(self._seen.cpu.values()), self._seen.peak_rss / (1 << 20))

    def living(self) -> list[int]:
        """Return the processes of the tree that live now."""
        return [pid for pid, _ in tree(self._pid)]

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._over.wait(SAMPLE_SECS):
                self._sample()
                return

    def _sample(self) -> None:
        resident = 0
        for pid, numbers in tree(self._pid):
            ticks = int(numbers[USER_TIME]) + int(numbers[SYSTEM_TIME])
            self._seen.cpu[pid] = max(self._seen.cpu.get(pid, 0.0), ticks / TICKS)
            resident += int(numbers[RESIDENT]) * PAGE
        self._seen.peak_rss = max(self._seen.peak_rss, resident)


def tree(root: int) -> list[tuple[int, list[str]]]:
    """Return the processes that `root` started, directly or not, or that share its session."""
    table = {
        int(path.name): numbers for path in Path("/proc").glob("[0-9]*") if (numbers := _stat(path))
    }
    members = {pid for pid, numbers in table.items() if int(numbers[SESSION]) == root}
    if root in table:
        members.add(root)
    grew = True
    while grew:
        children = {pid for pid, numbers in table.items() if int(numbers[PARENT]) in members}
        grew = not children <= members
        members |= children
    return [(pid, table[pid]) for pid in members]


def _stat(path: Path) -> list[str]:
    try:
        numbers = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if numbers[0] == "Z" else numbers
