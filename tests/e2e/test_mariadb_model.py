"""Transactions and DDL on MariaDB through Debezium; the mirror is killed, and ends up equal."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
import uuid
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.fixtures.short_lived import SHORT_LIVED
from tests.fixtures.waiting import wait_until

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import RunProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.debezium import ConnectWorker
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.mariadb import MariaDb

    Row = dict[str, Any]

KILLS = int(os.environ.get("ICESTREAM_KILLS", "3"))
PATIENCE_SECS = 240
# The start of a log line about a commit.
BATCH = "shop: batch "
DDL = ("add", "truncate", "rename", "widen", "drop")
SENTINEL = "the last row"
FILE = (
    """
sources:
  shop:
    connector: kafka
    config:
      brokers: [{brokers}]
      topic_pattern: '{pattern}'
      format: debezium-json
sinks:
  lake:
    connector: iceberg
    config: {{batch_size: 50, flush_interval_secs: 0.3, max_batch_rows: 100}}
pipelines:
  shop: {{source: shop, sink: lake}}
"""
    + SHORT_LIVED
)
COLUMNS = (
    "n int DEFAULT 7, note varchar(60) CHARACTER SET utf8mb4, price decimal(8,2), seen datetime(3),"
    " name varchar(60) CHARACTER SET utf8mb4 NOT NULL"
)


class Table:
    """A table of MariaDB, and random statements that change it.

    Args:
        name: of the table.
        key: its columns, with their types.
        keys: all keys that its rows may have.
        dice: what is random.
    """

    def __init__(
        self, name: str, key: dict[str, str], keys: list[tuple[Any, ...]], dice: random.Random
    ) -> None:
        self.name, self.key, self.keys, self.dice = name, tuple(key), keys, dice
        declared = ", ".join(f"{column} {kind}" for column, kind in key.items())
        self.create = f"CREATE TABLE {name} ({declared}, {COLUMNS}, PRIMARY KEY ({', '.join(key)}))"
        # Those that DDL may drop, the oldest first.
        self.loose = ["note"]
        self.greatest = 2**31 - 1
        self._added = 0

    def ddl(self, kind: str) -> list[str]:
        """Return what changes the columns, or removes all rows."""
        if kind == "truncate":
            return [f"TRUNCATE TABLE {self.name}"]
        if kind == "widen":
            self.greatest = 2**63 - 1
            return [f"ALTER TABLE {self.name} MODIFY n bigint DEFAULT 7"]
        if kind == "drop":
            return [f"ALTER TABLE {self.name} DROP COLUMN {self.loose.pop(0)}"]
        self._added += 1
        # Of its own: the lake keeps the values of a dropped column of the same name.
        name = f"extra{self._added}"
        if kind == "add":
            self.loose.append(name)
            return [f"ALTER TABLE {self.name} ADD COLUMN {name} varchar(60)"]
        old, self.loose[-1] = self.loose[-1], name
        # Nothing shows that it is the same column, so only rows written again have it.
        touch = f"UPDATE {self.name} SET name = CONCAT(name, '.')"  # noqa: S608
        return [f"ALTER TABLE {self.name} RENAME COLUMN {old} TO {name}", touch]

    def statement(self) -> tuple[str, tuple[Any, ...]]:
        """Return a statement that changes rows, and its arguments."""
        makers = (self._insert, self._insert, self._replace, self._update, self._delete, self._move)
        return self.dice.choice(makers)()

    def insert(
        self, key: tuple[Any, ...], name: str, word: str = "INSERT"
    ) -> tuple[str, tuple[Any, ...]]:
        """Return what writes a row of this key and name."""
        values = {**dict(zip(self.key, key, strict=True)), **self._values(), "name": name}
        places = ", ".join(["%s"] * len(values))
        command = f"{word} INTO {self.name} ({', '.join(values)}) VALUES ({places})"
        return command, tuple(values.values())

    def _insert(self) -> tuple[str, tuple[Any, ...]]:
        command, values = self.insert(self._a_key(), "inserted")
        return f"{command} ON DUPLICATE KEY UPDATE n = VALUES(n), name = 'upserted'", values

    def _replace(self) -> tuple[str, tuple[Any, ...]]:
        return self.insert(self._a_key(), "replaced", "REPLACE")

    def _update(self) -> tuple[str, tuple[Any, ...]]:
        """Change several rows at once."""
        values = self._values()
        sets = ", ".join(f"{column} = %s" for column in values)
        command = f"UPDATE {self.name} SET {sets} WHERE {self.key[-1]} %% 7 = %s"  # noqa: S608
        return command, (*values.values(), self.dice.randrange(7))

    def _delete(self) -> tuple[str, tuple[Any, ...]]:
        return f"DELETE FROM {self.name} WHERE {self._found()}", self._a_key()  # noqa: S608

    def _move(self) -> tuple[str, tuple[Any, ...]]:
        """Give a row another key, unless another row has that."""
        sets = ", ".join(f"{column} = %s" for column in self.key)
        command = f"UPDATE IGNORE {self.name} SET {sets} WHERE {self._found()}"  # noqa: S608
        return command, (*self._a_key(), *self._a_key())

    def _found(self) -> str:
        return " AND ".join(f"{column} = %s" for column in self.key)

    def _a_key(self) -> tuple[Any, ...]:
        return self.dice.choice(self.keys)

    def _values(self) -> Row:
        dice = self.dice
        texts = {
            column: dice.choice([None, "", "größer", str(dice.random())]) for column in self.loose
        }
        return {
            "n": dice.choice([None, 0, dice.randint(-self.greatest, self.greatest)]),
            "price": dice.choice([None, Decimal(dice.randint(-99_999_999, 99_999_999)) / 100]),
            "seen": dice.choice([None, f"2026-02-28 23:59:59.{dice.randint(0, 999):03}"]),
            **texts,
        }


class Shop:
    """A database of two tables that a connector captures, each into a topic of its own."""

    def __init__(self, server: MariaDb, dice: random.Random) -> None:
        from pymysql.cursors import DictCursor

        self.server, self.dice = server, dice
        self.database = server.new_database()
        self.connection = server.connect(self.database, cursorclass=DictCursor)
        self.prefix = f"model-{uuid.uuid4().hex[:8]}"
        places = ("berlin", "köln", "nürnberg", "")
        self.tables = (
            Table("orders", {"id": "int"}, [(n,) for n in range(-60, 60)], dice),
            Table(
                "stock",
                {"place": "varchar(20) CHARACTER SET utf8mb4", "shelf": "int"},
                [(place, shelf) for place in places for shelf in range(30)],
                dice,
            ),
        )
        for table in self.tables:
            self.run((table.create, ()))
            for key in table.keys[::2]:
                self.run(table.insert(key, "at first"))

    @property
    def pattern(self) -> str:
        """All topics of the connector, including the one for schemas."""
        return f"{self.prefix}([.].*)?"

    def run(self, *commands: tuple[str, tuple[Any, ...]]) -> None:
        with self.connection.cursor() as cursor:
            for command, values in commands:
                # Arguments that are none at all would leave a doubled percent sign as it is.
                cursor.execute(command, values or None)

    def transaction(self) -> None:
        """Change both tables in one transaction; one in six is rolled back."""
        size = self.dice.randint(1, 6)
        changes = [self.dice.choice(self.tables).statement() for _ in range(size)]
        end = self.dice.choice(["COMMIT"] * 5 + ["ROLLBACK"])
        self.run(("BEGIN", ()), *changes, (end, ()))

    def change_columns(self, kind: str) -> None:
        self.run(*((command, ()) for table in self.tables for command in table.ddl(kind)))

    def roll_back(self) -> None:
        """Write rows of keys that no other transaction has, and take them back."""
        lost = [table.insert(_other_key(table, 1), "never there") for table in self.tables]
        self.run(("BEGIN", ()), *lost, ("ROLLBACK", ()))

    def end(self, broker: KafkaBroker) -> None:
        """Write each table's last row, and wait until it is in the table's topic."""
        self.run(*(table.insert(_other_key(table, 2), SENTINEL) for table in self.tables))
        for table in self.tables:
            topic = f"{self.prefix}.{self.database}.{table.name}"
            wait_until(
                partial(_ends_with_sentinel, broker, topic),
                f"the last row in {topic!r}",
                secs=PATIENCE_SECS,
                pause=0.3,
            )

    def rows(self, table: Table) -> list[Row]:
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table.name}")  # noqa: S608
            return list(cursor.fetchall())


def _other_key(table: Table, number: int) -> tuple[Any, ...]:
    """Return a key that no random statement uses."""
    return (*table.keys[0][:-1], 1_000_000 + number)


def _ends_with_sentinel(broker: KafkaBroker, topic: str) -> bool:
    """Tell whether a topic's last record is of the row that was written last."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "model"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, end - 1)])
        record = consumer.poll(30)
    finally:
        consumer.close()
    value = None if record is None or record.error() is not None else record.value()
    after = None if value is None else json.loads(value)["payload"]["after"]
    return after is not None and after["name"] == SENTINEL


