"""Tables of a real PostgreSQL, captured by a real connector, mirrored through Kafka."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.fixtures.debezium_mirror import CREATE_MARKERS, Captured, DebeziumMirror, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.debezium import ConnectWorker
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.postgres import Postgres
    from tests.fixtures.schema_registry import SchemaRegistry
    from tests.fixtures.spark import Lake

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, what varchar(80), price numeric(10,2), total numeric,"
    " at timestamptz, day date, clock time, local timestamp, who uuid, doc jsonb, raw bytea,"
    " tags text[], ratio double precision, is_open boolean)"
)
AN_ORDER = (
    "INSERT INTO orders SELECT n, 'thing ' || n, n / 7.0, n / 8.0, '2024-02-29 12:34:56.789012+02',"
    " '2024-02-29', '12:34:56.789', '1999-12-31 23:59:59.5', gen_random_uuid(), '[1, 2]',"
    " '\\xdead', ARRAY['x', NULL], n / 3.0, n % 2 = 0 FROM generate_series({}, {}) n"
)


class Database:
    """A database with tables that a connector captures."""

    def __init__(self, server: Postgres) -> None:
        self.name = server.new_database()
        self.connection = psycopg.connect(server.dsn_of(self.name), autocommit=True)

    def run(self, *commands: str) -> None:
        for command in commands:
            self.connection.execute(command)

    def rows(self, table: str, columns: str = "*") -> list[dict[str, Any]]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return in_order(cursor.execute(f"SELECT {columns} FROM {table}").fetchall())  # noqa: S608


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    database = Database(postgres)
    yield database
    database.connection.close()


@pytest.fixture
def connector(kafka_connect: ConnectWorker) -> Iterator[str]:
    """The name of a connector, which is removed in the end."""
    name = f"pg-{uuid.uuid4().hex[:8]}"
    yield name
    if kafka_connect.status(name) is not None:
        kafka_connect.remove(name)


def options_of(converter: str, registry: SchemaRegistry) -> dict[str, Any]:
    if converter == "avro":
        return {"format": "debezium-avro", "schema_registry": {"url": registry.url}}
    return {"format": "debezium-json"}


# Debezium leaves out zeros at the end of a number of any scale. The others here are text.
COLUMNS = (
    "id, what, price, at, day, local, who, raw, tags, ratio, is_open, "
    "trim_scale(total)::text AS total, doc::text AS doc, "
    "clock::text AS clock"
)


@pytest.mark.parametrize("converter", ["json-schema", "avro"])
def test_tables_equal_those_of_the_database(
    database: Database,
    postgres: Postgres,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    schema_registry: SchemaRegistry,
    connector: str,
    lake: Lake,
    converter: Any,
) -> None:
    database.run(
        CREATE_MARKERS,
        ORDERS,
        AN_ORDER.format(1, 300),
        "CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b))",
        "INSERT INTO pairs VALUES (1, 'x', 'one'), (1, 'y', NULL), (2, 'x', '')",
        "CREATE TABLE heavy (id int PRIMARY KEY, n int, big text, raw bytea)",
        "ALTER TABLE heavy ALTER big SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL",
        "INSERT INTO heavy VALUES (1, 1, repeat('x', 5000), decode(repeat('ab', 5000), 'hex'))",
        "CREATE TABLE log (at int, line text)",
        "INSERT INTO log VALUES (1, 'a'), (1, 'a')",
    )
    tables = ["public.markers", "public.orders", "public.pairs", "public.heavy", "public.log"]
    kafka_connect.capture_postgres(
        connector,
        postgres,
        database.name,
        tables,
        converter,
        schema_registry,
        skipped__operations="none",
        provide__transaction__metadata="true",
        # Else a null in a column with a default comes as the default. Avro's converter does that.
        value__converter__replace__null__with__default="false",
    )
    source = options_of(converter, schema_registry)
    captured = Captured(kafka_broker, connector, "public", database.run)
    mirror = DebeziumMirror(lake, captured, **source)

    def assert_same() -> None:
        mirror.follow()
        assert mirror.rows("orders") == database.rows("orders", COLUMNS)
        for table in ("pairs", "heavy", "log"):
            assert mirror.rows(table) == database.rows(table)

    assert_same()
    database.run(
        AN_ORDER.format(301, 310),
        "UPDATE orders SET what = 'changed', price = -0.01 WHERE id <= 20",
        "UPDATE orders SET ratio = 'NaN', tags = NULL, total = 1e30 WHERE id = 21",
        "UPDATE orders SET ratio = 0 WHERE id = 21",
        "DELETE FROM orders WHERE id BETWEEN 30 AND 40",
        "UPDATE orders SET id = 1000 WHERE id = 50",
        "INSERT INTO orders (id) VALUES (30)",
        "UPDATE pairs SET b = 'z', v = 'moved' WHERE a = 1 AND b = 'x'",
        "DELETE FROM pairs WHERE a = 2",
        "UPDATE heavy SET n = 2",
        "INSERT INTO log VALUES (2, NULL)",
    )
    assert_same()
    database.run(
        "ALTER TABLE pairs ADD COLUMN extra numeric(6,3) DEFAULT 1.5",
        "INSERT INTO pairs VALUES (3, 'x', 'three', 2.25)",
        "UPDATE pairs SET v = 'all'",
        "TRUNCATE heavy",
        "INSERT INTO heavy VALUES (7, 7, 'seven', NULL)",
    )
    assert_same()
    extra = "4.5" if converter == "avro" else "NULL"
    database.run(
        "ALTER TABLE pairs ALTER COLUMN a TYPE bigint, DROP COLUMN v",
        "UPDATE pairs SET extra = 3",
        f"INSERT INTO pairs VALUES (10000000000, 'x', {extra})",  # noqa: S608
        "TRUNCATE heavy",
    )
    mirror.follow()
    assert mirror.rows("pairs", "a, b, extra") == database.rows("pairs")
    assert mirror.rows("heavy") == []


def test_rows_of_json_without_schemas_have_the_types_that_they_show(
    database: Database,
    postgres: Postgres,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    connector: str,
    lake: Lake,
) -> None:
    database.run(
        CREATE_MARKERS,
        "CREATE TABLE people (id bigint PRIMARY KEY, name text, height float8, born date)",
        "INSERT INTO people VALUES (1, 'Ada', 1.65, '1815-12-10'), (2, NULL, 2, NULL)",
    )
    tables = ["public.markers", "public.people"]
    kafka_connect.capture_postgres(connector, postgres, database.name, tables)
    captured = Captured(kafka_broker, connector, "public", database.run)
    mirror = DebeziumMirror(lake, captured, format="debezium-json")
    mirror.follow()
    database.run(
        "UPDATE people SET name = '2024-01-01' WHERE id = 2",
        "ALTER TABLE people ADD COLUMN note text",
        "INSERT INTO people VALUES (3, 'Grace', 'Infinity', NULL, 'new')",
        "DELETE FROM people WHERE id = 1",
    )
    mirror.follow()
    assert mirror.rows("people") == database.rows(
        "people", "id, name, height, born - '1970-01-01' AS born, note"
    )
