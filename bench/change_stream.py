"""A topic of changes by key: updates, inserts and deletes, and what they make of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench import keyed_rows
from bench.lake import Lake, WrongRowsError
from bench.stream import PARTITIONS, Stream, send
from bench.table_files import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from tests.fixtures.kafka import KafkaBroker

    Ints = npt.NDArray[np.int64]

KIND = "long"
TABLE = "accounts"
SCHEMA = "op STRING, id BIGINT, value DOUBLE, note STRING, ts TIMESTAMP"
UPDATES, INSERTS, DELETES = 0.7, 0.2, 0.1
MIXED = 1_000_003  # a prime: ids modulo it weigh the values, so that no two rows can swap theirs


@dataclass(frozen=True)
class Changes:
    """Changes in the order they come: `u`, `i` or `d`, of which number, and its new value."""

    ops: npt.NDArray[np.bytes_]
    numbers: Ints
    values: Ints

    def expected(self, table_rows: int) -> Expected:
        """Return what a table of `table_rows` rows holds once all of them were applied."""
        end = max(table_rows, int(self.numbers.max(initial=0)) + 1)
        numbers = np.arange(end, dtype=np.int64)
        values = keyed_rows.first_values(numbers)
        is_there = numbers < table_rows
        # Of several changes to a number, the one that numpy assigns last is the last.
        values[self.numbers] = self.values
        is_there[self.numbers] = self.ops != b"d"
        ids, values = keyed_rows.spread(numbers[is_there]), values[is_there]
        return Expected(len(ids), int(values.sum()), int((ids % MIXED * values).sum()))


@dataclass(frozen=True)
class Expected:
    """Rows, the sum of their values, and the sum of their values by id."""

    count: int
    total: int
    weighed: int


def make_changes(count: int, table_rows: int, seed: int = keyed_rows.SEED) -> Changes:
    """Draw changes. Updates and deletes name any row that there ever was, so some are gone."""
    draw = np.random.default_rng(seed)
    ops = draw.choice(np.array([b"u", b"i", b"d"]), count, p=[UPDATES, INSERTS, DELETES])
    is_insert = ops == b"i"
    known = table_rows + np.cumsum(is_insert) - is_insert
    numbers = np.where(is_insert, known, draw.integers(0, known)).astype(np.int64)
    return Changes(ops, numbers, draw.integers(0, keyed_rows.VALUES, count, dtype=np.int64))


def records(changes: Changes) -> Iterator[tuple[int, bytes]]:
    """Yield a partition and a record for each change; those of one key stay in one partition."""
    ids = keyed_rows.spread(changes.numbers)
    each = (changes.ops.tolist(), changes.numbers.tolist(), ids.tolist(), changes.values.tolist())
    for op, number, key, value in zip(*each, strict=True):
        yield (
            number % PARTITIONS,
            b'{"op":"%s","id":%d,"value":%d.0,"note":"changed in lot %02d",'
            b'"ts":"2024-07-01T00:%02d:%02dZ"}'
            % (op, key, value, number % 64, number // 60 % 60, number % 60),
        )


def fill_topic(broker: KafkaBroker, changes: Changes) -> Stream:
    """Make a topic and write the changes into it."""
    topic = broker.new_topic("changes", PARTITIONS)
    send(broker, topic, records(changes))
    return Stream(broker.bootstrap, topic, len(changes.numbers))


@dataclass(frozen=True)
class ChangedLake(Lake):
    """A lake whose table was there before, and is changed by a stream."""

    expected: Expected

    def commits(self) -> list[tuple[float, int]]:
        table = self.catalog().load_table((NAMESPACE, TABLE))
        return [(each.timestamp_ms / 1000, 0) for each in table.snapshots()]

    def completed_at(self, rows: int) -> float | None:  # noqa: ARG002 - the stream has ended
        """Return when the last commit happened."""
        return self.commits()[-1][0]

    def verify(self, rows: int) -> None:  # noqa: ARG002 - what counts is what became of them
        import duckdb

        read = self.catalog().load_table((NAMESPACE, TABLE)).scan().to_arrow_batch_reader()
        with duckdb.connect() as connection:
            connection.register("written", read)
            found = connection.execute(
                "SELECT count(*), count(DISTINCT id), sum(value::BIGINT), "
                "sum(id % ? * value::BIGINT) FROM written",
                [MIXED],
            ).fetchone()
        expected = self.expected
        if found != (expected.count, expected.count, expected.total, expected.weighed):
            raise WrongRowsError(f"rows, ids, sum and sum by id are {found}, not {expected}")
