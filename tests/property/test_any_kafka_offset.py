"""Whatever the offsets, batches and splits cover each of them once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.sources.kafka import source as kafka_source


def at(*offsets: int) -> dict[str, Any]:
    positions = {("orders", number): offset for number, offset in enumerate(offsets)}
    return kafka_source.build_offset({"orders": "x1"}, positions, {})


@settings(deadline=None)
@given(
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    max_rows=st.integers(1, 100),
)
def test_limited_batches_reach_the_end_and_never_pass_it(ends: list[int], max_rows: int) -> None:
    here, end = at(*([0] * len(ends))), at(*ends)
    while here != end:
        there = kafka_source.limit_offset(here, end, max_rows)
        moved = sum(span.rows for span in kafka_source.spans_between(here, there))
        assert 0 < moved <= max_rows
        assert all(span.rows >= 0 for span in kafka_source.spans_between(there, end))
        here = there


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 100_000), min_size=1, max_size=8),
    slots=st.integers(1, 12),
)
def test_splits_cover_each_offset_once(sizes: list[int], slots: int) -> None:
    start, end = at(*([7] * len(sizes))), at(*(7 + size for size in sizes))

    parts = kafka_source.make_splits(start, end, slots)

    spans = sorted((span.partition, span.begin, span.end) for split in parts for span in split.what)
    for number, size in enumerate(sizes):
        edge = 7
        for _, begin, stop in [span for span in spans if span[0] == number]:
            assert begin == edge < stop
            edge = stop
        assert edge == 7 + size
    assert sum(split.rows for split in parts) == sum(sizes)
    assert len(parts) <= max(slots, len(sizes)) + slots
