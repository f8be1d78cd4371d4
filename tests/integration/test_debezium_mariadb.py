"""Tables of a real MariaDB, captured by a real connector, mirrored through Kafka."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.debezium_mirror import CREATE_MARKERS, DebeziumMirror, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.debezium import ConnectWorker
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.mariadb import MariaDb
    from tests.fixtures.schema_registry import SchemaRegistry
    from tests.fixtures.spark import Lake

SEED = 20261115


class Database:
    """A database with tables that a connector captures."""

    def __init__(self, server: MariaDb) -> None:
        from pymysql.cursors import DictCursor

        self.name = server.new_database()
        self.connection = server.connect(self.name, cursorclass=DictCursor)
        self.run("SET time_zone = '+00:00'")

    def run(self, *commands: str) -> None:
        with self.connection.cursor() as cursor:
            for command in commands:
                cursor.execute(command)

    def rows(self, table: str, columns: str = "*") -> list[dict[str, Any]]:
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {table}")  # noqa: S608
            return in_order(list(cursor.fetchall()))


@pytest.fixture
def database(mariadb: MariaDb) -> Iterator[Database]:
    database = Database(mariadb)
    yield database
    database.connection.close()


@pytest.fixture
def connector(kafka_connect: ConnectWorker) -> Iterator[str]:
    """The name of a connector, which is removed in the end."""
    name = f"maria-{uuid.uuid4().hex[:8]}"
    yield name
    if kafka_connect.status(name) is not None:
        kafka_connect.remove(name)


KINDS = (
    "CREATE TABLE kinds (id bigint PRIMARY KEY, small smallint, whole int unsigned,"
    " price decimal(10,2), ratio double, day date, clock time(3), local datetime(6),"
    " at timestamp NULL, word varchar(20)"
    " CHARACTER SET utf8mb4, raw varbinary(20), pick enum('a','b'), picks set('x','y'), y year)"
)
SHOWN = (
    "id, small, whole, price, ratio, day, "
    "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM CAST(clock AS char))) AS clock, "
    "local, CONCAT(at, '+00:00') AS at, word, raw, pick, picks, y"
)


@pytest.mark.parametrize("converter", ["avro"])
def test_values_equal_those_of_the_database(
    database: Database,
    mariadb: MariaDb,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    schema_registry: SchemaRegistry,
    connector: str,
    lake: Lake,
    converter: Any,
) -> None:
    full = (
        "({}, -5, 4294967295, -12345678.91, 0.1, '2024-02-29', '-100:34:56.789', "
        "'2024-02-29 12:34:56.789012', '2024-02-29 12:34:56', 'vär', X'DEAD', 'b', 'x,y', 2024)"
    )
    database.run(
        CREATE_MARKERS,
        KINDS,
        f"INSERT INTO kinds VALUES {full.format(1)}, {full.format(2)}",  # noqa: S608
        "INSERT INTO kinds (id) VALUES (3)",
    )
    kafka_connect.capture_mariadb(
        connector,
        mariadb,
        [f"{database.name}.markers", f"{database.name}.kinds"],
        converter,
        schema_registry,
    )
    mirror = DebeziumMirror(
        lake,
        kafka_broker,
        connector,
        database.name,
        database.run,
        format="debezium-avro",
        schema_registry={"url": schema_registry.url},
    )
    mirror.follow()
    database.run(
        f"INSERT INTO kinds VALUES {full.format(4)}",  # noqa: S608
        "UPDATE kinds SET word = NULL, small = 7 WHERE id = 2",
        "UPDATE kinds SET id = 30 WHERE id = 3",
        "DELETE FROM kinds WHERE id = 1",
    )
    mirror.follow()
    found = mirror.rows("kinds")
    for row in found:
        row["at"] = None if row["at"] is None else str(row["at"])
    assert in_order(found) == database.rows("kinds", SHOWN)


class Model:
    """Changes tables at random, as many as a transaction has, with DDL in between."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.random = random.Random(SEED)  # noqa: S311
        self.columns = ["note"]

    def change(self, kind: str) -> None:
        """Run a few transactions, then change the table, then a few statements more."""
        for _ in range(15):
            size = self.random.randint(1, 8)
            self.database.run("BEGIN", *(self._statement() for _ in range(size)), "COMMIT")
        self.database.run(*self._ddl(kind))
        self.database.run(*(self._statement() for _ in range(5)))

    def _statement(self) -> str:
        key, other = self.random.randint(1, 40), self.random.randint(1, 40)
        column = self.random.choice(self.columns)
        value = self.random.choice(["NULL", "''", f"'{self.random.random()}'"])
        upsert = (
            f"INSERT INTO items (id, {column}) VALUES ({key}, {value}) "  # noqa: S608
            f"ON DUPLICATE KEY UPDATE {column} = VALUES({column})"
        )
        return self.random.choice(
            [
                upsert,
                upsert,
                f"UPDATE items SET {column} = {value}, n = n + 1 WHERE id % 7 = {key % 7}",  # noqa: S608
                f"DELETE FROM items WHERE id = {key}",  # noqa: S608
                f"UPDATE IGNORE items SET id = {other} WHERE id = {key}",  # noqa: S608
            ]
        )

    def _ddl(self, kind: str) -> list[str]:
        name = f"c{len(self.columns)}"
        if kind == "truncate":
            return ["TRUNCATE TABLE items"]
        if kind == "widen":
            return ["ALTER TABLE items MODIFY n bigint NOT NULL DEFAULT 0"]
        if kind == "add":
            self.columns.append(name)
            return [f"ALTER TABLE items ADD COLUMN {name} varchar(40)"]
        old = self.columns.pop()
        if kind == "drop":
            return [f"ALTER TABLE items DROP COLUMN {old}"]
        self.columns.append(f"{old}_new")
        # Nothing tells that it is the same column, so that only rows written again have it.
        touch = "UPDATE items SET n = n + 1"
        return [f"ALTER TABLE items RENAME COLUMN {old} TO {old}_new", touch]


def test_random_changes_with_ddl_leave_the_tables_equal(
    database: Database,
    mariadb: MariaDb,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    connector: str,
    lake: Lake,
) -> None:
    database.run(
        CREATE_MARKERS,
        "CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, note varchar(40))",
        "INSERT INTO items (id) VALUES (1), (2), (3)",
    )
    kafka_connect.capture_mariadb(
        connector,
        mariadb,
        [f"{database.name}.markers", f"{database.name}.items"],
        "json-schema",
        skipped__operations="none",
        value__converter__replace__null__with__default="false",
    )
    mirror = DebeziumMirror(
        lake, kafka_broker, connector, database.name, database.run, format="debezium-json"
    )
    model = Model(database)
    for kind in ("add", "rename", "widen", "truncate", "drop"):
        model.change(kind)
        mirror.follow()
        columns = "id, n, " + ", ".join(model.columns)
        assert (kind, mirror.rows("items", columns)) == (kind, database.rows("items", columns))
