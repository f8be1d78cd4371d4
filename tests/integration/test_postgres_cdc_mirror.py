"""Tables of a real PostgreSQL, read whole and then followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop


def test_tables_are_snapshotted_and_then_streamed(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text, price numeric(10,2))",
        "CREATE TABLE people (id bigint PRIMARY KEY, name text)",
        "INSERT INTO orders SELECT n, 'thing ' || n, n / 7.0 FROM generate_series(1, 1000) n",
        "INSERT INTO people VALUES (1, 'Ada'), (2, NULL), (3, ''), (4, E'two\\nlines, \"quoted\"')",
    )
    mirror = Mirror(shop.source()).follow()
    assert_same(shop, mirror, "orders", "people")
    shop.run(
        "INSERT INTO orders VALUES (2000, 'new', 1)",
        "UPDATE orders SET what = 'changed' WHERE id <= 10",
        "DELETE FROM orders WHERE id BETWEEN 20 AND 29",
        "UPDATE people SET id = 40 WHERE id = 4",
        "DELETE FROM people WHERE id = 1",
    )
    mirror.follow()
    assert_same(shop, mirror, "orders", "people")
    shop.run("TRUNCATE people", "INSERT INTO people VALUES (7, 'Grace')")
    mirror.follow()
    assert_same(shop, mirror, "orders", "people")


def test_large_table_is_read_in_ranges_of_its_key_over_several_batches(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE lines (line int, order_id text, what text, PRIMARY KEY (order_id, line))",
        "INSERT INTO lines SELECT n % 7, 'o%' || n / 7, 'w' FROM generate_series(1, 1000) n",
        "CREATE TABLE small (id int PRIMARY KEY)",
        "INSERT INTO small VALUES (1), (2)",
        "ANALYZE",
    )
    mirror = Mirror(shop.source(snapshot_chunk_rows=60)).follow(max_rows=200)
    assert_same(shop, mirror, "lines", "small")
    assert [rows for rows in mirror.batches if rows] == [200, 200, 200, 200, 200, 2]


def test_first_batch_of_a_table_is_split_into_tasks(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT generate_series(1, 1000)",
    )
    source = shop.source(snapshot_chunk_rows=300)
    start = source.initial()
    end = source.limit(start, source.latest(start), 900)
    splits = source.splits(start, end, 2)
    assert [split.rows for split in splits] == [480, 420]
    assert [[(part.after, part.up_to) for part in split.what.ranges] for split in splits] == [
        [(None, ("480",))],
        [(("480",), ("900",))],
    ]
    assert end["part"]["after"] == ["900"]


def test_changes_during_the_snapshot_are_neither_lost_nor_duplicated(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "CREATE TABLE log (what text)",
        "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 500) n",
        "INSERT INTO log VALUES ('first')",
    )
    source = shop.source(snapshot_chunk_rows=50)
    mirror = Mirror(source)
    shop.run("INSERT INTO log VALUES ('after the slot, before the snapshot')")
    while mirror.position.get("pending"):
        mirror.step(100)
        shop.run(
            "UPDATE orders SET what = what || 'b' WHERE id % 3 = 0",
            "DELETE FROM orders WHERE id = (SELECT max(id) FROM orders)",
            "INSERT INTO log VALUES ('during the snapshot')",
        )
    mirror.follow()
    assert_same(shop, mirror, "orders", "log")


def test_snapshot_resumes_after_a_crash_with_newer_visibility(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 500) n",
    )
    mirror = Mirror(shop.source(snapshot_chunk_rows=50))
    mirror.step(200)
    assert mirror.position["part"]["after"] == ["200"]
    shop.run(
        "UPDATE orders SET what = 'moved down', id = id - 1000 WHERE id > 490",
        "UPDATE orders SET what = 'moved up', id = id + 1000 WHERE id < 10",
        "DELETE FROM orders WHERE id BETWEEN 100 AND 300",
        "INSERT INTO orders VALUES (250, 'anew')",
    )
    mirror.source.close()
    again = Mirror(shop.source(snapshot_chunk_rows=50), mirror.position)
    again.tables = mirror.tables
    again.follow(200)
    assert_same(shop, again, "orders")
    assert sum(again.batches[:2]) <= 300


def test_batch_read_again_after_a_crash_gives_the_same_changes(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'a'), (2, 'b')", "DELETE FROM orders WHERE id = 1")
    end = mirror.planned()
    assert end is not None
    assert mirror.read(end) == 3
    shop.run("INSERT INTO orders VALUES (3, 'later')")
    again = Mirror(shop.source(), mirror.position)
    again.source.committed(again.position, 0)
    again.source.latest(again.position)
    assert again.read(end) == 3
    again.commit(end)
    again.follow()
    assert_same(shop, again, "orders")


def test_partially_read_table_without_a_key_is_read_again(shop: Shop) -> None:
    shop.run("CREATE TABLE log (what text)", "INSERT INTO log VALUES ('a'), ('a'), ('b')")
    mirror = Mirror(shop.source())
    mirror.step()
    assert mirror.position["unsure"]
    mirror.source.close()
    shop.run("INSERT INTO log VALUES ('c')")
    again = Mirror(shop.source(), mirror.position)
    again.tables = mirror.tables
    again.follow()
    assert_same(shop, again, "log")
    shop.run("INSERT INTO log VALUES ('d')")
    again.follow()
    assert_same(shop, again, "log")


def test_updates_of_a_table_without_a_key_are_not_refused_by_the_server(shop: Shop) -> None:
    shop.run("CREATE TABLE log (what text)", "INSERT INTO log VALUES ('a'), ('b')")
    mirror = Mirror(shop.source()).follow()
    shop.run("UPDATE log SET what = 'c' WHERE what = 'a'", "DELETE FROM log WHERE what = 'b'")
    shop.run("INSERT INTO log VALUES ('d')")
    mirror.follow()
    assert [row["what"] for row in mirror.rows("public.log")] == ["a", "b", "d"]
    shop.run("TRUNCATE log")
    mirror.follow()
    assert mirror.rows("public.log") == []


def test_rows_without_a_key_are_identified_by_their_values_under_full_identity(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE log (what text, n int)",
        "ALTER TABLE log REPLICA IDENTITY FULL",
        "INSERT INTO log VALUES ('a', 1), ('b', NULL), (NULL, 3), ('', 4)",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "UPDATE log SET n = 2 WHERE what = 'a'",
        "DELETE FROM log WHERE what = 'b'",
        "INSERT INTO log VALUES ('c', 5)",
    )
    mirror.follow()
    for row in mirror.rows("public.log"):
        del row["_row_key"]
    assert_same(shop, mirror, "log")


def test_large_values_that_an_update_does_not_send_are_kept(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE docs (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO docs SELECT n, 0, repeat(n::text, 20000) FROM generate_series(1, 4) n",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "UPDATE docs SET n = 1 WHERE id = 1",
        "UPDATE docs SET id = 20 WHERE id = 2",
        "UPDATE docs SET n = 3, body = 'short' WHERE id = 3",
    )
    mirror.follow()
    assert_same(shop, mirror, "docs")
