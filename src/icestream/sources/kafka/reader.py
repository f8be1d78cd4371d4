"""Reads spans of offsets in a task. The hot path: no per-record work in Python."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from icestream.contracts.decoder import Records
from icestream.errors import TransientError
from icestream.formats.lookup import RECORD_KEY, RECORD_TOPIC, find_format
from icestream.sources.kafka.cluster import (
    build_client,
    error_location,
    expired_error,
    is_out_of_range,
    is_truncation,
    is_unknown_epoch,
    overwritten_error,
    to_error,
    truncated_error,
)

# librdkafka's message; its stub allows None where an assigned consumer always has a value.
Message: TypeAlias = Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from confluent_kafka import Consumer

    from icestream.sources.kafka.options import KafkaOptions

_MAX_RECORDS = 20_000
_TARGET_BYTES = 16 << 20
_INITIAL_RECORDS = 1_000
_WAIT_SECS = 0.25
_TIMEOUT_SECS = 60.0
_SEEK_RETRY_SECS = 0.01

_SETTINGS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Reports the end of a partition, also past records that are never delivered.
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
}
_TUNING: dict[str, Any] = {
    "group.id": "icestream",
    "fetch.wait.max.ms": 100,
    "fetch.message.max.bytes": 2 << 20,
    "queued.max.messages.kbytes": 32 << 10,
    "queued.min.messages": 100_000,
    # A full queue drains in 0.2 s; the default backoff is a whole second.
    "fetch.queue.backoff.ms": 10,
}

EXTRA_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}

# Idle consumers. A worker process runs one task after another, and reconnecting for each would take
# longer than reading a small batch.
_idle: dict[tuple[Any, ...], list[Consumer]] = {}


@dataclass(frozen=True)
class Span:
    """Offsets of one partition, from `begin` up to but not including `end`.

    `epoch` is the leader epoch in which `begin` was listed, if the log may have been truncated
    since; otherwise -1, librdkafka's value for none.
    """

    topic: str
    partition: int
    begin: int
    end: int
    epoch: int = -1

    @property
    def rows(self) -> int:
        """The number of offsets: an upper bound of the number of records."""
        return self.end - self.begin


def consumer_settings(options: KafkaOptions) -> dict[str, Any]:
    """Return the settings of a consumer: the user's, and those that users may not change."""
    return {**_TUNING, **options.client_settings(), **_SETTINGS}


def read_spans(options: KafkaOptions, spans: Sequence[Span]) -> Iterator[Records]:
    """Yield the records of some spans, one span after the other."""
    from confluent_kafka import Consumer, KafkaException

    settings = consumer_settings(options)
    key = (os.getpid(), *sorted((name, str(value)) for name, value in settings.items()))
    pool = _idle.setdefault(key, [])
    try:
        consumer = pool.pop()
    except IndexError:
        consumer = build_client(Consumer, settings, options.brokers)
    try:
        for span in spans:
            yield from _SpanReader(options, consumer, span).read()
        consumer.unassign()
    except KafkaException as exc:
        consumer.close()
        raise to_error(exc.args[0], options.brokers) from exc
    except BaseException:
        # Its queue is in an unknown state; the next task gets a new consumer.
        consumer.close()
        raise
    pool.append(consumer)


