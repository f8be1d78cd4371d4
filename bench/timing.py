"""Times a call that is too short to be a process of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each of so many calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken
