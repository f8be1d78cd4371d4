"""Pipelines put together in Python: a mirror of a real PostgreSQL, and an endpoint for webhooks."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.fixtures.ports import free_port

from icestream.catalogs.jdbc import embedded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.postgres import Postgres

# Each of the programs starts Spark, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(600)

MIRROR = """
import json, sys
from icestream import IcebergOptions, IcebergSink, Pipeline, Settings
from icestream import PostgresCdcOptions, PostgresCdcSource

source = PostgresCdcSource(PostgresCdcOptions.model_validate_json(sys.argv[1]))
sink = IcebergSink(IcebergOptions(), Settings(master="local[2]"))
done = Pipeline.from_source(source).to_sink(sink).run("shop")
print(json.dumps([done.status()["rows"], done.metrics().records_written]))
"""
HOOK = """
import json, sys, time
from http.client import HTTPConnection
from icestream import IcebergOptions, IcebergSink, Pipeline, Settings
from icestream import WebhookOptions, WebhookSource

source = WebhookSource(WebhookOptions(port=int(sys.argv[1]), include=("event_id",)))
options = IcebergOptions(namespace=("shop",), table="orders", flush_interval_secs=0.2)
sink = IcebergSink(options, Settings(master="local[2]"))
running = Pipeline.from_source(source).to_sink(sink).start("hooks")
for number in (1, 2, 2):
    headers = {"content-type": "application/json", "idempotency-key": f"k{number}"}
    connection = HTTPConnection("127.0.0.1", source.port, timeout=10)
    connection.request("POST", "/", json.dumps({"id": number}), headers)
    assert connection.getresponse().status == 200
    connection.close()
until = time.monotonic() + 120
while running.status()["rows"] < 2 and time.monotonic() < until:
    time.sleep(0.1)
running.stop()
print(json.dumps([running.status()["rows"], running.metrics().records_written]))
"""


def counts(program: str, argument: str, folder: Path) -> list[int]:
    """Run a program, and return what it counted: rows by the status, and by the metrics."""
    done = subprocess.run(
        [sys.executable, "-c", program, argument],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    found = embedded(folder / "lake").client().load_table(table)
    rows: list[dict[str, Any]] = found.scan().to_arrow().to_pylist()
    return rows


def test_database_is_mirrored_from_python(tmp_path: Path, postgres: Postgres) -> None:
    database = postgres.new_database()
    options = {
        "host": postgres.host,
        "port": postgres.port,
        "database": database,
        "user": postgres.user,
        "password": postgres.password,
    }
    with psycopg.connect(postgres.dsn_of(database), autocommit=True) as session:
        session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount numeric(10,2))")
        session.execute("CREATE TABLE tags (name text PRIMARY KEY)")
        session.execute("INSERT INTO orders VALUES (1, 2.5), (2, 5)")
        session.execute("INSERT INTO tags VALUES ('a')")
        first = counts(MIRROR, json.dumps(options), tmp_path)
        session.execute("DELETE FROM orders WHERE id = 1")
        session.execute("INSERT INTO tags VALUES ('b')")
        second = counts(MIRROR, json.dumps(options), tmp_path)
        session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = current_database()"
        )

    assert first == [3, 3]
    assert second[0] == second[1] > 0
    assert rows_of(tmp_path, "public.orders") == [{"id": 2, "amount": Decimal("5.00")}]
    assert sorted(row["name"] for row in rows_of(tmp_path, "public.tags")) == ["a", "b"]


def test_webhooks_are_received_from_python(tmp_path: Path) -> None:
    assert counts(HOOK, str(free_port()), tmp_path) == [2, 2]
    taken = {row["id"]: row["webhook_event_id"] for row in rows_of(tmp_path, "shop.orders")}
    assert taken == {1: "k1", 2: "k2"}
