"""Batches that are done again after a crash, while the database went on."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror
from tests.fixtures.waiting import wait_until

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop

    from icestream.contracts.offset import Offset

CONFIRMED = (
    "SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots "
    "WHERE slot_name = current_database()"
)


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.SLOT_CHECK_SECS", 0.0)


def planned(mirror: Mirror, max_rows: int = 1000) -> Offset:
    end = mirror.planned(max_rows)
    assert end is not None
    return end


def crashed(shop: Shop, mirror: Mirror, **options: Any) -> Mirror:
    """Return a mirror in a new process, with what the tables hold."""
    mirror.source.close()
    again = Mirror(shop.source(**options), mirror.position)
    again.tables = mirror.tables
    return again


def test_rows_written_between_a_commit_and_its_replay_are_read(shop: Shop) -> None:
    shop.run("CREATE TABLE log (n int)", "INSERT INTO log VALUES (1)")
    mirror = Mirror(shop.source())
    end = planned(mirror)
    mirror.read(end)
    shop.run("INSERT INTO log VALUES (2)")

    again = crashed(shop, mirror)
    again.source.latest(again.position)
    again.source.block_schemas(again.source.splits(again.position, end, 2))
    again.position = end  # the tables hold the batch, so that nothing is read
    shop.run("INSERT INTO log VALUES (3)")
    again.follow()

    assert_same(shop, again, "log")


def test_table_without_a_key_is_read_once_unless_there_is_a_replay(shop: Shop) -> None:
    shop.run("CREATE TABLE log (n int)", "INSERT INTO log VALUES (1), (2)")
    mirror = Mirror(shop.source()).follow()
    assert sum(mirror.batches) == 2


def test_table_that_gets_a_default_during_its_snapshot_is_reloaded(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    shop.run("INSERT INTO orders SELECT generate_series(1, 100)")
    mirror = Mirror(shop.source())
    mirror.step(30)
    assert mirror.position["part"]["after"] == ["30"]
    shop.run("ALTER TABLE orders ADD what text DEFAULT 'x'")

    mirror.follow(30)

    assert_same(shop, mirror, "orders")


@pytest.mark.parametrize("parts", [0, 1])
def test_partial_snapshot_of_a_table_that_got_another_key_before_the_replay(
    shop: Shop, parts: int
) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")
    shop.run("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 100) n")
    mirror = Mirror(shop.source())
    for _ in range(parts):
        mirror.step(30)
    end = planned(mirror, 30)
    shop.run(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "ALTER TABLE orders ADD PRIMARY KEY (what, id)",
    )

    again = crashed(shop, mirror)
    again.commit(end)
    again.follow(30)

    assert_same(shop, again, "orders")


def test_partial_snapshot_restarts_if_the_key_order_changed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE orders (a int, b int, PRIMARY KEY (a, b))")
    shop.run("INSERT INTO orders SELECT n, 100 - n FROM generate_series(1, 100) n")
    mirror = Mirror(shop.source())
    mirror.step(30)
    shop.run(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "ALTER TABLE orders ADD PRIMARY KEY (b, a)",
    )

    mirror.follow(30)

    assert_same(shop, mirror, "orders")


def test_table_removed_from_a_publication_and_added_back_is_reloaded(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE people (id int PRIMARY KEY)",
        "CREATE PUBLICATION others FOR TABLE orders, people",
    )
    mirror = Mirror(shop.source(publication="others")).follow()
    shop.run("INSERT INTO orders VALUES (1)", "ALTER PUBLICATION others DROP TABLE orders")
    mirror.follow()
    # Changes logged before it was removed are not lost.
    assert mirror.rows("public.orders") == [{"id": 1}]
    shop.run(
        "INSERT INTO orders VALUES (2)",
        "ALTER PUBLICATION others ADD TABLE orders",
        "INSERT INTO orders VALUES (3)",
    )

    mirror.follow()
    shop.run("DELETE FROM orders WHERE id = 1", "INSERT INTO people VALUES (1)")
    mirror.follow()

    assert_same(shop, mirror, "orders", "people")


def test_table_renamed_and_renamed_back_is_reloaded(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE people (id int)")
    mirror = Mirror(shop.source()).follow()
    shop.run("ALTER TABLE orders RENAME TO older")
    mirror.follow()
    shop.run("INSERT INTO older VALUES (2)", "ALTER TABLE older RENAME TO orders")

    mirror.follow()
    shop.run("INSERT INTO orders VALUES (3)")
    mirror.follow()

    assert_same(shop, mirror, "orders")


def test_table_dropped_during_the_snapshot_of_another_is_forgotten(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE PUBLICATION others FOR TABLE orders",
    )
    mirror = Mirror(shop.source(publication="others")).follow()
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY)",
        "ALTER PUBLICATION others SET TABLE people",
    )
    mirror.step()
    assert set(mirror.position["tables"]) == set()


def test_slot_in_use_is_advanced_later(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.slot.BUSY_TIMEOUT_SECS", 0.1)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1)")
    end = planned(mirror)
    rows = mirror.read(end)
    before = shop.value(CONFIRMED)
    with closing(
        psycopg.connect(shop.server.dsn_of(shop.database), autocommit=True, replication="database")
    ) as reader:
        reader.pgconn.send_query(
            f"START_REPLICATION SLOT {shop.database} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{shop.database}')".encode()
        )
        held = "SELECT active FROM pg_replication_slots WHERE slot_name = current_database()"
        wait_until(lambda: bool(shop.value(held)), "the reader to hold the slot")
        mirror.source.committed(end, rows)
        assert shop.value(CONFIRMED) == before
    wait_until(lambda: not shop.value(held), "the reader to let go of the slot")

    mirror.source.latest(end)

    assert shop.value(CONFIRMED) == end["lsn"]
