"""How many rows a batch of a bounded size has, by the records that are sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.sources.kafka import sampling
from icestream.sources.kafka.reader import Span
from icestream.sources.kafka.sampling import SizeEstimator

if TYPE_CHECKING:
    from collections.abc import Callable

    from icestream.sources.kafka.cluster import Partition

MIB = 1 << 20
GIB = 1 << 30


def span(rows: int, partition: int = 0, begin: int = 500, topic: str = "orders") -> Span:
    return Span(topic, partition, begin, begin + rows)


class Records:
    """The records of a cluster: a function returns the size at an offset, or None."""

    def __init__(self, size: Callable[[str, int, int], int | None]) -> None:
        self.size = size
        self.samples: list[dict[Partition, int]] = []

    def sample(self, offsets: dict[Partition, int]) -> dict[Partition, list[int]]:
        self.samples.append(offsets)
        sizes = {key: self.size(*key, offset) for key, offset in offsets.items()}
        return {key: [size] * 3 for key, size in sizes.items() if size is not None}


def of_size(size: int | None) -> SizeEstimator:
    return SizeEstimator(Records(lambda *_: size).sample)


def test_batch_below_the_bound_is_not_cut() -> None:
    assert of_size(100).rows_within([span(1_000_000)], GIB) == 1_000_000
    assert of_size(100).rows_within([], GIB) == 0


def test_records_of_one_size_are_cut_at_the_bound() -> None:
    assert of_size(MIB).rows_within([span(1_000_000)], GIB) == 1024
    assert of_size(5 * MIB).rows_within([span(1_000_000)], MIB) == 1, "one at least"


def test_few_records_above_one_mebibyte_are_cut_too() -> None:
    assert of_size(20 * MIB).rows_within([span(1_000)], GIB) == 51


def test_batch_ends_soon_after_records_become_large() -> None:
    # The last hundredth of the rows is large: 10 GiB in all.
    def size(_topic: str, _partition: int, offset: int) -> int:
        return MIB if offset >= 990_000 else 100

    estimator = SizeEstimator(Records(size).sample)
    read, sizes = 0, []
    while read < 1_000_000:
        rows = estimator.rows_within([span(1_000_000 - read, begin=read)], GIB)
        sizes.append(sum(size("", 0, each) for each in range(read, read + rows)))
        read += rows

    # None is far above the bound, and the small records did not take a thousand commits.
    assert max(sizes) <= 2 * GIB
    assert len(sizes) < 30


def test_rows_that_are_skipped_have_no_size() -> None:
    estimator = SizeEstimator(lambda offsets: {key: [] for key in offsets})

    assert estimator.rows_within([span(1_000_000)], MIB) == 1_000_000


def test_commit_marker_at_the_end_does_not_count_as_a_record_size() -> None:
    def sample(offsets: dict[Partition, int]) -> dict[Partition, list[int]]:
        return {key: [] if at == 999 else [1_000] for key, at in offsets.items()}

    assert SizeEstimator(sample).rows_within([span(1_000, begin=0)], 900_000) == 900


@pytest.mark.parametrize("topics", [2, 200])
@pytest.mark.parametrize("partitions", [1, 30])
def test_large_records_in_few_partitions_are_counted(topics: int, partitions: int) -> None:
    # One topic of small records has most rows; the others have large ones.
    def size(topic: str, *_: int) -> int:
        return 100 if topic == "0" else MIB

    images = [
        span(max(20_000 // topics // partitions, 1), number, topic=str(topic))
        for topic in range(1, topics)
        for number in range(partitions)
    ]
    spans = [span(980_000, topic="0"), *images]
    total = sum(each.rows for each in spans)
    whole = sum(each.rows * size(each.topic) for each in spans)
    records = Records(size)
    estimator = SizeEstimator(records.sample)

    for _ in range(3):
        rows = estimator.rows_within(spans, GIB)
        assert whole * rows / total == pytest.approx(GIB, rel=0.01)
    assert max(map(len, records.samples)) <= 50
    assert len(records.samples) <= 3 * 5


def test_large_records_in_one_partition_of_many_are_found_and_remembered() -> None:
    def size(_topic: str, partition: int, _offset: int) -> int:
        return MIB if partition == 199 else 100

    spans = [span(5_000, number) for number in range(200)]
    estimator = SizeEstimator(Records(size).sample)

    # Fifty partitions are sampled for each batch.
    rows = [estimator.rows_within(spans, GIB) for _ in range(12)]

    assert rows[0] == 1_000_000
    assert all(200_000 < each < 210_000 for each in rows[3:])


def test_large_records_that_one_sample_misses_are_not_forgotten_at_once() -> None:
    sizes = [MIB]
    estimator = SizeEstimator(Records(lambda *_: sizes[-1]).sample)
    assert estimator.rows_within([span(1_000_000)], GIB) == 1024
    sizes.append(100)

    rows = [estimator.rows_within([span(1_000_000)], GIB) for _ in range(20)]

    assert rows[0] == 4096
    assert rows[-1] == 1_000_000


def test_small_batches_are_sampled_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(lambda *_: 100)
    estimator = SizeEstimator(records.sample)
    for _ in range(20):
        estimator.rows_within([span(5_000)], GIB)
    assert len(records.samples) == 5

    estimator.rows_within([span(1_000_000)], GIB)
    assert len(records.samples) == 6, "of many rows, only the end is sampled"
    assert records.samples[-1] == {("orders", 0): 500 + 1_000_000 - 1}

    monkeypatch.setattr(sampling, "_RECENT_SECS", 0.0)
    estimator.rows_within([span(5_000)], GIB)
    assert len(records.samples) == 11, "the last sample is old"


def test_batch_is_sampled_whole_if_its_end_is_not_far_below_the_bound() -> None:
    sizes = [100]
    estimator = SizeEstimator(Records(lambda *_: sizes[-1]).sample)
    assert estimator.rows_within([span(1_000_000)], GIB) == 1_000_000
    sizes.append(MIB)

    assert estimator.rows_within([span(1_000_000)], GIB) == 1024


def test_partitions_take_turns_when_only_the_end_is_sampled() -> None:
    records = Records(lambda *_: 100)
    estimator = SizeEstimator(records.sample)
    spans = [span(5_000, number) for number in range(200)]

    for _ in range(4):
        estimator.rows_within(spans, GIB)

    assert len(records.samples) == 5 + 3
    assert len({key for sample in records.samples for key in sample}) == 200


def test_batches_near_the_bound_are_sampled_each_time() -> None:
    records = Records(lambda *_: 100_000)
    estimator = SizeEstimator(records.sample)
    for _ in range(20):
        estimator.rows_within([span(5_000)], GIB)

    assert len(records.samples) == 100


def test_records_of_unknown_size_are_assumed_to_be_large() -> None:
    assert of_size(None).rows_within([span(1_000_000)], GIB) == 1024
    assert of_size(None).rows_within([span(10)], GIB) == 10


def test_unresponsive_partition_is_waited_for_once() -> None:
    records = Records(lambda _, partition, offset: None if partition and offset > 500 else 100)
    spans = [span(1_000_000), span(1_000_000, 1)]

    assert SizeEstimator(records.sample).rows_within(spans, GIB) == 2_000_000
    assert [len(each) for each in records.samples] == [2, 2, 1, 1, 1]
