"""Tables of a real PostgreSQL, read whole and then followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop


def test_tables_are_read_whole_and_then_followed(shop: Shop) -> None:
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
