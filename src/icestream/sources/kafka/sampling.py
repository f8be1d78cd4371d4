"""Samples records on the driver, so that a batch is bounded by bytes as well as by rows.

Offsets say how many records there are, not how large they are. The end of a batch is logged before
the batch is read, so its size has to be estimated first, from a few records of each partition.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from statistics import mean
from typing import TYPE_CHECKING, Any

from icestream.sources.kafka.cluster import build_client
from icestream.sources.kafka.reader import consumer_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka import Consumer

    from icestream.sources.kafka.cluster import Partition
    from icestream.sources.kafka.options import KafkaOptions
    from icestream.sources.kafka.reader import Span

_INTERVALS = 4
_MAX_PARTITIONS = 50
# The largest record that Kafka accepts by default.
_UNKNOWN_BYTES = float(1 << 20)
# If the last sample is recent and this far below the bound, it is enough to sample the end of the
# range; few rows are not sampled at all.
_MARGIN = 4
_MIN_SAMPLED_BYTES = 16 << 10
_RECENT_SECS = 10.0
_WAIT_SECS = 5.0
_MAX_RECORDS = 1_000
# Fetch the smallest unit that a broker sends: one producer batch.
_SMALL_FETCH: dict[str, Any] = {
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 16 << 10,
    "fetch.max.bytes": 1 << 20,
    # With fewer, partitions are fetched one by one: ten times slower for fifty.
    "queued.min.messages": 1_000,
}


class SizeEstimator:
    """Estimates how many rows fit into a batch, from samples of this batch and earlier ones.

    Args:
        sample: returns the sizes of some records from an offset on, by partition: none at the
            end of the partition. Partitions that do not answer are left out.
    """

    def __init__(
        self, sample: Callable[[dict[Partition, int]], Mapping[Partition, Sequence[int]]]
    ) -> None:
        self._sample = sample
        # The running mean of each partition; the one sampled longest ago comes first.
        self._means: dict[Partition, float] = {}
        self._largest = 0
        self._sampled_at = float("-inf")

    def rows_within(self, spans: Sequence[Span], most_bytes: int) -> int:
        """Return how many rows add up to about `most_bytes` if all spans advance evenly.

        The range is divided into intervals, and the records at both ends represent the whole
        interval. If sizes change within an interval, the batch ends early there, and the next one
        samples it more closely.
        """
        total, taken, free = sum(span.rows for span in spans), 0, float(most_bytes)
        # A batch has at least one row, whatever its size.
        if total <= 1 or self._is_far_below(most_bytes, spans, total):
            return total
        edges = self._sizes_at_edges(spans)
        for number, (before, after) in enumerate(itertools.pairwise(edges), 1):
            rows, size = total * number // _INTERVALS - taken, (before + after) / 2
            if rows * size > free:
                return max(taken + int(free / size), 1)
            taken, free = taken + rows, free - rows * size
        return total

    def _is_far_below(self, most_bytes: int, spans: Sequence[Span], total: int) -> bool:
        """Tell whether recent samples, and one of the end, are all far below the bound."""
        row_bytes = most_bytes / total / _MARGIN
        if time.monotonic() - self._sampled_at >= _RECENT_SECS or self._largest > row_bytes:
            return False
        if total * _MIN_SAMPLED_BYTES > most_bytes:
            self._learn(self._sample_spans(self._select(spans), [_INTERVALS]))
        return self._largest <= row_bytes

    def _sizes_at_edges(self, spans: Sequence[Span]) -> list[float]:
        """Return the mean size over all spans at each end of the intervals."""
        sampled = self._sample_spans(self._select(spans), range(_INTERVALS + 1))
        # Some samples miss sparse large records: do not forget what is known at once.
        sizes = {
            key: [max(size, self._means.get(key, 0.0) / _MARGIN) for size in found]
            for key, found in sampled.items()
        }
        self._learn(sampled)
        largest = max(self._means.values(), default=_UNKNOWN_BYTES)
        of_topic: dict[str, float] = {}
        for (topic, _), size in self._means.items():
            of_topic[topic] = max(size, of_topic.get(topic, 0.0))
        edges = [0.0] * (_INTERVALS + 1)
        for span in spans:
            # Until a partition is sampled, assume the largest known records.
            unknown = of_topic.get(span.topic, largest)
            expected = self._means.get((span.topic, span.partition), unknown)
            found = sizes.get((span.topic, span.partition), [expected] * len(edges))
            edges = [edge + span.rows * size for edge, size in zip(edges, found, strict=True)]
        total = sum(span.rows for span in spans)
        return [edge / total for edge in edges]

    def _learn(self, sampled: Mapping[Partition, list[float]]) -> None:
        for key, found in sampled.items():
            self._means[key] = mean([self._means.pop(key, mean(found)), mean(found)])

    def _select(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans to sample: first one of each new topic, then those sampled long ago."""
        age = {key: number for number, key in enumerate(self._means)}
        count: Counter[str] = Counter()
        ranks: dict[Partition, tuple[bool, int]] = {}
        for span in sorted(spans, key=lambda span: -span.rows):
            key = (span.topic, span.partition)
            ranks[key] = (True, age[key]) if key in age else (False, count[span.topic])
            count[span.topic] += 1
        ranked = sorted(spans, key=lambda span: ranks[span.topic, span.partition])
        return ranked[:_MAX_PARTITIONS]

    def _sample_spans(
        self, spans: Iterable[Span], numbers: Iterable[int]
    ) -> dict[Partition, list[float]]:
        """Return the mean size at the numbered ends of intervals, of the spans that answer."""
        left = {(span.topic, span.partition): span for span in spans}
        sizes: dict[Partition, list[float]] = {key: [] for key in left}
        for number in numbers:
            found = self._sample(
                {
                    key: min(span.begin + span.rows * number // _INTERVALS, span.end - 1)
                    for key, span in left.items()
                }
            )
            # Do not wait again for a partition that does not answer.
            left = {key: span for key, span in left.items() if key in found}
            for key in left:
                # The end of a transactional or compacted range may have no record of its own.
                before = sizes[key][-1] if sizes[key] else self._means.get(key, 0.0)
                sizes[key].append(mean(found[key]) if found[key] else before)
                self._largest = max(self._largest, *found[key], 0)
        if left:
            self._sampled_at = time.monotonic()
        return {key: sizes[key] for key in left}


class RecordSampler:
    """A consumer on the driver that fetches a few records of several partitions at once."""

    def __init__(self, options: KafkaOptions) -> None:
        from confluent_kafka import Consumer

        settings = {**consumer_settings(options), **_SMALL_FETCH}
        self._consumer: Consumer = build_client(Consumer, settings, options.brokers)
        self.rows_within = SizeEstimator(self.sizes_at).rows_within

    def sizes_at(self, offsets: Mapping[Partition, int]) -> dict[Partition, list[int]]:
        """Return the sizes of some records from each offset on; see `SizeEstimator`.

        The task that reads a partition reports what is wrong with it.
        """
        from confluent_kafka import KafkaException, TopicPartition

        found: dict[Partition, list[int] | None] = {}
        deadline = time.monotonic() + _WAIT_SECS
        with contextlib.suppress(KafkaException):
            self._consumer.assign([TopicPartition(*key, at) for key, at in offsets.items()])
            while len(found) < len(offsets) and (left := deadline - time.monotonic()) > 0:
                first = self._consumer.poll(left)
                if first is None:
                    break
                messages = [first, *self._consumer.consume(_MAX_RECORDS, 0)]
                new = _sizes(messages, offsets.keys() - found.keys())
                found.update(new)
                self._consumer.incremental_unassign([TopicPartition(*key) for key in new])
        self._consumer.unassign()
        return {key: sizes for key, sizes in found.items() if sizes is not None}

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def _sizes(messages: Iterable[Any], wanted: set[Partition]) -> dict[Partition, list[int] | None]:
    """Return the sizes of records by partition; None for a partition with an error."""
    from confluent_kafka import KafkaError

    found: dict[Partition, list[int] | None] = {}
    for message in messages:
        key, error = (message.topic(), message.partition()), message.error()
        if key not in wanted:
            continue
        if error is not None:
            found.setdefault(key, [] if error.code() == KafkaError._PARTITION_EOF else None)
        elif (sizes := found.setdefault(key, [])) is not None:
            sizes.append(len(message) + len(message.key() or b""))
    return found