def _mirrored(folder: Path, database: str, table: str, columns: list[str]) -> list[Row]:
    """Return rows of the lake, read by PyIceberg."""
    loaded: Any = embedded(folder / "lake").client().load_table((database, table))
    found: list[Row] = loaded.scan(selected_fields=tuple(columns)).to_arrow().to_pylist()
    return found


def _sorted(rows: list[Row], key: tuple[str, ...]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(row[column] for column in key))


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("ICESTREAM_SEED", random.randrange(1 << 30)))  # noqa: S311


@pytest.fixture
def shop(mariadb: MariaDb, kafka_connect: ConnectWorker, seed: int) -> Iterator[Shop]:
    shop = Shop(mariadb, random.Random(seed))  # noqa: S311
    kafka_connect.capture_mariadb(
        shop.prefix,
        mariadb,
        [f"{shop.database}.{table.name}" for table in shop.tables],
        "json-schema",
        waits=False,
        skipped__operations="none",
        value__converter__replace__null__with__default="false",
    )
    kafka_connect.wait_streaming(shop.prefix, secs=PATIENCE_SECS)
    yield shop
    kafka_connect.remove(shop.prefix)
    shop.connection.close()


@pytest.mark.timeout(900 + 120 * KILLS)
def test_lake_equals_mariadb_after_ddl_and_kills(
    tmp_path: Path, shop: Shop, kafka_broker: KafkaBroker, seed: int
) -> None:
    (tmp_path / "icestream.yaml").write_text(
        FILE.format(brokers=kafka_broker.bootstrap, pattern=shop.pattern)
    )
    rng = random.Random(seed)  # noqa: S311
    kinds, share = itertools.cycle(DDL), -(-len(DDL) // KILLS)  # so that every kind has its turn
    for _ in range(KILLS):
        for _ in range(8):
            shop.transaction()
        with RunProcess(tmp_path) as run:
            run.await_lines(BATCH, secs=PATIENCE_SECS)  # it may have taken all there is
            steps = rng.randint(8, 16)
            ddl_at = [rng.randrange(8) for _ in range(share)]
            for step in range(steps):
                for _ in range(ddl_at.count(step)):
                    shop.change_columns(next(kinds))
                shop.transaction()
                time.sleep(rng.uniform(0, 0.4))
            assert run.process.poll() is None, run.output
            run.kill()
    shop.roll_back()
    shop.end(kafka_broker)
    with RunProcess(tmp_path, "--once") as run:
        assert run.wait(PATIENCE_SECS) == 0, run.output

    for table in shop.tables:
        expected = shop.rows(table)
        found = _mirrored(tmp_path, shop.database, table.name, list(expected[0]))
        assert _sorted(found, table.key) == _sorted(expected, table.key), f"seed {seed}"
