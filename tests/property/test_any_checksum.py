"""Two values have the same hash if and only if they are the same value, however nested.

Both sides of `icestream verify` hash Arrow batches with this one function, so it stands for both.
"""

from __future__ import annotations

import math
import struct
from datetime import date, datetime, time
from decimal import Decimal
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.verify.checksums import ComparisonSpec, hash_rows

DOUBLES = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf])
MOMENTS = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 1, 1))  # noqa: DTZ001
# Few of each, so that similar values occur together often.
TEXTS = st.text(max_size=3) | st.sampled_from(["", "null", "[]", "NULL", '"', "a,b", "\\x00"])

SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-2, 2),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0]),
    pa.float64(): DOUBLES,
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=3) | st.sampled_from([b"\\x00", b"\x00"]),
    pa.decimal128(38, 2): st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2)),
    pa.date32(): st.dates(min_value=date(1, 1, 1)),
    pa.time64("us"): st.times() | st.just(time(0)),
    pa.timestamp("us"): MOMENTS,
}

Column = tuple[pa.DataType, st.SearchStrategy[Any]]


def lists(element: Column) -> Column:
    kind, values = element
    return pa.list_(kind), st.lists(st.none() | values, max_size=3)


def structs(fields: list[Column]) -> Column:
    kind = pa.struct([(f"f{at}", each) for at, (each, _) in enumerate(fields)])
    values = {f"f{at}": st.none() | each for at, (_, each) in enumerate(fields)}
    return kind, st.fixed_dictionaries(values)


COLUMNS: st.SearchStrategy[Column] = st.recursive(
    st.sampled_from(list(SCALARS.items())),
    lambda inner: inner.map(lists) | st.lists(inner, min_size=1, max_size=2).map(structs),
    max_leaves=3,
)


def identity(value: Any, kind: pa.DataType) -> Any:
    """Return a key that two values share exactly if they are the same value."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return ["list", *(identity(each, kind.value_type) for each in value)]
    if pa.types.is_struct(kind):
        return ["struct", *(identity(value[field.name], field.type) for field in kind)]
    if pa.types.is_floating(kind):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    return value


def hashes(values: pa.Array) -> list[int]:
    """Return the hash that each row of one column contributes to the checksums."""
    rows = pa.RecordBatch.from_arrays([values], ["value"])
    (hashed,) = hash_rows([rows], ComparisonSpec(rows.schema, (), 1), [0])
    by_column = [each for (each,) in hashed.column("hashes").to_pylist()]
    assert hashed.column("hash").to_pylist() == by_column
    return by_column


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_hashes_are_equal_only_for_equal_values(data: st.DataObject) -> None:
    kind, values = data.draw(COLUMNS)
    drawn = data.draw(st.lists(st.none() | values, min_size=2, max_size=8))
    hashed = hashes(pa.array(drawn, kind))
    for (one, its), (other, others) in combinations(zip(drawn, hashed, strict=True), 2):
        assert (its == others) is (identity(one, kind) == identity(other, kind))


INTS = pa.list_(pa.int32())
PAIR = pa.struct([("a", pa.int32()), ("b", pa.int32())])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (INTS, [None, [], [None], [None, None], [0], [0, 0]]),
        (
            pa.list_(INTS),
            [None, [], [[]], [None], [[1], [2]], [[1, 2]], [[], [1, 2]], [[1, 2], []]],
        ),
        (pa.list_(pa.string()), [["a,b"], ["a", "b"], ["null"], [None], [""], []]),
        (PAIR, [None, {"a": None, "b": None}, {"a": 1, "b": None}, {"a": None, "b": 1}]),
        (pa.list_(PAIR), [[None], [{"a": None, "b": None}], [], None]),
        (pa.map_(pa.string(), pa.int32()), [None, [], [("a", None)], [("a", 1)], [("b", 1)]]),
        (pa.float64(), [None, 0.0, -0.0, math.nan, math.inf, 5e-324]),
        (pa.float32(), [None, 0.0, -0.0, math.nan, -math.inf]),
        (
            pa.list_(pa.float64()),
            [[0.0], [-0.0], [math.nan], [None], [0.1], [math.nextafter(0.1, 1)]],
        ),
    ],
    ids=str,
)
def test_similar_values_have_different_hashes(kind: pa.DataType, values: list[Any]) -> None:
    hashed = hashes(pa.array(values, kind))
    pairs = combinations(zip(values, hashed, strict=True), 2)
    assert [(one, other) for (one, its), (other, others) in pairs if its == others] == []
    assert hashes(pa.array(values[::-1], kind)) == hashed[::-1]


def test_nan_is_one_value_whatever_its_bits() -> None:
    bits = pa.array([0x7FF8000000000000, -0x8000000000000, 0x7FF0000000000001], pa.int64())
    assert len(set(hashes(bits.view(pa.float64())))) == 1