class _SpanReader:
    def __init__(self, options: KafkaOptions, consumer: Consumer, span: Span) -> None:
        self._options, self._consumer, self._span = options, consumer, span
        self._next = span.begin
        self._fetch_size = _INITIAL_RECORDS

    def read(self) -> Iterator[Records]:
        """Yield the span's records up to its end, even if offsets before it are missing."""
        span = self._span
        self._assign(span.epoch)
        progressed_at, previous = time.monotonic(), self._next
        while self._next < span.end:
            want = min(self._fetch_size, span.end - self._next)
            batch = self._accept(self._consumer.consume(want, _WAIT_SECS))
            if batch:
                records = self._records(batch)
                self._fetch_size = max(
                    100, min(_MAX_RECORDS, _TARGET_BYTES * len(batch) // _size(records))
                )
                yield records
            if self._next > previous:
                progressed_at, previous = time.monotonic(), self._next
            elif time.monotonic() - progressed_at > _TIMEOUT_SECS:
                raise self._timeout_error()

    def _assign(self, epoch: int) -> None:
        """Fetch from the next offset on, once the leader's log matches the epoch, if any."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        # librdkafka's errors while an assignment is still in progress.
        not_started = (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)
        span, deadline = self._span, time.monotonic() + _TIMEOUT_SECS
        partition = TopicPartition(span.topic, span.partition, self._next, leader_epoch=epoch)
        self._consumer.assign([partition])
        # librdkafka compares the epoch with the log (OffsetsForLeaderEpoch) when it seeks. After
        # `assign` alone it does so only if the leader's epoch is new to it.
        while epoch >= 0:
            try:
                self._consumer.seek(partition)
                return
            except KafkaException as exc:
                if exc.args[0].code() not in not_started:
                    raise
            if time.monotonic() > deadline:
                raise self._timeout_error()
            time.sleep(_SEEK_RETRY_SECS)

    def _accept(self, messages: list[Message]) -> list[Message]:
        """Return the records of the span and advance; raise errors."""
        faulty = [message for message in messages if message.error() is not None]
        if not faulty:
            return self._select_span(messages)
        # Records before the end of a partition come first.
        batch = self._select_span([message for message in messages if message.error() is None])
        for message in faulty:
            self._check_error(message)
        return batch

    def _select_span(self, messages: list[Message]) -> list[Message]:
        if not messages:
            return messages
        span, first, last = self._span, messages[0], messages[-1]
        is_dense = (
            last.offset() - first.offset() == len(messages) - 1
            and first.offset() >= self._next
            and last.offset() < span.end
            and first.partition() == last.partition() == span.partition
            and first.topic() == last.topic() == span.topic
        )
        if is_dense:
            self._next = last.offset() + 1
            return messages
        # Compacted, transactional, or left over from another span: check each.
        ours = [
            message
            for message in messages
            if message.offset() >= self._next
            and message.partition() == span.partition
            and message.topic() == span.topic
        ]
        if ours:
            # An offset past the end means that nothing is left before it.
            self._next = ours[-1].offset() + 1
        return [message for message in ours if message.offset() < span.end]

    def _check_error(self, message: Message) -> None:
        """Advance at the end of a partition; raise any other error."""
        from confluent_kafka import KafkaError, TopicPartition

        error, span = message.error(), self._span
        partition = f"topic {span.topic!r}, partition {span.partition}"
        if error.code() == KafkaError._PARTITION_EOF:
            if message.partition() == span.partition and message.topic() == span.topic:
                self._next = max(self._next, message.offset())
        elif is_unknown_epoch(error):
            # The log has no epochs (an old message format), so there is nothing to compare.
            self._assign(-1)
        elif is_out_of_range(error):
            lowest, end = self._consumer.get_watermark_offsets(
                TopicPartition(span.topic, span.partition), timeout=10
            )
            if end < self._next:
                raise truncated_error(partition, self._next, end, self._options.brokers)
            if lowest > self._next:
                raise expired_error(partition, self._next, lowest, self._options.brokers)
            if is_truncation(error):
                raise overwritten_error(partition, self._next, self._options.brokers)
            raise TransientError(
                f"{partition}: {error.str()} ({error.name()})",
                where=error_location(self._options.brokers),
            )
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            # librdkafka reconnects by itself; if it cannot, the timeout ends the wait.
            raise to_error(error, self._options.brokers, partition)

    def _timeout_error(self) -> TransientError:
        span = self._span
        return TransientError(
            f"topic {span.topic!r}, partition {span.partition}: no records for "
            f"{_TIMEOUT_SECS:.0f} s at offset {self._next}, and the span ends at {span.end}",
            where=error_location(self._options.brokers),
        )

    def _records(self, batch: list[Message]) -> Records:
        values = pa.array([message.value() for message in batch], pa.binary())
        extra = {
            f"kafka_{name}": pa.array(_EXTRAS[name](batch), EXTRA_TYPES[name])
            for name in self._options.include
        }
        if find_format(self._options.format).gives_changes:
            extra[RECORD_KEY] = pa.array(_EXTRAS["key"](batch), pa.binary())
            extra[RECORD_TOPIC] = pa.repeat(self._span.topic, len(batch))
        partition = f"{self._span.topic}[{self._span.partition}]"
        first = batch[0].offset()
        if batch[-1].offset() - first == len(batch) - 1:
            return Records(values, extra, lambda i: f"{partition}@{first + i}")
        offsets = [message.offset() for message in batch]
        return Records(values, extra, lambda i: f"{partition}@{offsets[i]}")


def _size(records: Records) -> int:
    return 1 + sum(int(column.nbytes) for column in (records.values, *records.extra.values()))


def _headers(message: Message) -> list[dict[str, Any]] | None:
    headers = message.headers()
    if headers is None:
        return None
    return [{"key": name, "value": _bytes(value)} for name, value in headers]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _micros(message: Message) -> int | None:
    kind, millis = message.timestamp()
    return None if kind == 0 else millis * 1000


_EXTRAS: dict[str, Callable[[list[Message]], list[Any]]] = {
    "key": lambda batch: [_bytes(message.key()) for message in batch],
    "headers": lambda batch: [_headers(message) for message in batch],
    "timestamp": lambda batch: [_micros(message) for message in batch],
    "topic": lambda batch: [message.topic() for message in batch],
    "partition": lambda batch: [message.partition() for message in batch],
    "offset": lambda batch: [message.offset() for message in batch],
}
