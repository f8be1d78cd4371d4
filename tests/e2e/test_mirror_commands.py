"""The commands that show tables, on a mirror of a real PostgreSQL."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.fixtures.command_line import Ended, run_icestream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.postgres import Postgres

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
      slot_name: {database}
sinks:
  lake: {{connector: iceberg, config: {{namespace: shop}}}}
pipelines:
  shop: {{source: shop, sink: lake}}
metrics: {{port: 0}}
"""
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, what text, price numeric(10, 2));
CREATE TABLE visits (id int);
INSERT INTO orders SELECT n, 'thing ' || n, n / 7.0 FROM generate_series(1, 1000) AS n;
"""


class Shop:
    """A database, and the folder of its mirror."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.folder = folder
        self.database = server.new_database()
        self.dsn = server.dsn_of(self.database)
        self.env = {**os.environ, "POSTGRES_PASSWORD": server.password}
        self.text = FILE.format(
            host=server.host, port=server.port, database=self.database, user=server.user
        )
        (folder / "icestream.yaml").write_text(self.text, encoding="utf-8")

    def sql(self, *commands: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for command in commands:
                connection.execute(command)

    def icestream(self, *arguments: str) -> Ended:
        return run_icestream(*arguments, folder=self.folder, env=self.env)

    def tables(self, command: str) -> list[dict[str, Any]]:
        document = self.icestream(command, "--output", "json").document
        tables: list[dict[str, Any]] = document["pipelines"][0]["tables"]
        return tables


@pytest.fixture
def shop(postgres: Postgres, tmp_path: Path) -> Shop:
    shop = Shop(postgres, tmp_path)
    shop.sql(TABLES)
    return shop


def lines_of(ended: Ended, *labels: str) -> list[str]:
    """Return the lines of a plan with these labels."""
    assert ended.code == 0, ended.err
    return [line for line in ended.out.splitlines() if line[4:11].strip() in labels]


def test_commands_see_the_tables_of_a_mirror(shop: Shop) -> None:
    name = shop.database
    assert lines_of(shop.icestream("plan"), "source", "table") == [
        f"    source     shop: postgres-cdc {name} {name}",
        f"  + source     publication {name} would be created",
        f"  + source     publication {name}_appends would be created",
        f"  + source     replication slot {name} would be created",
        "    table      lake.shop.* mirrors 2 tables",
        "  + table      lake.shop.orders would be created from public.orders with 3 columns, key "
        "id; unpartitioned: about 90 kB in the source",
        "  + table      lake.shop.visits would be created from public.visits with 1 column, no "
        "key; unpartitioned: empty in the source",
        "  + table      properties of a new table:",
    ]
    ended = shop.icestream("run", "--once")
    assert ended.code == 0, ended.err
    assert lines_of(shop.icestream("plan"), "source", "table") == [
        f"    source     shop: postgres-cdc {name} {name}",
        f"    source     publication {name} exists",
        f"    source     publication {name}_appends exists",
        f"    source     replication slot {name} exists",
        "    table      lake.shop.* mirrors 2 tables",
        "    table      lake.shop.orders exists",
        "    table      lake.shop.visits exists",
    ]
    check_reading_commands(shop)
    shop.sql("ALTER TABLE orders RENAME what TO kind", "CREATE TABLE people (id int PRIMARY KEY)")
    assert [one["action"] for one in shop.tables("plan")] == ["change", "create", "none"]
    ended = shop.icestream("schema", "diff", "--detailed-exitcode")
    assert ended.code == 4, ended.err
    assert "shop -> lake.shop.orders (schema_evolution: full)\n  ~ rename 'what' to 'kind'" in (
        ended.out
    )
    check_without_database(shop)


def check_reading_commands(shop: Shop) -> None:
    assert [(one["table"], one["table_rows"]) for one in shop.tables("status")] == [
        ("lake.shop.orders", 1000),
        ("lake.shop.visits", 0),
    ]
    for command in (["snapshots"], ["schema", "show"]):
        document = shop.icestream(*command, "--output", "json").document
        assert [(one["table"], one["source"]) for one in document["tables"]] == [
            ("lake.shop.orders", "public.orders"),
            ("lake.shop.visits", "public.visits"),
        ]
    document = shop.icestream("snapshots", "public.orders", "--output", "json").document
    assert document["table"] == "lake.shop.orders"
    ended = shop.icestream("query", "SELECT count(*) FROM public.orders")
    assert ended.err == (
        "error: no table is called 'public.orders'\n"
        "  Did you mean 'shop.orders'? Available: lake.shop.orders, lake.shop.visits.\n"
    )


def check_without_database(shop: Shop) -> None:
    """Check the commands where the database can't be reached, and there is no state folder."""
    text = re.sub("port: [0-9]+", "port: 1", shop.text, count=1)
    (shop.folder / "icestream.yaml").write_text(text, encoding="utf-8")
    shutil.rmtree(shop.folder / ".icestream")
    assert lines_of(shop.icestream("plan"), "table") == [
        "  ? table      lake.shop.* unknown: source postgres-cdc "
        f"127.0.0.1:1/{shop.database}: connection to 127.0.0.1:1 refused",
        "    table      lake.shop.orders exists",
        "    table      lake.shop.visits exists",
    ]
    assert [one["table_rows"] for one in shop.tables("status")] == [1000, 0]
    assert shop.icestream("schema", "diff").code == 3


RULES = """\
pipelines:
  shop:
    source: shop
    sink: lake
    transforms: [{drop: [secret]}]
    tables:
      public.people:
        transforms:
          - filter: active
          - compute: {email: "sha2(email, 256)"}
        expect: [{name: adult, expr: age >= 18, on_fail: drop}]
"""


def test_transforms_of_the_file_apply_to_a_mirror(shop: Shop) -> None:
    rules = shop.text.replace("pipelines:\n  shop: {source: shop, sink: lake}\n", RULES)
    (shop.folder / "icestream.yaml").write_text(rules, encoding="utf-8")
    shop.sql(
        "CREATE TABLE people (id int PRIMARY KEY, email text, age int, active bool, secret text)",
        "INSERT INTO people VALUES (1, 'a', 30, true, 'x'), (2, 'b', 30, false, 'x'), "
        "(3, 'c', 9, true, 'x')",
    )
    assert shop.icestream("check").code == 0
    ended = shop.icestream("run", "--once")
    assert ended.code == 0, ended.err
    shop.sql("UPDATE people SET active = NOT active WHERE id < 3", "DELETE FROM orders")
    ended = shop.icestream("run", "--once")
    assert ended.code == 0, ended.err

    query = "SELECT * FROM shop.people"
    found = shop.icestream("query", query, "--output", "json").document["rows"]
    digest = hashlib.sha256(b"b").hexdigest()
    assert found == [{"id": 2, "email": digest, "age": 30, "active": True}]
    count = shop.icestream("query", "SELECT count(*) AS n FROM shop.orders", "--output", "json")
    assert count.document["rows"] == [{"n": 0}]
