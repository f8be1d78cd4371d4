"""Which transactions a snapshot of PostgreSQL sees, by the 32 bits that the log tells of their ids.

The text of a snapshot, such as `741:750:743,746`, has ids of 64 bits, which never come round; the
log has their lower half, which does. No two ids that are in use at a time are further apart than
half of the circle, so the nearest one is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Visibility:
    """What a snapshot sees.

    Attributes:
        xmin: every transaction before it had ended.
        xmax: no transaction from it on had begun.
        running: those between the two that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, snapshot: str) -> Visibility:
        """Read the text of a `pg_snapshot`."""
        xmin, xmax, running = snapshot.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell of each 32-bit transaction id whether the snapshot sees what it did."""
        ahead = (xids - self.xmax) & 0xFFFFFFFF
        full = self.xmax + np.where(ahead >= 1 << 31, ahead - (1 << 32), ahead)
        seen: npt.NDArray[np.bool_] = full < self.xmax
        if self.running:
            seen &= ~np.isin(full, np.fromiter(self.running, np.int64, len(self.running)))
        return seen


def is_visible(xid: int, snapshot: str) -> bool:
    """Tell whether a snapshot, given as text, sees a transaction, given by 32 bits of its id."""
    return bool(Visibility.parse(snapshot).sees(np.array([xid], np.int64))[0])
