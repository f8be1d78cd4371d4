"""Messages of logical decoding as one buffer and the places in it where each begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

# `COPY (SELECT lsn, xid, data ...) TO STDOUT (FORMAT binary)`: what stands before `data` in a row.
BEFORE_DATA = 26
SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = len(SIGNATURE) + 8
TRAILER = b"\xff\xff"


@dataclass(frozen=True)
class Messages:
    """Messages of `pgoutput`, in the order of the log.

    Attributes:
        data: a buffer that holds them.
        starts: where in it each begins.
    """

    data: bytes
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Messages:
        """Join messages."""
        return cls(b"".join(messages), _starts(messages))

    @classmethod
    def of_copy(cls, rows: Sequence[bytes]) -> Messages:
        """Join rows of a binary COPY of `lsn, xid, data`, as psycopg gives them one by one.

        The header before the first row and the trailer after the last may be among them.
        """
        if rows and rows[0].startswith(SIGNATURE):
            rows = [rows[0][HEADER:], *rows[1:]]
            rows = rows if rows[0] else rows[1:]
        if rows and rows[-1].endswith(TRAILER) and len(rows[-1]) == len(TRAILER):
            rows = rows[:-1]
        return cls(b"".join(rows), _starts(rows) + BEFORE_DATA)

    def halves(self) -> tuple[Messages, Messages]:
        """Return the messages in two parts, each with its own buffer."""
        middle = len(self) // 2
        cut = int(self.starts[middle])
        return (
            Messages(self.data[:cut], self.starts[:middle]),
            Messages(self.data[cut:], self.starts[middle:] - cut),
        )


def _starts(parts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=starts[1:])
    return starts[:-1]
