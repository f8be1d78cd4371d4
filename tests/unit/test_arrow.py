"""Arrow data in pieces of bounded size."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.arrow import group_by_bytes, split_by_bytes
from icestream.contracts.decoder import Records, split_by_size

TEXTS = st.lists(st.text(max_size=40), max_size=30)


def batch(texts: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.string())})


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=5), st.integers(1, 300))
def test_chunks_contain_every_row_in_order_and_are_bounded(
    blocks: list[list[str]], most: int
) -> None:
    found = list(group_by_bytes([batch(texts) for texts in blocks], most))
    texts = [row for piece in found for part in piece for row in part["text"].to_pylist()]
    assert texts == [text for block in blocks for text in block]
    for piece in found:
        rows = sum(part.num_rows for part in piece)
        assert sum(part.nbytes for part in piece) <= most or rows <= 1


def test_row_that_is_larger_than_the_bound_is_alone() -> None:
    found = list(split_by_bytes(batch(["a", "x" * 1_000, "b"]), 100))
    assert [part["text"].to_pylist() for part in found] == [["a"], ["x" * 1_000], ["b"]]


@settings(deadline=None)
@given(TEXTS, st.integers(1, 300))
def test_records_are_split_with_their_other_columns(texts: list[str], most: int) -> None:
    values = pa.array([text.encode() for text in texts], pa.binary())
    # More than one Arrow array can hold comes in chunks.
    beside = pa.chunked_array([pa.array(range(len(texts)), pa.int64())])
    records = Records(values, {"number": beside}, lambda index: f"record {index}")
    found = [part for part in split_by_size(records, most) if isinstance(part, Records)]
    assert [value for part in found for value in part.values.to_pylist()] == values.to_pylist()
    assert [n for part in found for n in part.extra["number"].to_pylist()] == list(
        range(len(texts))
    )
    places = [part.position(index) for part in found for index in range(len(part.values))]
    assert places == [f"record {index}" for index in range(len(texts))]
    assert all(part.nbytes <= most or len(part.values) <= 1 for part in found)
