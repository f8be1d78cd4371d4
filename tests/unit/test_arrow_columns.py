"""Rows that need no decoder get other types only where no value changes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.arrow import cast_losslessly


@given(
    rows=st.lists(st.none() | st.lists(st.none() | st.floats(width=32)), min_size=1),
    low=st.integers(0, 5),
)
def test_slice_of_lists_keeps_its_values(rows: list[list[float | None] | None], low: int) -> None:
    array = pa.array(rows, pa.list_(pa.float64())).slice(low)

    result = cast_losslessly(array, pa.list_(pa.float32()))

    assert str(result.to_pylist()) == str(rows[low:])
