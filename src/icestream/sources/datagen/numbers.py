"""Random-looking numbers that depend on nothing but a seed, a column and a row's number."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Whole: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]"
Signed: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
Fraction: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def scramble(numbers: Whole, salt: int) -> Whole:
    """Return one well-mixed 64-bit number for each of `numbers` (SplitMix64).

    Different salts give unrelated numbers. There is no state: row 10 is the same whether the rows
    before it were made or not, so that any range can be read again.
    """
    mixed = (numbers + np.uint64(salt & _MASK)) * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


class Dice:
    """The numbers of a range of rows, column by column.

    Args:
        seed: another seed gives other rows.
        rows: the rows' numbers.
    """

    def __init__(self, seed: int, rows: Signed) -> None:
        self.rows = rows
        self._base = scramble(rows.astype(np.uint64), seed)

    def roll(self, column: str) -> Whole:
        """Return one 64-bit number a row for a column."""
        return scramble(self._base, crc32(column.encode()))

    def below(self, column: str, limit: int) -> Signed:
        """Return whole numbers from 0 up to, not including, `limit`."""
        return (self.roll(column) % np.uint64(limit)).astype(np.int64)

    def fraction(self, column: str) -> Fraction:
        """Return fractions from 0 up to, not including, 1."""
        return (self.roll(column) >> np.uint64(11)).astype(np.float64) / float(1 << 53)

    def pick(self, column: str, choices: Sequence[str], weights: Sequence[float] = ()) -> pa.Array:
        """Return one of `choices` a row, by weight where weights are given."""
        if weights:
            edges = np.cumsum(np.array(weights, dtype=np.float64))
            picked = np.searchsorted(edges / edges[-1], self.fraction(column), side="right")
        else:
            picked = self.below(column, len(choices))
        return pa.array(choices, pa.string()).take(pa.array(picked.astype(np.int64)))


def decimals(unscaled: Signed, kind: pa.Decimal128Type) -> pa.Array:
    """Return whole numbers as decimals: 1999 is 19.99 where the scale is 2."""
    halves = np.empty((len(unscaled), 2), dtype=np.int64)
    halves[:, 0] = unscaled
    halves[:, 1] = unscaled >> 63
    return pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(halves)])
