"""Merging inferred types, in any order."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from icestream.formats.inference import _LONG, DAY, EMPTY, LOCAL, NULL, TEXT, ZONED, merge

FLAT = [
    NULL,
    EMPTY,
    _LONG,
    TEXT,
    DAY,
    LOCAL,
    ZONED,
    pa.bool_(),
    pa.binary(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(10, 0),
    pa.decimal128(12, 0),
    pa.decimal128(38, 0),
    pa.decimal128(10, 2),
    pa.decimal128(12, 2),
]
KINDS = [
    *FLAT,
    *(pa.list_(kind) for kind in FLAT),
    *(pa.struct([("x", kind)]) for kind in FLAT),
    pa.struct([]),
    pa.map_(pa.string(), pa.int64()),
]


def test_merged_type_does_not_depend_on_the_order() -> None:
    for one, other in itertools.combinations(KINDS, 2):
        assert merge(one, other) == merge(other, one), f"{one}, {other}"


def test_merged_type_does_not_depend_on_which_types_are_merged_first() -> None:
    for one, two, three in itertools.product(KINDS, repeat=3):
        left, right = merge(merge(one, two), three), merge(one, merge(two, three))
        assert left == right, f"{one}, {two}, {three}"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (_LONG, pa.float32(), TEXT),
        (_LONG, pa.decimal128(38, 0), pa.decimal128(38, 0)),
        (pa.int64(), pa.decimal128(10, 0), pa.decimal128(38, 0)),
        (pa.int64(), pa.decimal128(10, 2), TEXT),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 0), pa.float64(), TEXT),
    ],
    ids=str,
)
def test_merged_number_holds_the_values_of_both(
    one: pa.DataType, other: pa.DataType, expected: pa.DataType
) -> None:
    assert merge(one, other) == expected
