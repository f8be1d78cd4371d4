"""The records that every contender reads: made from a seed, written into a topic once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.kafka import KafkaBroker

SEED = 20_240_501
PARTITIONS = 4
FIRST_MOMENT = datetime(2024, 5, 1, tzinfo=timezone.utc)
KINDS = ("view", "search", "add_to_cart", "purchase", "refund")
COUNTRIES = ("DE", "FR", "US", "IN", "BR", "JP", "ZA", "NO")
# The moments of one second, made once: formatting a moment costs more than all else.
MOMENTS = tuple(
    (FIRST_MOMENT + timedelta(milliseconds=each)).isoformat(timespec="milliseconds")[10:-6]
    for each in range(0, 86_400_000, 864)
)
SENDING_SECS = 300


@dataclass(frozen=True)
class Stream:
    """A topic that holds the records with the ids 0 to `rows` - 1, each once."""

    bootstrap: str
    topic: str
    rows: int


def records(rows: int, seed: int = SEED) -> Iterator[bytes]:
    """Yield records of six fields, about 100 bytes each; the same ones for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - made-up data
    pick, below = draw.choice, draw.randrange
    for number in range(rows):
        day = 1 + number * 28 // rows
        yield (
            b'{"id":%d,"user_id":%d,"kind":"%s","country":"%s","amount":%.2f,"ts":"2024-05-%02d%sZ"}'
            % (
                number,
                below(1_000_000),
                pick(KINDS).encode(),
                pick(COUNTRIES).encode(),
                below(1, 100_000) / 100,
                day,
                pick(MOMENTS).encode(),
            )
        )


def fill_topic(broker: KafkaBroker, rows: int) -> Stream:
    """Make a topic and write the records into it, spread over its partitions."""
    from confluent_kafka import Producer

    topic = broker.new_topic("events", PARTITIONS)
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
    made = records(rows)
    number = 0
    while block := list(islice(made, 10_000)):
        for value in block:
            while True:
                try:
                    producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=note)
                    break
                except BufferError:
                    producer.poll(1)
            number += 1
        producer.poll(0)
    unsent = producer.flush(SENDING_SECS)
    if unsent or faults:
        raise RuntimeError(f"{unsent} records unsent to {topic!r}, refused: {faults[:3]}")
    return Stream(broker.bootstrap, topic, rows)
