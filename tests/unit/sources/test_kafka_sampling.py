"""How many rows a batch of a bounded size has, by the records that are sampled."""

from __future__ import annotations

from icestream.sources.kafka.positions import Span
from icestream.sources.kafka.sampling import rows_within

MIB = 1 << 20


def span(rows: int, partition: int = 0, begin: int = 500) -> Span:
    return Span("orders", partition, begin, begin + rows)


def test_batch_below_the_bound_is_taken_whole() -> None:
    assert rows_within([span(1_000_000)], 1024 * MIB, lambda *_: 100.0) == 1_000_000


def test_records_of_one_size_are_cut_at_the_bound() -> None:
    assert rows_within([span(1_000_000)], 1024 * MIB, lambda *_: float(MIB)) == 1024
    assert rows_within([span(1_000_000)], 1 * MIB, lambda *_: 5.0 * MIB) == 1, "one at least"


def test_batch_ends_soon_after_records_become_large() -> None:
    # The last hundredth of the rows is large: 10 GiB in all.
    def sample(_: Span, offset: int) -> float:
        return float(MIB) if offset >= 990_000 else 100.0

    read, sizes = 0, []
    while read < 1_000_000:
        rows = rows_within([span(1_000_000 - read, begin=read)], 1024 * MIB, sample)
        sizes.append(sum(sample(span(1), each) for each in range(read, read + rows)) / MIB)
        read += rows

    # None is far above the bound, and the small records did not take a thousand commits.
    assert max(sizes) <= 2 * 1024
    assert len(sizes) < 30


def test_rows_that_are_skipped_have_no_size() -> None:
    assert rows_within([span(1_000_000)], 1 * MIB, lambda *_: 0.0) == 1_000_000


def test_partitions_count_by_their_rows() -> None:
    small, large = span(990_000, 0), span(10_000, 1)
    asked: list[int] = []

    def sample(part: Span, offset: int) -> float:
        assert part.begin <= offset < part.end
        asked.append(part.partition)
        return 100.0

    for _ in range(100):
        rows_within([small, large], 1024 * MIB, sample)

    assert asked.count(0) > asked.count(1)


def test_records_of_unknown_size_are_taken_for_large_ones() -> None:
    assert rows_within([span(1_000_000)], 1024 * MIB, lambda *_: None) == 1024
    assert rows_within([span(10)], 1024 * MIB, lambda *_: None) == 10

    def ends_early(_: Span, offset: int) -> float | None:
        return 100.0 if offset <= 500_500 else None

    assert rows_within([span(1_000_000)], 1024 * MIB, ends_early) == 500_000, "what is known"
