"""Samples records on the driver, so that a batch is bounded by bytes as well as by rows.

Offsets say how many records there are, and nothing about their size. The end of a batch is logged
before the batch is read, so the size has to be estimated first: from a few records at several
places of the range.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from icestream.sources.kafka.cluster import build_client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icestream.sources.kafka.options import KafkaOptions
    from icestream.sources.kafka.positions import Span

_INTERVALS = 4
_RECORDS = 50
_WAIT_SECS = 5.0
_SETTINGS: dict[str, Any] = {
    "group.id": "icestream",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    # Fetch as little as a broker sends: one batch of a producer.
    "fetch.message.max.bytes": 16 << 10,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 10,
}


def rows_within(
    spans: Sequence[Span], most_bytes: int, sample: Callable[[Span, int], float | None]
) -> int:
    """Return how many rows have about `most_bytes` together, if all spans advance evenly.

    The range is cut into intervals, and the records at both ends of an interval stand for all of
    it. If sizes change within an interval, the batch ends early there, and the next one looks at
    it more closely.

    Args:
        spans: what waits to be read.
        most_bytes: the bound.
        sample: returns the mean size of the records at an offset of a span; None if unknown.
    """
    total, taken, free = sum(span.rows for span in spans), 0, float(most_bytes)
    before = _sample_at(spans, 0, sample)
    for number in range(1, _INTERVALS + 1):
        after = _sample_at(spans, number, sample) if before is not None else None
        if before is None or after is None:
            # As many as fit if they are as large as Kafka allows by default: 1 MiB.
            return min(total, max(taken, most_bytes >> 20, 1))
        rows, size = total * number // _INTERVALS - taken, (before + after) / 2
        if rows * size > free:
            return max(taken + int(free / size), 1)
        taken, free, before = taken + rows, free - rows * size, after
    return total


def _sample_at(
    spans: Sequence[Span], number: int, sample: Callable[[Span, int], float | None]
) -> float | None:
    # One partition stands for all: a fetch takes as long as reading thousands of records.
    [span] = random.choices(spans, [span.rows for span in spans])  # noqa: S311 - no secret
    return sample(span, min(span.begin + span.rows * number // _INTERVALS, span.end - 1))


class RecordSampler:
    """A consumer on the driver that looks at single records. It connects on first use."""

    def __init__(self, options: KafkaOptions) -> None:
        settings = {**options.client_settings(), **_SETTINGS}
        self._consumer: Consumer = build_client(Consumer, settings, options.brokers)

    def mean_bytes(self, span: Span, offset: int) -> float | None:
        """Return the mean size of some records from an offset on; None if none arrives.

        The task that reads the span reports what is wrong with it.
        """
        try:
            self._consumer.assign([TopicPartition(span.topic, span.partition, offset)])
            return self._first_sizes(span)
        except KafkaException:
            return None
        finally:
            self._consumer.unassign()

    def _first_sizes(self, span: Span) -> float | None:
        deadline = time.monotonic() + _WAIT_SECS
        while (wait_secs := deadline - time.monotonic()) > 0:
            first: Any = self._consumer.poll(wait_secs)
            if first is None or (first.topic(), first.partition()) != (span.topic, span.partition):
                continue
            if first.error() is not None:
                # Nothing but offsets without records is left in this partition.
                return 0.0 if first.error().code() == KafkaError._PARTITION_EOF else None
            found: list[Any] = [first, *self._consumer.consume(_RECORDS - 1, 0)]
            sizes = [len(each) + len(each.key() or b"") for each in found if each.error() is None]
            return sum(sizes) / len(sizes)
        return None

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
