"""The records that every contender reads: made from a seed, written into a topic once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.fixtures.kafka import KafkaBroker

SEED = 20_240_501
PARTITIONS = 4
FIRST_MOMENT = datetime(2024, 5, 1, tzinfo=timezone.utc)
KINDS = ("view", "search", "add_to_cart", "purchase", "refund")
COUNTRIES = ("DE", "FR", "US", "IN", "BR", "JP", "ZA", "NO")
SENDING_SECS = 300


@dataclass(frozen=True)
class Stream:
    """A topic that holds the records with the ids 0 to `rows` - 1, each once."""

    bootstrap: str
    topic: str
    rows: int


@cache
def _timestamps() -> tuple[str, ...]:
    """Return timestamps of a day, created once: formatting one costs more than all else."""
    return tuple(
        (FIRST_MOMENT + timedelta(milliseconds=each)).isoformat(timespec="milliseconds")[10:-6]
        for each in range(0, 86_400_000, 864)
    )


def records(rows: int, seed: int = SEED, kinds: Sequence[str] = KINDS) -> Iterator[bytes]:
    """Yield records of six fields, about 100 bytes each; the same ones for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - made-up data
    pick, below, timestamps = draw.choice, draw.randrange, _timestamps()
    for number in range(rows):
        day = 1 + number * 28 // rows
        yield (
            b'{"id":%d,"user_id":%d,"kind":"%s","country":"%s","amount":%.2f,"ts":"2024-05-%02d%sZ"}'
            % (
                number,
                below(1_000_000),
                pick(kinds).encode(),
                pick(COUNTRIES).encode(),
                below(1, 100_000) / 100,
                day,
                pick(timestamps).encode(),
            )
        )


def fill_topic(broker: KafkaBroker, rows: int, kinds: Sequence[str] = KINDS) -> Stream:
    """Make a topic and write the records into it, spread over its partitions."""
    topic = broker.new_topic("events", PARTITIONS)
    made = ((n % PARTITIONS, value) for n, value in enumerate(records(rows, kinds=kinds)))
    send(broker, topic, made)
    return Stream(broker.bootstrap, topic, rows)


def send(broker: KafkaBroker, topic: str, made: Iterator[tuple[int, bytes]]) -> None:
    """Write records into a topic, each into the partition that it comes with."""
    from confluent_kafka import Producer

    faults: list[str] = []

    def note(error: Any, _record: Any) -> None:
        if error is not None:
            faults.append(str(error))

    producer: Any = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    while block := list(islice(made, 10_000)):
        for partition, value in block:
            while True:
                try:
                    producer.produce(topic, value, partition=partition, on_delivery=note)
                    break
                except BufferError:
                    producer.poll(1)
        producer.poll(0)
    unsent = producer.flush(SENDING_SECS)
    if unsent or faults:
        raise RuntimeError(f"{unsent} records unsent to {topic!r}, refused: {faults[:3]}")
