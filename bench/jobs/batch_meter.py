"""Seconds, CPU seconds and bytes read of a piece of work, by a job that leads its own session."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.process_tree import SYSTEM_TIME, TICKS, USER_TIME, tree

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Usage:
    """What one batch took.

    Attributes:
        seconds: by the clock.
        cpu_s: of every process of the job.
        read_bytes: what their read calls returned, from disk or from memory that the kernel
            keeps of it, and from each other; not what is read through a memory map.
    """

    seconds: float
    cpu_s: float
    read_bytes: int


class BatchMeter:
    """Measures batches of several tables, and keeps what each took."""

    def __init__(self) -> None:
        self._batches: dict[str, list[Usage]] = {}

    @contextmanager
    def batch(self, table: str) -> Iterator[None]:
        """Measure a block, unless it raises."""
        cpu, read = _used()
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        cpu_after, read_after = _used()
        usage = Usage(seconds, max(cpu_after - cpu, 0.0), max(read_after - read, 0))
        self._batches.setdefault(table, []).append(usage)

    def report(self) -> dict[str, list[dict[str, Any]]]:
        """Return what each batch of each table took, as JSON."""
        return {name: [asdict(each) for each in usage] for name, usage in self._batches.items()}


def _used() -> tuple[float, int]:
    cpu = read = 0
    for pid, numbers in tree(os.getpid()):
        cpu += int(numbers[USER_TIME]) + int(numbers[SYSTEM_TIME])
        read += _bytes_read(pid)
    return cpu / TICKS, read


def _bytes_read(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))
