"""The slot: moved on after a commit and not before, and by itself while tables are quiet."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror
from tests.fixtures.waiting import wait_until

from icestream.errors import SourceChangedError
from icestream.sources.postgres_cdc.source import MAX_COUNTED_BYTES

if TYPE_CHECKING:
    import psycopg
    from tests.fixtures.changing_database import Shop
    from tests.fixtures.postgres import Postgres

CONFIRMED = (
    "SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots "
    "WHERE slot_name = current_database()"
)


@pytest.fixture
def postgres(postgres_alone: Postgres) -> Postgres:
    """Its log must not grow by others, nor the slot wait for them."""
    return postgres_alone


@pytest.fixture(autouse=True)
def _orders(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")


def test_slot_is_advanced_only_when_a_batch_is_committed(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    before = shop.value(CONFIRMED)
    shop.run("INSERT INTO orders VALUES (1, 'a')")
    end = mirror.planned()
    assert end is not None
    mirror.read(end)
    assert shop.value(CONFIRMED) == before == mirror.position["lsn"]
    mirror.commit(end)
    assert shop.value(CONFIRMED) == end["lsn"] > before


def test_idle_table_does_not_retain_the_wal_of_a_busy_one(shop: Shop) -> None:
    shop.run("CREATE TABLE busy (id int PRIMARY KEY)")
    mirror = Mirror(shop.source(tables=["public.orders"])).follow()
    shop.run("INSERT INTO busy SELECT generate_series(1, 1000)")
    end = shop.value("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")
    wait_until(lambda: mirror.step() and shop.value(CONFIRMED) >= end, "the slot to move on")
    assert mirror.batches[-1] == 0


def test_idle_table_starts_no_batch_before_the_heartbeat(shop: Shop) -> None:
    shop.run("CREATE TABLE busy (id int PRIMARY KEY)")
    mirror = Mirror(shop.source(tables=["public.orders"])).follow()
    again = Mirror(shop.source(tables=["public.orders"], heartbeat_secs=1000), mirror.position)
    shop.run("INSERT INTO busy SELECT generate_series(1, 1000)")
    assert again.planned() is None
    shop.run("INSERT INTO orders VALUES (1, 'a')")
    again.source.close()
    anew = Mirror(shop.source(tables=["public.orders"], heartbeat_secs=1000), mirror.position)
    end = anew.planned()
    assert end is not None
    assert anew.source.rows_between(anew.position, end) == 1


def test_lag_of_the_slot_is_measured(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    assert mirror.source.measure()["slot_lag_bytes"] >= 0
    shop.run("INSERT INTO orders SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n")
    mirror.planned()
    lag = mirror.source.measure()
    assert lag["slot_lag_bytes"] > 100_000
    assert lag["slot_lag_seconds"] >= 0
    mirror.follow()
    assert mirror.source.measure()["slot_lag_bytes"] < 100_000


def test_slot_taken_over_between_two_checks_is_detected_by_the_task(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'a')")
    end = mirror.planned()
    assert end is not None
    shop.run("SELECT pg_replication_slot_advance(current_database(), pg_current_wal_flush_lsn())")
    with pytest.raises(SourceChangedError, match="has moved to"):
        mirror.read(end)


def test_slot_of_another_server_is_not_advanced(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    before = shop.value(CONFIRMED)
    shop.run("INSERT INTO orders VALUES (1, 'a')")
    moved = {**mirror.position, "system": "1", "lsn": mirror.position["lsn"] + 8}
    with pytest.raises(SourceChangedError, match="it is another server"):
        shop.source().committed(moved, 0)
    assert shop.value(CONFIRMED) == before


def test_transaction_larger_than_a_batch_is_one_batch(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders SELECT n, repeat('x', 500) FROM generate_series(1, 5000) n")
    before = len(mirror.batches)
    mirror.follow(max_rows=1000)
    assert_same(shop, mirror, "orders")
    assert [rows for rows in mirror.batches[before:] if rows] == [5000]


def test_small_batches_skip_the_wal_of_another_database(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'before')")
    shop.server.new_database()  # megabytes of log
    shop.run("INSERT INTO orders VALUES (2, 'after')")
    before = len(mirror.batches)
    mirror.follow(max_rows=4)
    assert_same(shop, mirror, "orders")
    assert len(mirror.batches) - before < 10


def test_small_batches_have_the_requested_rows_wherever_the_slot_is(shop: Shop) -> None:
    source = shop.source(snapshot="never")
    start = source.initial()
    for _ in range(10):
        shop.run("INSERT INTO orders SELECT count(*), 'x' FROM orders")
    newest = source.latest(start)
    shop.server.new_database()
    newest = {**newest, "lsn": newest["lsn"] + MAX_COUNTED_BYTES}
    place, sizes = start, []
    for _ in range(3):  # the slot stays: nothing is committed
        end = source.limit(place, newest, 4)
        sizes.append(
            sum(
                block.num_rows
                for split in source.splits(place, end, 1)
                for block in source.read(split)
            )
        )
        place = end
    assert (sizes, place) == ([4, 4, 2], newest)


def test_wal_after_a_snapshot_is_estimated(shop: Shop) -> None:
    shop.run("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 2000) n")
    source = shop.source()
    mirror = Mirror(source)
    source.committed(mirror.position, 0)  # as the engine does before the first batch
    mirror.follow()
    shop.server.new_database()
    newest = source.latest(mirror.position)
    assert 0 < source.rows_between(mirror.position, newest) < newest["lsn"]


@pytest.mark.parametrize("seed", range(3))
def test_any_history_with_crashes_ends_in_the_same_rows(shop: Shop, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same in each run
    shop.run(
        "CREATE TABLE docs (a int, b text, body text, n int, PRIMARY KEY (b, a))",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
        "CREATE TABLE log (n int, what text)",
        "INSERT INTO docs SELECT n, n % 5, repeat('t', 3000), 0 FROM generate_series(1, 80) n",
        "INSERT INTO orders SELECT n, 'o' FROM generate_series(1, 80) n",
    )
    options: dict[str, Any] = {"snapshot_chunk_rows": 15}
    mirror = Mirror(shop.source(**options))
    other = shop.connect()
    for _ in range(25):
        _random_transaction(chance, chance.choice((shop.connection, other)))
        act = chance.random()
        if act < 0.25:
            mirror.source.close()
            tables, position = mirror.tables, mirror.position
            mirror = Mirror(shop.source(**options), position)
            mirror.tables = tables
        elif act < 0.8:
            mirror.step(30)
    other.close()
    mirror.follow()
    assert_same(shop, mirror, "orders", "docs", "log")


WRITES = (
    "INSERT INTO orders VALUES (%(n)s, 'i') ON CONFLICT DO NOTHING",
    "UPDATE orders SET what = what || 'u' WHERE id BETWEEN %(n)s AND %(n)s + 5",
    "DELETE FROM orders WHERE id BETWEEN %(n)s AND %(n)s + 2",
    "UPDATE orders SET id = id + 1000 WHERE id = %(n)s AND NOT EXISTS "
    "(SELECT FROM orders WHERE id = %(n)s + 1000)",
    "UPDATE docs SET n = n + 1 WHERE a BETWEEN %(n)s AND %(n)s + 9",
    "UPDATE docs SET a = a + 1000, b = b || 'k' WHERE a = %(n)s",
    "UPDATE docs SET body = repeat('b', 3000 + %(m)s) WHERE a = %(n)s",
    "INSERT INTO docs VALUES (%(n)s, 'new', repeat('n', 2500), %(m)s) ON CONFLICT DO NOTHING",
    "DELETE FROM docs WHERE a = %(n)s",
    "INSERT INTO log VALUES (%(n)s, 'l')",
    "INSERT INTO log VALUES (%(m)s)",
)


def _random_transaction(chance: random.Random, connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(force_rollback=chance.random() < 0.1):
        for _ in range(chance.randint(1, 4)):
            values = {"n": chance.randint(1, 100), "m": chance.randint(1, 100)}
            connection.execute(chance.choice(WRITES), values)
        if chance.random() < 0.05:
            connection.execute("TRUNCATE log")
