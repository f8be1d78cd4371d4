"""However rows arrive, they go into contiguous batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.counted_source import START, Clock, Counted, admission


@pytest.mark.parametrize("most", [1, 7, 10_000])
@settings(deadline=None)
@given(added=st.lists(st.integers(0, 50), max_size=20), size=st.integers(1, 100))
def test_batches_are_contiguous_and_reach_the_target(
    most: int, added: list[int], size: int
) -> None:
    """However rows arrive, batches have rows, keep within the limit and leave no gap."""
    source, clock = Counted(0), Clock()
    admitted, here = admission(source, clock, size=size, flush=10, most=most), START
    for rows in added:
        source.rows += rows
        clock.now += 3
        end = admitted.next_end(here)
        if end is not None:
            assert here["row"] < end["row"] <= min(here["row"] + most, source.rows)
            here = end

    rest = admission(source, clock, target={"row": source.rows}, most=most)
    while (end := rest.next_end(here)) is not None:
        here = end
    assert here == {"row": source.rows}
