"""Rows inside `pgoutput` messages: finds each value, and returns columns as strings.

A row is a 16-bit number of columns, then for each column a byte that says what follows: `t` for a
32-bit length and a text, `n` for null, `u` for a large value that did not change. All rows are
parsed in parallel, column by column.
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

    Int64Array = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]


# `COPY (SELECT lsn, xid, data ...) TO STDOUT (FORMAT binary)`: the bytes before `data` in a row.
BEFORE_DATA = 26
SIGNATURE = b"PGCOPY\n\xff\r\n\0"
HEADER = len(SIGNATURE) + 8
TRAILER = b"\xff\xff"


@dataclass(frozen=True)
class Messages:
    """`pgoutput` messages, in the order of the log.

    Attributes:
        data: the buffer.
        starts: byte offset of each message.
    """

    data: bytes
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_list(cls, messages: Sequence[bytes]) -> Messages:
        """Join messages."""
        return cls(b"".join(messages), _starts(messages))

    @classmethod
    def from_copy(cls, rows: Sequence[bytes]) -> Messages:
        """Join rows of a binary COPY of `lsn, xid, data`, as libpq returns them.

        They may include the header before the first row and the trailer after the last.
        """
        if rows and rows[0].startswith(SIGNATURE):
            rows = [rows[0][HEADER:], *rows[1:]]
            rows = rows if rows[0] else rows[1:]
        if rows and rows[-1].endswith(TRAILER) and len(rows[-1]) == len(TRAILER):
            rows = rows[:-1]
        return cls(b"".join(rows), _starts(rows) + BEFORE_DATA)

    def split(self) -> tuple[Messages, Messages]:
        """Split the messages into two halves, each with its own buffer."""
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


class ByteView:
    """A buffer, and views of the integers that start at each of its bytes."""

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
        data: the buffer.
        kinds: by column, the kind byte of each row.
        starts: by column, the byte offset of each row's text.
        lengths: by column, the length of each row's text.
        ends: byte offset of the end of each row.
    """

    data: ByteView
    kinds: list[npt.NDArray[np.uint8]]
    starts: list[Int64Array]
    lengths: list[Int64Array]
    ends: Int64Array

    def __len__(self) -> int:
        return len(self.ends)

    def texts(self, column: int) -> pa.Array:
        """Return a column as strings; null where there is no text."""
        count = len(self)
        if count == 0:
            return pa.array([], pa.string())
        # One array that alternates wanted texts and the bytes between them: `take` then copies only
        # the wanted ones.
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self.starts[column]
        offsets[1::2] = self.starts[column] + self.lengths[column]
        buffers = [None, pa.py_buffer(offsets), self.data.buffer]
        alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        is_absent = self.kinds[column] != TEXT
        wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
        return _decode(
            alternating.take(pa.array(wanted, mask=is_absent if is_absent.any() else None))
        )

    def is_unchanged(self, column: int) -> Mask:
        """Tell which rows were sent without the (unchanged) value of a column."""
        return np.equal(self.kinds[column], UNCHANGED)

    def has_text(self, column: int) -> Mask:
        """Tell which rows have a value in a column."""
        return np.equal(self.kinds[column], TEXT)


def parse_tuples(data: ByteView, row_starts: Int64Array, columns: int) -> Tuples:
    """Parse rows.

    Args:
        data: the buffer of the rows.
        row_starts: their byte offsets, ascending.
        columns: how many columns each has.

    Raises:
        ConnectorError: a row has a different number of columns.
    """
    counts = data.int16[row_starts]
    if (counts != columns).any():
        raise ConnectorError(
            f"a row in the log has {int(counts[counts != columns][0])} columns,"
            f" and its table has {columns}"
        )
    kinds, starts, lengths = [], [], []
    offset = row_starts + 2
    for _ in range(columns):
        kind = data.bytes[offset]
        is_text = kind == TEXT
        if is_text.all():
            length = data.int32[offset + 1].astype(np.int64)
            start = offset + 5
        else:
            length = np.zeros(len(offset), np.int64)
            length[is_text] = data.int32[offset[is_text] + 1]
            start = offset + np.where(is_text, 5, 1)
        kinds.append(kind)
        starts.append(start)
        lengths.append(length)
        offset = start + length
    return Tuples(data, kinds, starts, lengths, offset)


def _decode(values: pa.Array) -> pa.Array:
    """Return bytes as strings.

    A database with encoding SQL_ASCII may hold any bytes; invalid UTF-8 becomes U+FFFD.
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [
            None if value is None else value.decode("utf-8", "replace")
            for value in values.to_pylist()
        ]
        return pa.array(decoded, pa.string())
