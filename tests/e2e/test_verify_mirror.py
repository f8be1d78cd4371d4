"""`icestream verify` on a mirror of a real PostgreSQL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.fixtures.command_line import Ended, run_icestream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.postgres import Postgres

# Each of its commands starts Spark, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(900)

FILE = """\
sources:
  shop:
    connector: postgres-cdc
    config:
      host: {host}
      port: {port}
      database: {database}
      user: {user}
      password: ${{POSTGRES_PASSWORD}}
sinks:
  lake: {{connector: iceberg}}
pipelines:
  shop: {{source: shop, sink: lake}}
metrics: {{port: 0}}
"""
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text, born date, balance numeric(12, 2));
CREATE TABLE orders (region text, number int, at timestamptz, open time, uid uuid, tags text[],
                     PRIMARY KEY (region, number));
CREATE TABLE visits (what text);
CREATE TABLE notes (what text, who int);
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO customers SELECT n, 'name ' || n, '2000-01-01'::date + n, n / 3.0
FROM generate_series(1, 5000) AS n;
INSERT INTO orders SELECT 'r' || n % 3, n, now(), '12:34:56.789', gen_random_uuid(),
                          ARRAY['a', NULL]
FROM generate_series(1, 2000) AS n;
INSERT INTO visits SELECT 'page ' || n % 7 FROM generate_series(1, 100) AS n;
INSERT INTO notes SELECT 'note', n FROM generate_series(1, 50) AS n;
"""


class Shop:
    """A database, and the folder of its mirror."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.folder = folder
        database = server.new_database()
        self.dsn = server.dsn_of(database)
        self.env = {**os.environ, "POSTGRES_PASSWORD": server.password}
        text = FILE.format(host=server.host, port=server.port, database=database, user=server.user)
        (folder / "icestream.yaml").write_text(text, encoding="utf-8")

    def sql(self, *commands: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for command in commands:
                connection.execute(command)

    def icestream(self, *arguments: str) -> Ended:
        return run_icestream(*arguments, folder=self.folder, env=self.env)

    def verify(self, *arguments: str) -> dict[str, dict[str, Any]]:
        ended = self.icestream("verify", "--output", "json", *arguments)
        assert "tables" in ended.document, ended.out
        reports = {each["source"]: each for each in ended.document["tables"]}
        same = all(each["status"] == "same" for each in reports.values())
        assert (ended.code, ended.document["is_same"]) == ((0, True) if same else (4, False))
        return reports


@pytest.fixture
def shop(postgres: Postgres, tmp_path: Path) -> Shop:
    """A mirror that has caught up with its database. Tests change both, so each has its own."""
    shop = Shop(postgres, tmp_path)
    shop.sql(TABLES)
    ended = shop.icestream("run", "--once")
    assert ended.code == 0, ended.err
    return shop


def test_mirror_and_database_are_compared(shop: Shop) -> None:
    found = shop.verify()
    assert {name: each["status"] for name, each in found.items()} == {
        "public.customers": "same",
        "public.notes": "same",
        "public.orders": "same",
        "public.visits": "same",
    }
    customers = found["public.customers"]
    assert customers["in_lake"] == customers["in_source"]
    assert customers["in_lake"] == {"rows": 5000, "first_key": ["1"], "last_key": ["5000"]}
    assert found["public.orders"]["in_source"]["last_key"] == ["r2", "2000"]

    # Changes that the mirror has not read yet are not differences.
    shop.sql(
        "UPDATE customers SET name = 'new' WHERE id = 1",
        "DELETE FROM customers WHERE id = 2",
        "INSERT INTO customers VALUES (9000, 'nine', NULL, NULL)",
        "UPDATE customers SET id = 9001 WHERE id = 3",
        "UPDATE notes SET what = 'other' WHERE who = 1",
        "INSERT INTO visits VALUES ('page 8')",
        "TRUNCATE orders",
    )
    found = shop.verify()
    customers = found["public.customers"]
    assert (customers["status"], customers["changed_since"]) == ("same", 5)
    assert customers["in_lake"]["rows"] == customers["in_source"]["rows"] == 4997
    assert (found["public.notes"]["status"], found["public.notes"]["changed_since"]) == ("same", 2)
    assert found["public.visits"]["status"] == "not compared"
    assert found["public.visits"]["reason"] == (
        "it has no key, and 1 rows changed since the newest batch; "
        "run `icestream run --once`, then compare again"
    )
    assert found["public.orders"]["reason"].startswith("it was truncated after")

    # The comparison has not advanced the slot, and the pipeline reads every change.
    ended = shop.icestream("run", "--once")
    assert ended.code == 0, ended.err
    found = shop.verify()
    assert {each["status"] for each in found.values()} == {"same"}
    assert {each["changed_since"] for each in found.values()} == {0}
    assert found["public.orders"]["in_lake"]["rows"] == 0


def test_rows_with_lost_changes_are_reported(shop: Shop) -> None:
    shop.sql(
        "UPDATE customers SET name = repeat('x', 100), born = NULL WHERE id = 10",
        "DELETE FROM customers WHERE id = 11",
        "INSERT INTO customers VALUES (9500, 'a' || chr(10) || 'b', NULL, NULL)",
        # Another client advances the slot past the changes.
        "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn()) "
        "FROM pg_replication_slots WHERE database = current_database()",
    )
    ended = shop.icestream("verify", "--table", "customers", "--color", "never")
    assert (ended.code, ended.out) == (
        4,
        "✗ public.customers -> lake.public.customers: different\n"
        "    database  5,000 rows, keys 1 to 9500\n"
        "    lake      5,000 rows, keys 1 to 5000\n"
        "    1 missing in the lake, 1 only in the lake, 1 different; in 2 of 2 chunks\n"
        "    - id=9500  missing in the lake\n"
        "    + id=11  only in the lake\n"
        "    ~ id=10  different\n"
        f"        name: {'x' * 80}... in the database, name 10 in the lake\n"
        "        born: null in the database, 2000-01-11 in the lake\n",
    )


def test_unknown_table_is_refused(shop: Shop) -> None:
    ended = shop.icestream("verify", "--table", "nobody")
    assert (ended.code, ended.err) == (
        2,
        "error: icestream.yaml: no table is called 'nobody'\n"
        "  Available: public.customers, public.notes, public.orders, public.visits.\n",
    )


def test_unreachable_database_is_reported(postgres: Postgres, tmp_path: Path) -> None:
    shop = Shop(postgres, tmp_path)
    file = tmp_path / "icestream.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(f"port: {postgres.port}", "port: 1"), encoding="utf-8")
    ended = shop.icestream("verify")
    assert ended.code == 3
