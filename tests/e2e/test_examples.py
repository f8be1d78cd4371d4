"""Every file of `examples/`, run as its comment says, with the rows read back by PyIceberg."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from tests.fixtures.command_line import run_icestream
from tests.fixtures.oauth_gateway import OAuthGateway
from tests.fixtures.ports import answers, free_port
from tests.fixtures.waiting import wait_until

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import RunProcess

if TYPE_CHECKING:
    import pytest
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.postgres import Postgres
    from tests.fixtures.rest_catalog import RestCatalog
    from tests.fixtures.s3_store import S3Store

EXAMPLES = Path(__file__).parents[2] / "examples"


def copied(example: str, folder: Path) -> Path:
    """Copy an example, so that what it writes does not land in the project."""
    leave_out = shutil.ignore_patterns(".icestream", "lake")
    return Path(shutil.copytree(EXAMPLES / example, folder / example, ignore=leave_out))


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    found = embedded(folder / "lake").client().load_table(table)
    rows: list[dict[str, Any]] = found.scan().to_arrow().to_pylist()
    return rows


def partitions_of(folder: Path, table: str) -> int:
    found = embedded(folder / "lake").client().load_table(table)
    return len({str(task.file.partition) for task in found.scan().plan_files()})


def test_datagen_to_lake(tmp_path: Path) -> None:
    folder = copied("datagen_to_lake", tmp_path)

    ended = run_icestream("run", "--once", folder=folder)

    assert ended.code == 0, ended.err
    rows = rows_of(folder, "shop.events")
    assert sorted(row["event_id"] for row in rows) == list(range(100_000))


def test_files_to_lake_keeps_good_and_bad_lines(tmp_path: Path) -> None:
    folder = copied("files_to_lake", tmp_path)

    ended = run_icestream("run", "--once", folder=folder)

    assert ended.code == 0, ended.err
    rows = rows_of(folder, "sales.orders")
    assert sorted(row["id"] for row in rows) == [1, 2, 3, 4, 6]
    assert partitions_of(folder, "sales.orders") == 2
    (bad,) = rows_of(folder, "sales.orders_bad")
    assert json.loads(bad["raw"])["id"] == 5
    assert bad["position"].endswith("incoming/2026-11-15.json:2")


def test_events_to_many_tables(tmp_path: Path) -> None:
    folder = copied("events_to_many_tables", tmp_path)

    ended = run_icestream("run", "--once", folder=folder)

    assert ended.code == 0, ended.err
    ids: list[int] = []
    for kind in ("view", "cart", "purchase", "refund"):
        rows = rows_of(folder, f"shop.{kind}_events")
        assert {row["event_type"] for row in rows} == {kind}
        ids += [row["event_id"] for row in rows]
    assert sorted(ids) == list(range(20_000))


def test_write_audit_publish_shows_only_audited_rows(tmp_path: Path) -> None:
    folder = copied("write_audit_publish", tmp_path)
    ended = run_icestream("run", "--once", folder=folder)
    assert ended.code == 0, ended.err
    assert sorted(row["id"] for row in rows_of(folder, "sales.orders")) == [1, 2, 3]

    bad = '{"id": 4, "customer": "Alan", "amount": -5.00}\n'
    (folder / "incoming" / "2026-11-15.json").write_text(bad)
    ended = run_icestream("run", "--once", folder=folder)
    assert ended.code == 5, ended.err
    assert "check 'no order costs less than nothing' finds 1 row on branch 'audit'" in ended.err
    assert sorted(row["id"] for row in rows_of(folder, "sales.orders")) == [1, 2, 3]

    query = "SELECT id FROM sales.orders WHERE amount < 0"
    found = run_icestream("query", "--branch", "audit", query, "--output", "json", folder=folder)
    assert found.document["rows"] == [{"id": 4}]


def test_kafka_to_lake(tmp_path: Path, kafka_broker: KafkaBroker) -> None:
    folder = copied("kafka_to_lake", tmp_path)
    topic = kafka_broker.new_topic("orders", partitions=4)
    orders = [{"id": n, "customer": f"c{n % 7}", "amount": n / 4} for n in range(1000)]
    for partition in range(4):
        mine = [json.dumps(order) for order in orders[partition::4]]
        kafka_broker.produce(topic, mine, partition=partition)
    env = {**os.environ, "KAFKA_BROKERS": kafka_broker.bootstrap, "KAFKA_TOPIC": topic}

    ended = run_icestream("run", "--once", folder=folder, env=env)

    assert ended.code == 0, ended.err
    rows = rows_of(folder, "sales.orders")
    # The filter of the example leaves out the order that costs nothing.
    assert sorted(row["id"] for row in rows) == list(range(1, 1000))
    assert {row["kafka_partition"] for row in rows} == {0, 1, 2, 3}


def test_rest_catalog_on_s3(
    tmp_path: Path, rest_catalog_on_s3: RestCatalog, s3_store: S3Store
) -> None:
    folder = copied("rest_catalog_on_s3", tmp_path)
    with OAuthGateway(rest_catalog_on_s3.uri) as gateway:
        env = {
            **os.environ,
            "CATALOG_URI": gateway.uri,
            "CATALOG_TOKEN_URI": gateway.token_uri,
            "CATALOG_CREDENTIAL": gateway.credential,
            "S3_ENDPOINT": s3_store.endpoint,
            "AWS_ACCESS_KEY_ID": s3_store.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3_store.secret_access_key,
        }
        checked = run_icestream("check", folder=folder, env=env)
        ended = run_icestream("run", "--once", folder=folder, env=env)
        counted = run_icestream(
            "query",
            "SELECT count(*) AS n FROM shop.events",
            "--output=json",
            folder=folder,
            env=env,
        )

    assert checked.code == 0, checked.out
    assert ended.code == 0, ended.err
    assert counted.document["rows"] == [{"n": 20_000}]


def test_webhook_to_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied("webhook_to_lake", tmp_path)
    port = free_port()
    monkeypatch.setenv("WEBHOOK_PORT", str(port))
    monkeypatch.setenv("WEBHOOK_TOKEN", "a-token-of-the-test")
    checked = run_icestream("check", folder=folder)
    assert checked.code == 0, checked.out

    def post(stream: str, key: str, event: dict[str, Any]) -> dict[str, Any]:
        headers = {
            "authorization": "Bearer a-token-of-the-test",
            "content-type": "application/json",
            "idempotency-key": key,
        }
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("POST", f"/hooks/{stream}", json.dumps(event), headers)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    with RunProcess(folder) as run:
        wait_until(lambda: answers(port) or run.process.poll() is not None, "the endpoint", secs=60)
        for number in range(20):
            stream = "orders" if number % 4 else "refunds"
            assert post(stream, f"k{number}", {"id": number, "amount": number / 4})["taken"] == 1
        assert post("orders", "k1", {"id": 1, "amount": 0.25})["already_had"] == 1
        run.await_lines("batch ")
        run.signal(signal.SIGTERM)
        assert run.wait() == 0, run.output
    # What came after the last batch is still in the spool.
    assert run_icestream("run", "--once", folder=folder).code == 0

    orders, refunds = rows_of(folder, "shop.orders"), rows_of(folder, "shop.refunds")
    assert sorted(row["id"] for row in refunds) == [0, 4, 8, 12, 16]
    assert sorted(row["id"] for row in orders) == [n for n in range(20) if n % 4]
    assert {row["webhook_event_id"] for row in orders} == {f"k{n}" for n in range(20) if n % 4}
    assert "a-token-of-the-test" not in run.output


def test_python_api(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "python_api.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    totals = rows_of(tmp_path, "shop.purchases")
    assert 1_000 < len(totals) < 3_000
    assert set(totals[0]) == {"event_id", "product", "total"}
    prices = rows_of(tmp_path, "shop.prices")
    assert {row["product"]: row["price"] for row in prices} == {
        "mug": 9.5,
        "lamp": 39.0,
        "chair": 129.0,
    }


def test_postgres_mirror(tmp_path: Path, postgres: Postgres) -> None:
    folder, database = copied("postgres_mirror", tmp_path), postgres.new_database()
    with psycopg.connect(postgres.dsn_of(database), autocommit=True) as session:
        session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(10,2))")
        session.execute("CREATE TABLE tags (name text PRIMARY KEY)")
        session.execute("INSERT INTO orders VALUES (1, 2.5), (2, 5)")
        session.execute("INSERT INTO tags VALUES ('a')")
        env = {
            **os.environ,
            "PGHOST": postgres.host,
            "PGPORT": str(postgres.port),
            "PGDATABASE": database,
            "PGUSER": postgres.user,
            "PGPASSWORD": postgres.password,
        }
        first = run_icestream("run", "--once", folder=folder, env=env)
        session.execute("DELETE FROM orders WHERE id = 1")
        session.execute("INSERT INTO tags VALUES ('b')")
        second = run_icestream("run", "--once", folder=folder, env=env)
        session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = current_database()"
        )

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert rows_of(folder, "public.orders") == [{"id": 2, "amount": Decimal("5.00")}]
    assert sorted(row["name"] for row in rows_of(folder, "public.tags")) == ["a", "b"]


def test_kafka_to_lake_is_tested_without_kafka(tmp_path: Path) -> None:
    folder = copied("kafka_to_lake", tmp_path)
    before = {path.name for path in folder.iterdir()}

    ended = run_icestream("test", folder=folder)

    assert (ended.code, ended.err) == (0, "Starting Spark ...\n")
    assert ended.out.splitlines()[-1].startswith("2 passed in ")
    assert {path.name for path in folder.iterdir()} == before
