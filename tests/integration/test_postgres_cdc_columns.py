"""Keys and columns of a real PostgreSQL that are out of the ordinary, or change while unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.mirrored_tables import Mirror

from icestream.contracts.changes import shape_of

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop


def test_deferrable_key_does_not_make_the_server_refuse_updates(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE, what text)",
        "INSERT INTO orders VALUES (1, 'a')",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("UPDATE orders SET what = 'b'", "INSERT INTO orders VALUES (2, 'c')")
    mirror.follow()
    assert shape_of(mirror.schemas["public.orders"]).key == ()
    assert [row["what"] for row in mirror.rows("public.orders")] == ["a", "c"]


def test_rows_of_a_table_that_inherits_are_not_rows_of_its_parent(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE things (id int PRIMARY KEY, what text)",
        "CREATE TABLE cars (wheels int) INHERITS (things)",
        "INSERT INTO things SELECT n, 'thing' FROM generate_series(1, 10) n",
        "INSERT INTO cars SELECT n, 'car', 4 FROM generate_series(1, 10) n",
    )
    mirror = Mirror(shop.source(snapshot_chunk_rows=3)).follow(4)
    assert [row["what"] for row in mirror.rows("public.things")] == ["thing"] * 10
    # The child has no key of its own: it must not be among what tells updates.
    shop.run("UPDATE cars SET wheels = 3", "DELETE FROM ONLY things WHERE id = 1")
    mirror.follow()
    assert len(mirror.rows("public.things")) == 9
    assert [row["wheels"] for row in mirror.rows("public.cars")] == [4] * 10


def test_large_value_of_a_parent_is_not_taken_from_a_child(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE docs (id int PRIMARY KEY, body text)",
        "CREATE TABLE drafts () INHERITS (docs)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO docs VALUES (1, repeat('a', 20000))",
        "INSERT INTO drafts VALUES (2, 'of the child')",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("UPDATE ONLY docs SET id = 2")
    mirror.follow()
    assert [row["body"] for row in mirror.rows("public.docs")] == ["a" * 20000]


def test_table_whose_key_has_a_generated_column_only_grows(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int, twice int GENERATED ALWAYS AS (id * 2) STORED, what text,"
        " PRIMARY KEY (id, twice))",
        "INSERT INTO orders (id, what) VALUES (1, 'a')",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("UPDATE orders SET what = 'b'", "INSERT INTO orders (id, what) VALUES (2, 'c')")
    mirror.follow()
    assert shape_of(mirror.schemas["public.orders"]).key == ()
    assert mirror.rows("public.orders") == [{"id": 1, "what": "a"}, {"id": 2, "what": "c"}]
