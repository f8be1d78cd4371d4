"""Keys as numbers: exact if the key is one number, else a 128-bit hash.

Two keys do not collide by chance in 128 bits, and making them collide on purpose is too expensive:
text is hashed twice with SipHash, under different keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from pyiceberg.types import IcebergType

    Numbers = npt.NDArray[np.uint64]


NUMBERS = (
    BooleanType,
    IntegerType,
    LongType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
)
TEXTS = (StringType, BinaryType, FixedType, UUIDType, DecimalType)
# Never change these: existing index files would no longer match.
TEXT_SEEDS = ("icestream-keys-a", "icestream-keys-b")
NUMBER_SEEDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


class Fingerprints(NamedTuple):
    """The keys of rows. `high` is None if `low` is the key itself."""

    low: Numbers
    high: Numbers | None


def is_number(kind: IcebergType) -> bool:
    """Tell whether values of a type are whole numbers of at most 64 bits."""
    return isinstance(kind, NUMBERS)


def can_be_key(kind: IcebergType) -> bool:
    """Tell whether a column of this type can be part of a key."""
    return isinstance(kind, (*NUMBERS, *TEXTS))


def fingerprints(columns: Sequence[pa.Array]) -> Fingerprints:
    """Return the keys of rows from the key columns, which have no nulls."""
    if len(columns) == 1 and _is_number(columns[0].type):
        return Fingerprints(numbers(columns[0]).view(np.uint64), None)
    halves = []
    for side in (0, 1):
        total = np.zeros(len(columns[0]), np.uint64)
        for column in columns:
            total = _mix_bits(total + _half(column, side))
        halves.append(total)
    return Fingerprints(halves[0], halves[1])


def numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers, dates or times as 64-bit integers."""
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32()).cast(pa.int64())
    elif column.type != pa.int64():
        column = column.view(pa.int64())
    integers: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return integers


def _half(column: pa.Array, side: int) -> Numbers:
    if _is_number(column.type):
        return _mix_bits(numbers(column).view(np.uint64) + NUMBER_SEEDS[side])
    from pandas.util import hash_array

    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    texts = column.to_numpy(zero_copy_only=False)
    hashed: Numbers = hash_array(texts, hash_key=TEXT_SEEDS[side], categorize=False)
    return hashed


def _mix_bits(value: Numbers) -> Numbers:
    """Spread every bit of a number over all of it (the finaliser of SplitMix64)."""
    value = value ^ (value >> np.uint64(30))
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_timestamp(kind)
    )
