"""Rows with keys, made from their numbers, and changes to them: the same for every contender."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

SEED = 20_240_601
ROWS_A_BATCH = 262_144
VALUES = 1_000  # how many different values there are; all whole, so that sums are exact
ACCOUNTS = 500
SECONDS = 30 * 86_400
FIRST_SECOND = 1_717_200_000
NOTES = pa.array([f"made by hand, lot {number:02}" for number in range(64)])
# Odd, so that no two numbers meet; large, so that neighbours part.
SPREAD = np.uint64(0x9E3779B97F4A7C15)
POSITIVE = np.uint64((1 << 63) - 1)
HEX = np.array([f"{byte:02x}".encode() for byte in range(256)]).view(np.uint16)

KEYS: dict[str, dict[str, pa.DataType]] = {
    "long": {"id": pa.int64()},
    "string": {"code": pa.string()},
    "pair": {"account": pa.string(), "number": pa.int64()},
}
REST = {"value": pa.float64(), "note": pa.string(), "ts": pa.timestamp("us", tz="UTC")}


def schema(kind: str) -> pa.Schema:
    """Return the columns of a table with a kind of key."""
    return pa.schema({**KEYS[kind], **REST})


def spread(numbers: Ints) -> Ints:
    """Return a long for each number, no two alike, in no order."""
    found: Ints = ((numbers.astype(np.uint64) * SPREAD) & POSITIVE).view(np.int64)
    return found


def first_values(numbers: Ints) -> Ints:
    """Return the value that each row has before any change."""
    return numbers * 7_919 % VALUES


def rows(kind: str, numbers: Ints, values: Ints) -> pa.RecordBatch:
    """Return the rows of some numbers, with given values."""
    seconds = FIRST_SECOND + numbers % SECONDS
    rest = [
        pa.array(values.astype(np.float64)),
        NOTES.take(pa.array(numbers % len(NOTES))),
        pa.array(seconds * 1_000_000).cast(REST["ts"]),
    ]
    return pa.RecordBatch.from_arrays([*_keys(kind, numbers), *rest], schema=schema(kind))


def _keys(kind: str, numbers: Ints) -> list[pa.Array]:
    longs = spread(numbers)
    if kind == "long":
        return [pa.array(longs)]
    if kind == "string":
        return [_texts(longs)]
    accounts = pa.array([f"account-{number:03}" for number in range(ACCOUNTS)])
    return [accounts.take(pa.array(numbers % ACCOUNTS)), pa.array(longs)]


def _texts(longs: Ints) -> pa.Array:
    """Return 18 characters for each long: `u-` and its hexadecimal digits."""
    count = len(longs)
    digits = HEX[longs.astype(">i8").view(np.uint8).reshape(count, 8)]
    text = np.empty((count, 9), np.uint16)
    text[:, 0] = np.frombuffer(b"u-", np.uint16)[0]
    text[:, 1:] = digits
    offsets = np.arange(count + 1, dtype=np.int32) * 18
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.StringArray.from_buffers(count, *buffers[1:])


def batches(kind: str, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of numbers as they are before any change."""
    for begin in range(first, end, ROWS_A_BATCH):
        numbers = np.arange(begin, min(begin + ROWS_A_BATCH, end), dtype=np.int64)
        yield rows(kind, numbers, first_values(numbers))


@dataclass
class Expected:
    """What a table holds that began with the numbers 0 to `first_rows` - 1."""

    first_rows: int
    changed: dict[int, int | None] = field(default_factory=dict)

    def upsert(self, numbers: Ints, values: Ints) -> None:
        self.changed.update(zip(numbers.tolist(), values.tolist(), strict=True))

    def delete(self, numbers: Ints) -> None:
        self.changed.update(dict.fromkeys(numbers.tolist()))

    @property
    def count(self) -> int:
        known = sum(number < self.first_rows for number in self.changed)
        return self.first_rows - known + sum(v is not None for v in self.changed.values())

    @property
    def total(self) -> int:
        """The sum of the values."""
        whole, rest = divmod(self.first_rows, VALUES)
        cycle = first_values(np.arange(VALUES, dtype=np.int64))
        total = whole * int(cycle.sum()) + int(cycle[:rest].sum())
        known = np.array([n for n in self.changed if n < self.first_rows], np.int64)
        total -= int(first_values(known).sum())
        return total + sum(v for v in self.changed.values() if v is not None)


def random_changes(table_rows: int, batch: int, count: int) -> tuple[Ints, Ints]:
    """Return the numbers and values of a batch: half of them rows that are there, in no order.

    No number comes twice in a batch, and each batch adds rows that no other one adds.
    """
    draw = np.random.default_rng([SEED, table_rows, batch])
    updates = min(count // 2, table_rows)
    inserts = count - updates
    known = draw.choice(table_rows, updates, replace=False, shuffle=False)
    new = table_rows + batch * inserts + np.arange(inserts)
    numbers = draw.permutation(np.concatenate([known, new]).astype(np.int64))
    return numbers, draw.integers(0, VALUES, count, dtype=np.int64)
