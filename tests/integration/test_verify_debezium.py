"""`verify` of mirrors whose databases real connectors of Debezium capture."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from tests.fixtures.debezium_mirror import CREATE_MARKERS, Captured
from tests.fixtures.mariadb_model import Database

from icestream.errors import RefusedError, UnreachableError
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.sink import IcebergTableSink
from icestream.sources.kafka import KafkaOptions, KafkaSource
from icestream.sources.kafka.database import DatabaseOptions
from icestream.verify import debezium_mysql, debezium_postgres
from icestream.verify.comparison import TableReport
from icestream.verify.debezium_mysql import MySqlSide
from icestream.verify.mysql_server import MySqlServer
from icestream.verify.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.debezium import ConnectWorker
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.mariadb import MariaDb
    from tests.fixtures.postgres import Postgres
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan

pytestmark = pytest.mark.timeout(600)


class Mirrored:
    """A pipeline from a captured database to a lake, and its verification."""

    def __init__(self, lake: Lake, captured: Captured, database: dict[str, Any]) -> None:
        self.lake, self.captured, self.database = lake, captured, database

    def plan(self, **database: Any) -> PipelinePlan:
        options = KafkaOptions.model_validate(
            {
                "brokers": self.captured.broker.bootstrap,
                "topic_pattern": self.captured.pattern,
                "format": "debezium-json",
                "database": {**self.database, **database},
            }
        )
        sink = IcebergTableSink.build(IcebergOptions(), self.lake.catalog, "lake", changes=True)
        return replace(self.lake.plan(KafkaSource(options)), sink=sink)

    def follow(self) -> None:
        self.captured.await_all()
        self.lake.run(self.plan())

    def verify(self, *tables: str, **database: Any) -> dict[str, TableReport]:
        plan: Any = SimpleNamespace(path="icestream.yaml", pipelines=[self.plan(**database)])
        reports = list(verify(plan, lambda: self.lake.spark, tables=tables))
        return {
            report.source.rpartition(".")[2]: report
            for report in reports
            if isinstance(report, TableReport)
        }


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for side in (debezium_mysql.MySqlSide, debezium_postgres.DebeziumPostgresSide):
        monkeypatch.setattr(side, "retry_secs", 0.5)


@pytest.fixture
def connector(kafka_connect: ConnectWorker) -> Iterator[str]:
    """The name of a connector, which is removed in the end."""
    name = f"verify-{uuid.uuid4().hex[:8]}"
    yield name
    if kafka_connect.status(name) is not None:
        kafka_connect.remove(name)


KINDS = (
    "CREATE TABLE kinds (id bigint PRIMARY KEY, small smallint, whole int unsigned,"
    " big bigint unsigned, price decimal(10,2), ratio double, approx float, day date,"
    " clock time(3), exact time(6), local datetime(6), at timestamp(3) NULL, word varchar(20)"
    " CHARACTER SET utf8mb4, fixed char(5), raw varbinary(20), pad binary(4), doc json,"
    " pick enum('a','b'), picks set('x','y'), y year, flag bit(1), bits bit(10),"
    " huge decimal(50,3))"
)
A_KIND = (
    "({}, -5, 4294967295, 18446744073709551615, -12345678.91, 0.1, 1.2345678, '2024-02-29',"
    " '-100:34:56.789', '12:34:56.000010', '2024-02-29 12:34:56.789012',"
    " '2024-02-29 12:34:56.5', 'vär', 'ab', X'DEAD', X'0100', '{{\"a\": [1, 2]}}', 'b', 'x,y',"
    " 2024, b'1', b'1000000001', 12345678901234567890123456789012345678901234567.123)"
)


def test_mirror_of_mariadb_is_compared(
    mariadb: MariaDb,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    connector: str,
    lake: Lake,
) -> None:
    database = Database(mariadb)
    database.run(
        CREATE_MARKERS,
        KINDS,
        f"INSERT INTO kinds VALUES {A_KIND.format(1)}, {A_KIND.format(2)}",  # noqa: S608
        "CREATE TABLE pairs (a int, b varchar(10), v text, PRIMARY KEY (a, b))",
        "INSERT INTO pairs VALUES (1, 'x', 'one'), (1, 'y', NULL), (2, 'x', '')",
    )
    names = [f"{database.name}.{table}" for table in ("markers", "kinds", "pairs")]
    kafka_connect.capture_mariadb(
        connector,
        mariadb,
        names,
        "json-schema",
        value__converter__replace__null__with__default="false",
    )
    captured = Captured(kafka_broker, connector, database.name, database.run)
    login = {"user": mariadb.user, "password": mariadb.password}
    server = {"type": "mariadb", "host": mariadb.host, "port": mariadb.port, **login}
    mirror = Mirrored(lake, captured, server)
    mirror.follow()
    database.run(
        f"INSERT INTO kinds VALUES {A_KIND.format(3)}",  # noqa: S608
        "INSERT INTO kinds (id) VALUES (4)",
        "UPDATE kinds SET word = NULL, at = NULL WHERE id = 2",
        "DELETE FROM kinds WHERE id = 1",
    )
    mirror.follow()

    found = mirror.verify()
    assert {name: (one.status, one.reason, one.rows) for name, one in found.items()} == {
        "kinds": ("same", "", ()),
        "markers": ("same", "", ()),
        "pairs": ("same", "", ()),
    }
    assert found["kinds"].left_out == {
        "approx": "float, of which snapshots and the binary log give different digits",
    }
    assert found["kinds"].in_source == found["kinds"].in_lake
    cut = mirror.verify("kinds", time_precision_mode="connect")["kinds"]
    assert (cut.status, sorted(cut.left_out)) == ("same", ["approx", "exact", "local"])

    # A change that is in Kafka, and not in the table.
    database.run("UPDATE pairs SET v = 'new' WHERE a = 2")
    captured.await_all()
    behind = mirror.verify("pairs")["pairs"]
    assert (behind.status, behind.reason) == (
        "not compared",
        "1 records of its topics are not in the table yet; run `icestream run --once`, then "
        "compare again",
    )
    mirror.follow()
    assert mirror.verify("pairs")["pairs"].status == "same"

    # A change that Debezium never sees.
    with mariadb.connect(database.name) as other, other.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("UPDATE pairs SET v = 'hidden' WHERE a = 2")
        cursor.execute("DELETE FROM pairs WHERE a = 1 AND b = 'x'")
        cursor.execute("DROP TABLE markers")
    found = mirror.verify("pairs", "markers")
    assert (found["pairs"].status, found["pairs"].counts) == (
        "different",
        {"extra": 1, "different": 1},
    )
    assert found["pairs"].rows[1].columns == {"v": ("hidden", "new")}
    assert (found["markers"].status, found["markers"].reason) == (
        "not compared",
        "the table no longer exists in the database",
    )
    database.connection.close()


def mysql_server(mariadb: MariaDb, **options: Any) -> MySqlServer:
    login = {"user": mariadb.user, "password": mariadb.password}
    server = {"type": "mariadb", "host": mariadb.host, "port": mariadb.port}
    return MySqlServer(DatabaseOptions.model_validate({**server, **login, **options}))


def test_wrong_password_is_refused_and_not_shown(mariadb: MariaDb) -> None:
    server = mysql_server(mariadb, password="hunter-2")  # noqa: S106
    with pytest.raises(RefusedError) as caught, server.connect():
        pass
    user = f"'{mariadb.user}'@'{mariadb.host}'"
    assert str(caught.value) == (
        f"mariadb {mariadb.host}:{mariadb.port}: the server refused user {mariadb.user!r}: Access "
        f"denied for user {user} (using password: YES)\n"
        "  Check `user` and `password` of `database`, and that the user may SELECT from the tables."
    )


def test_unreachable_server_is_reported(mariadb: MariaDb) -> None:
    with pytest.raises(UnreachableError) as caught, mysql_server(mariadb, port=1).connect():
        pass
    assert str(caught.value) == (
        f"mariadb {mariadb.host}:1: connection to {mariadb.host}:1 refused\n"
        "  Is the server running? Check `host` and `port` of `database`."
    )


def test_required_encryption_is_never_left_out(mariadb: MariaDb) -> None:
    for sslmode in ("require", "verify-ca", "verify-full"):
        server = mysql_server(mariadb, sslmode=sslmode)
        with pytest.raises(RefusedError) as caught, server.connect():
            pass
        assert str(caught.value) == (
            f"mariadb {mariadb.host}:{mariadb.port}: TLS connection failed: SSL is required but "
            "the server doesn't support it\n"
            "  Check `sslmode` of `database`, and the server's certificate."
        )
    for sslmode in ("disable", "allow", "prefer"):
        with mysql_server(mariadb, sslmode=sslmode).connect() as session:
            assert session.rows("SELECT 1") == [(1,)]


def test_large_table_is_read_in_ranges_of_its_key(
    mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debezium_mysql, "MIN_ROWS_PER_PART", 10)
    database = Database(mariadb)
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(9))",
        "INSERT INTO t SELECT seq, 'x' FROM seq_7_to_106",
    )
    options = mysql_server(mariadb).options
    names = (database.name, "t")
    columns = pa.schema([("id", pa.int32()), ("v", pa.string())])
    lag: Any = SimpleNamespace(behind=lambda _: {})
    lakes: Any = {names: SimpleNamespace(columns=columns)}
    side = MySqlSide(options, lakes, lag)
    table = side.point({names: {}}).tables[names]
    parts = side.parts(table, 4)
    reader = side.reader(table)
    ids = [
        [row["id"] for batch in reader.read(part) for row in batch.to_pylist()] for part in parts
    ]
    assert [len(part) for part in ids] == [25, 25, 25, 25]
    assert sorted(number for part in ids for number in part) == list(range(7, 107))
    database.connection.close()


ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, what varchar(80), price numeric(10,2), total numeric,"
    " at timestamptz, day date, clock time, local timestamp, who uuid, doc jsonb, raw bytea,"
    " tags text[], ratio double precision, approx real, is_open boolean, span interval,"
    " zoned timetz, mood mood, few numeric(6,1)[])"
)
AN_ORDER = (
    "INSERT INTO orders SELECT n, 'thing ' || n, n / 7.0, n / 8.0, '2024-02-29 12:34:56.789012+02',"
    " '2024-02-29', '12:34:56.789', '1999-12-31 23:59:59.5', gen_random_uuid(), '[1, 2]',"
    " '\\xdead', ARRAY['x', NULL], n / 3.0, n / 3.0, n % 2 = 0, '1 hour', '12:00+02', 'fine',"
    " ARRAY[1.5] FROM generate_series({}, {}) n"
)


def test_mirror_of_postgresql_is_compared(
    postgres: Postgres,
    kafka_connect: ConnectWorker,
    kafka_broker: KafkaBroker,
    connector: str,
    lake: Lake,
) -> None:
    name = postgres.new_database()
    with psycopg.connect(postgres.dsn_of(name), autocommit=True) as connection:

        def run(*commands: str) -> None:
            for command in commands:
                connection.execute(command)

        run(
            CREATE_MARKERS,
            "CREATE TYPE mood AS ENUM ('fine', 'sad')",
            ORDERS,
            AN_ORDER.format(1, 300),
            "CREATE TABLE log (at int, line text)",
            "ALTER TABLE log REPLICA IDENTITY FULL",
            "INSERT INTO log VALUES (1, 'a'), (1, 'a'), (2, NULL)",
        )
        tables = ["public.markers", "public.orders", "public.log"]
        kafka_connect.capture_postgres(
            connector,
            postgres,
            name,
            tables,
            "json-schema",
            value__converter__replace__null__with__default="false",
        )
        captured = Captured(kafka_broker, connector, "public", run)
        server = {"type": "postgres", "host": postgres.host, "port": postgres.port}
        login = {"database": name, "user": postgres.user, "password": postgres.password}
        mirror = Mirrored(lake, captured, {**server, **login})
        mirror.follow()
        run(
            "UPDATE orders SET what = 'changed', price = -0.01, total = 1e30 WHERE id <= 20",
            "UPDATE orders SET ratio = 'NaN', tags = NULL, total = 120 WHERE id = 21",
            "DELETE FROM orders WHERE id BETWEEN 30 AND 40",
            "INSERT INTO orders (id) VALUES (30)",
        )
        mirror.follow()

        found = mirror.verify()
        assert {name: (one.status, one.reason, one.rows) for name, one in found.items()} == {
            "log": ("same", "", ()),
            "markers": ("same", "", ()),
            "orders": ("same", "", ()),
        }
        assert found["log"].in_lake.rows == 3
        assert found["orders"].left_out == {
            "span": "interval in the database, int64 in the lake",
            "zoned": "timetz, which Debezium writes in another form",
            "few": "numeric(6,1)[], which Debezium writes in another form",
        }

        # A row that the lake has lost.
        lake.sql("DELETE FROM lake.public.orders WHERE id = 7")
        orders = mirror.verify("orders")["orders"]
        assert (orders.status, orders.counts) == ("different", {"missing": 1})
