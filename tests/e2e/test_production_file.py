"""The production file: changes of PostgreSQL into a table of Glue on S3, as a user runs it."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.e2e.test_examples import copied
from tests.fixtures.command_line import run_icestream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.table import Table
    from tests.fixtures.glue import GlueServer
    from tests.fixtures.postgres import Postgres
    from tests.fixtures.s3_store import S3Store

DROP_SLOT = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    " WHERE slot_name = 'icestream_orders'"
)


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    """A database with orders of three days; the file's slot goes with it."""
    with psycopg.connect(postgres.dsn_of(postgres.new_database()), autocommit=True) as session:
        session.execute(
            "CREATE TABLE orders (order_id bigint PRIMARY KEY, order_date timestamptz NOT NULL,"
            " customer text, amount numeric(12,2))"
        )
        session.execute(
            "INSERT INTO orders SELECT n, timestamptz '2026-11-10 12:00+00' + n % 3 * interval"
            " '1 day', 'customer ' || n % 7, n / 4.0 FROM generate_series(1, 3000) n"
        )
        yield session
        session.execute(DROP_SLOT)


@pytest.fixture
def env(
    postgres: Postgres,
    shop: psycopg.Connection[Any],
    glue_server: GlueServer,
    s3_store: S3Store,
) -> dict[str, str]:
    return {
        **os.environ,
        **glue_server.environment,
        "PGHOST": postgres.host,
        "PGPORT": str(postgres.port),
        "PGDATABASE": shop.info.dbname,
        "PGUSER": postgres.user,
        "PGPASSWORD": postgres.password,
        "BUCKET": s3_store.new_bucket(),
        "GLUE_ENDPOINT": glue_server.endpoint,
        "S3_ENDPOINT": s3_store.endpoint,
        "S3_PATH_STYLE": "true",
    }


def table_in(namespace: str, env: dict[str, str]) -> Table:
    """Load the table by PyIceberg alone."""
    from pyiceberg.catalog.glue import GlueCatalog

    catalog = GlueCatalog(
        "company",
        **{
            "glue.endpoint": env["GLUE_ENDPOINT"],
            "glue.region": env["AWS_REGION"],
            "client.access-key-id": env["AWS_ACCESS_KEY_ID"],
            "client.secret-access-key": env["AWS_SECRET_ACCESS_KEY"],
            "s3.endpoint": env["S3_ENDPOINT"],
        },
    )
    return catalog.load_table((namespace, "orders"))


def rows_in(shop: psycopg.Connection[Any]) -> dict[int, tuple[Any, ...]]:
    query = "SELECT order_id, order_date, customer, amount, coupon FROM orders"
    return {row[0]: tuple(row) for row in shop.execute(query)}


def test_production_file_passes_check_and_mirrors_changes(
    tmp_path: Path, shop: psycopg.Connection[Any], env: dict[str, str]
) -> None:
    folder, namespace = copied("postgres_to_glue", tmp_path), f"sales_{uuid.uuid4().hex[:8]}"
    file = folder / "icestream.yaml"
    named = file.read_text(encoding="utf-8").replace("sales\n", f"{namespace}\n")
    file.write_text(f"{named}\nmetrics: {{port: 0}}\n", encoding="utf-8")

    checked = run_icestream("check", folder=folder, env=env)
    assert checked.code == 0, checked.out
    first = run_icestream("run", "--once", folder=folder, env=env)
    assert first.code == 0, first.err
    assert table_in(namespace, env).scan().to_arrow().num_rows == 3000

    shop.execute("ALTER TABLE orders ADD COLUMN coupon text")
    shop.execute("UPDATE orders SET amount = amount + 1, coupon = 'X' WHERE order_id % 10 = 0")
    shop.execute("UPDATE orders SET order_date = '2026-11-20 00:00+00' WHERE order_id = 7")
    shop.execute("DELETE FROM orders WHERE order_id > 2990")
    shop.execute("INSERT INTO orders VALUES (9000, '2026-11-21 10:00+00', 'new', 1.5, NULL)")
    second = run_icestream("run", "--once", folder=folder, env=env)
    assert second.code == 0, second.err

    table = table_in(namespace, env)
    found = (
        table.scan().to_arrow().select(["order_id", "order_date", "customer", "amount", "coupon"])
    )
    assert {row["order_id"]: tuple(row.values()) for row in found.to_pylist()} == rows_in(shop)
    assert found.num_rows == 2991
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert str(table.schema().find_field("amount").field_type) == "decimal(12, 2)"
    assert "only-for-tests" not in checked.out + first.err + second.err
