"""Tables of a real MariaDB, captured by a real connector, mirrored through Kafka."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.debezium_mirror import CREATE_MARKERS, Captured, DebeziumMirror, in_order
from tests.fixtures.mariadb_model import CREATE_ITEMS, KINDS_OF_DDL, Database, Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.debezium import ConnectWorker
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.mariadb import MariaDb
    from tests.fixtures.schema_registry import SchemaRegistry
    from tests.fixtures.spark import Lake


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
    captured = Captured(kafka_broker, connector, database.name, database.run)
    registry = {"url": schema_registry.url}
    mirror = DebeziumMirror(lake, captured, format="debezium-avro", schema_registry=registry)
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


def test_random_changes_with_ddl_leave_the_tables_equal(
    database: Database,
    mariadb: MariaDb,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    connector: str,
    lake: Lake,
) -> None:
    database.run(CREATE_MARKERS, *CREATE_ITEMS)
    kafka_connect.capture_mariadb(
        connector,
        mariadb,
        [f"{database.name}.markers", f"{database.name}.items"],
        "json-schema",
        skipped__operations="none",
        value__converter__replace__null__with__default="false",
    )
    captured = Captured(kafka_broker, connector, database.name, database.run)
    mirror = DebeziumMirror(lake, captured, format="debezium-json")
    model = Model(database, seed=20261115)
    for kind in KINDS_OF_DDL:
        model.change(kind)
        mirror.follow()
        assert (kind, mirror.rows("items", model.selection)) == (kind, model.rows())
