"""In whatever order files arrive and are listed, each is read once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.sources.files.listing import FileEntry
from icestream.sources.files.progress import Progress, files_between

if TYPE_CHECKING:
    from random import Random


def entries(count: int, random: Random) -> list[FileEntry]:
    """Files in the order of their arrival, whose content was written in another one."""
    written = random.sample(range(10 * count), count)
    return [FileEntry(f"f{n:03}", written[n], 7 + n, 100 + n // 3) for n in range(count)]


@settings(deadline=None)
@given(
    count=st.integers(min_value=1, max_value=30),
    cuts=st.lists(st.integers(min_value=0, max_value=30), max_size=6),
    random=st.randoms(use_true_random=False),
)
def test_steps_through_the_arrivals_give_every_file_once(
    count: int, cuts: list[int], random: Random
) -> None:
    files = entries(count, random)
    edges = sorted({0, count, *(cut for cut in cuts if cut < count)})
    steps = [Progress()]
    for low, high in pairwise(edges):
        steps.append(steps[-1].after(files[low:high]))
    listing = random.sample(files, count)

    assert steps[-1] == Progress().after(files)
    found = [files_between(low, high, listing) for low, high in pairwise(steps)]
    assert [entry for step in found for entry in step] == files
    assert all(Progress.of(step.position()) == step for step in steps)
