"""Rows inside messages of `pgoutput`: where each value is, and the values of a column as strings.

A row is a 16-bit number of columns, then for each column a byte that says what follows: `t` for a
32-bit length and a text, `n` for null, `u` for a large value that did not change. All rows are
walked side by side, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icestream.errors import ConnectorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Places = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]


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


TEXT, UNCHANGED = ord("t"), ord("u")


class Bytes:
    """A buffer, and the numbers that begin at any of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = pa.py_buffer(data)
        self.bytes = np.frombuffer(data, np.uint8)
        self.int16 = self._every(">i2")
        self.int32 = self._every(">i4")
        self.int64 = self._every(">i8")

    def _every(self, kind: str) -> npt.NDArray[np.signedinteger]:
        number = np.dtype(kind)
        count = max(len(self.bytes) - number.itemsize + 1, 0)
        return np.ndarray((count,), number, buffer=self.bytes, strides=(1,))


@dataclass(frozen=True)
class Tuples:
    """Rows of one table.

    Attributes:
        data: what they are in.
        kinds: for each column, of each row, what stands there.
        starts: for each column, of each row, where its text begins.
        lengths: for each column, of each row, how long its text is.
        ends: where each row ends.
    """

    data: Bytes
    kinds: list[npt.NDArray[np.uint8]]
    starts: list[Places]
    lengths: list[Places]
    ends: Places

    def __len__(self) -> int:
        return len(self.ends)

    def texts(self, column: int) -> pa.Array:
        """Return a column as strings, null where there is no text."""
        count = len(self)
        if count == 0:
            return pa.array([], pa.string())
        # One array of what is wanted and what stands between, by turns: Arrow then copies only
        # the wanted ones.
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self.starts[column]
        offsets[1::2] = self.starts[column] + self.lengths[column]
        buffers = [None, pa.py_buffer(offsets), self.data.buffer]
        turns = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        is_absent = self.kinds[column] != TEXT
        wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
        return _decoded(turns.take(pa.array(wanted, mask=is_absent if is_absent.any() else None)))

    def is_unchanged(self, column: int) -> Mask:
        """Tell which rows were sent without the value of a column."""
        return np.equal(self.kinds[column], UNCHANGED)

    def has_text(self, column: int) -> Mask:
        """Tell which rows have a value in a column."""
        return np.equal(self.kinds[column], TEXT)


def walk(data: Bytes, places: Places, columns: int) -> Tuples:
    """Find the values of rows.

    Args:
        data: what the rows are in.
        places: where each begins, in ascending order.
        columns: how many columns each has.

    Raises:
        ConnectorError: a row has another number of columns.
    """
    found = data.int16[places]
    if (found != columns).any():
        raise ConnectorError(
            f"a row in the log has {int(found[found != columns][0])} columns,"
            f" and its table has {columns}"
        )
    kinds, starts, lengths = [], [], []
    place = places + 2
    for _ in range(columns):
        kind = data.bytes[place]
        is_text = kind == TEXT
        if is_text.all():
            length = data.int32[place + 1].astype(np.int64)
            start = place + 5
        else:
            length = np.zeros(len(place), np.int64)
            length[is_text] = data.int32[place[is_text] + 1]
            start = place + np.where(is_text, 5, 1)
        kinds.append(kind)
        starts.append(start)
        lengths.append(length)
        place = start + length
    return Tuples(data, kinds, starts, lengths, place)


def _decoded(values: pa.Array) -> pa.Array:
    """Return bytes as strings.

    A database of encoding SQL_ASCII holds any bytes; those that are no UTF-8 become U+FFFD.
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [
            None if value is None else value.decode("utf-8", "replace")
            for value in values.to_pylist()
        ]
        return pa.array(found, pa.string())
