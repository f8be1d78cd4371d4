"""The common type in which a column of two tables is compared."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from icestream.verify.checksums import common_type, convert
from icestream.verify.comparison import find_shared_columns


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int32(), pa.int32(), pa.int32()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.string()),
        (pa.binary(), pa.large_binary(), pa.binary()),
        (pa.uuid(), pa.binary(16), pa.binary()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 0), pa.decimal128(12, 4), pa.decimal128(14, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.list_(pa.string()), None),
        (pa.int32(), pa.string(), None),
        (pa.date32(), pa.timestamp("us"), None),
    ],
)
def test_type_that_holds_both(
    one: pa.DataType, other: pa.DataType, expected: pa.DataType | None
) -> None:
    assert common_type(one, other) == expected
    assert common_type(other, one) == expected


def test_uuids_are_compared_by_their_bytes() -> None:
    value = uuid.uuid4()
    values = pa.array([value.bytes, None], pa.uuid())
    assert convert(values, pa.binary()).to_pylist() == [value.bytes, None]


def test_lists_keep_their_shape() -> None:
    flat = pa.array([b"a" * 16, None, b"b" * 16, b"c" * 16], pa.uuid())
    offsets, nulls = pa.array([0, 1, 3, 3, 4], pa.int32()), pa.array([False, False, True, False])
    lists = pa.ListArray.from_arrays(offsets, flat, mask=nulls)
    expected = [[b"a" * 16], [None, b"b" * 16], None, [b"c" * 16]]
    assert convert(lists, pa.list_(pa.binary())).to_pylist() == expected
    assert convert(lists[1:], pa.list_(pa.binary())).to_pylist() == expected[1:]


def test_columns_of_one_side_are_listed_separately() -> None:
    source = pa.schema([("id", pa.int32()), ("new", pa.string()), ("odd", pa.string())])
    lake = pa.schema([("old", pa.string()), ("odd", pa.date32()), ("id", pa.int64())])
    shared = find_shared_columns(source, lake)
    assert shared.columns == pa.schema([("id", pa.int64())])
    assert (shared.only_in_source, shared.only_in_lake) == (("new",), ("old",))
    assert shared.incompatible == ("odd (string, date32[day])",)
