"""Keys and columns of a real PostgreSQL that are out of the ordinary, or change while unread."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror

from icestream.contracts.changes import COLUMN_ID, change_schema_of, nulled_counts
from icestream.errors import AttentionError

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop


def test_deferrable_key_does_not_block_updates(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY DEFERRABLE, what text)",
        "INSERT INTO orders VALUES (1, 'a')",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("UPDATE orders SET what = 'b'", "INSERT INTO orders VALUES (2, 'c')")
    mirror.follow()
    assert change_schema_of(mirror.schemas["public.orders"]).key == ()
    assert [row["what"] for row in mirror.rows("public.orders")] == ["a", "c"]


def test_rows_of_a_child_table_are_not_rows_of_its_parent(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE things (id int PRIMARY KEY, what text)",
        "CREATE TABLE cars (wheels int) INHERITS (things)",
        "INSERT INTO things SELECT n, 'thing' FROM generate_series(1, 10) n",
        "INSERT INTO cars SELECT n, 'car', 4 FROM generate_series(1, 10) n",
    )
    mirror = Mirror(shop.source(snapshot_chunk_rows=3)).follow(4)
    assert [row["what"] for row in mirror.rows("public.things")] == ["thing"] * 10
    # The child has no key of its own: it must not be in the publication of updates.
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


def test_table_with_a_generated_key_column_is_append_only(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int, twice int GENERATED ALWAYS AS (id * 2) STORED, what text,"
        " PRIMARY KEY (id, twice))",
        "INSERT INTO orders (id, what) VALUES (1, 'a')",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("UPDATE orders SET what = 'b'", "INSERT INTO orders (id, what) VALUES (2, 'c')")
    mirror.follow()
    assert change_schema_of(mirror.schemas["public.orders"]).key == ()
    assert mirror.rows("public.orders") == [{"id": 1, "what": "a"}, {"id": 2, "what": "c"}]


def test_columns_of_a_recreated_table_are_new_columns(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, a text, b text)")
    mirror = Mirror(shop.source()).follow()
    before = mirror.schemas["public.orders"]
    shop.run("DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY, b text, a text)")
    after = Mirror(shop.source()).follow().schemas["public.orders"]
    ids = [
        {name: columns.field(name).metadata[COLUMN_ID] for name in ("id", "a", "b")}
        for columns in (before, after)
    ]
    assert not set(ids[0].values()) & set(ids[1].values())


def logged_numbers(shop: Shop, *later: str) -> list[dict[str, str]]:
    """Return the columns of each block of changes, with their numbers, after columns changed."""
    source = shop.source()
    mirror = Mirror(source).follow()
    shop.run("INSERT INTO orders SELECT 1", *later)
    end = mirror.planned()
    assert end is not None
    return [
        {
            field.name: field.metadata[COLUMN_ID].decode().partition(".")[2]
            for field in block.schema
            if field.metadata
        }
        for split in source.splits(mirror.position, end, 1)
        for block in source.read(split)
    ]


def test_dropped_column_differs_from_a_new_one_of_the_same_name(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, b text, c text)")
    numbers = logged_numbers(
        shop,
        "ALTER TABLE orders DROP b",
        "ALTER TABLE orders ADD b text",
        "INSERT INTO orders VALUES (2)",
    )
    assert numbers == [{"id": "1", "b": "2", "c": "3"}, {"id": "1", "c": "3", "b": "4"}]


def test_recreated_last_column_is_a_new_column(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, old int, b text)")
    shop.run("ALTER TABLE orders DROP old")
    numbers = logged_numbers(
        shop,
        "INSERT INTO orders VALUES (3)",
        "ALTER TABLE orders DROP b",
        "ALTER TABLE orders ADD b text",
        "INSERT INTO orders VALUES (2)",
    )
    assert numbers == [{"id": "1", "b": "3"}, {"id": "1", "b": "4"}]


def test_values_of_a_dropped_column_are_not_those_of_a_renamed_one(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, x text, a text, n int)")
    numbers = logged_numbers(shop, "ALTER TABLE orders DROP x", "ALTER TABLE orders RENAME a TO b")
    assert numbers == [{"id": "1", "x": "2", "a": "3", "n": "4"}]


def test_widened_column_is_the_same_column(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, x text, a int)")
    shop.run("ALTER TABLE orders DROP x")
    numbers = logged_numbers(
        shop, "ALTER TABLE orders ALTER a TYPE bigint", "ALTER TABLE orders ADD c int"
    )
    assert numbers == [{"id": "1", "a": "3"}]


def test_unpublished_columns_are_not_mistaken_for_others(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, secret text, name text)")
    shop.run(f"CREATE PUBLICATION {shop.database} FOR TABLE orders (id, name)")
    assert logged_numbers(shop) == [{"id": "1", "name": "3"}]


def test_table_with_a_new_key_is_reloaded_after_changes_by_the_old_key(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, code int NOT NULL)")
    source = shop.source()
    mirror = Mirror(source).follow()
    shop.run("INSERT INTO orders VALUES (1, 10)")
    end = mirror.planned()
    assert end is not None
    shop.run(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (code)",
        "UPDATE orders SET id = 2",
    )
    # The batch that was planned before: its log has the old key, the catalog the new one.
    splits = source.splits(mirror.position, end, 1)
    assert source.block_schemas(splits) == []
    blocks = [block for split in splits for block in source.read(split)]
    assert [change_schema_of(block.schema).key for block in blocks] == [("id",)]
    mirror.commit(end)
    mirror.follow()
    shop.run("UPDATE orders SET id = 3")
    mirror.follow()
    assert mirror.rows("public.orders") == [{"id": 3, "code": 10}]
    assert change_schema_of(mirror.schemas["public.orders"]).key == ("code",)


def test_changes_of_a_dropped_table_with_full_identity_keep_their_key(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'a')", "INSERT INTO other VALUES (1)")
    end = mirror.planned()
    assert end is not None
    shop.run("DROP TABLE orders")
    mirror.commit(end)
    assert change_schema_of(mirror.schemas["public.orders"]).key == ("id",)
    assert mirror.rows("public.other") == [{"id": 1}]


def test_changes_by_another_key_than_the_one_read_are_skipped(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, code int NOT NULL)")
    source = shop.source()
    mirror = Mirror(source).follow()
    shop.run(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (code)",
        "INSERT INTO orders VALUES (1, 10)",
    )
    end = {**mirror.position, "lsn": source._driver.end_of_log()}
    splits = source.splits(mirror.position, end, 1)
    assert [block for split in splits for block in source.read(split)] == []
    mirror.follow()
    assert_same(shop, mirror, "orders")


def test_rows_without_a_key_are_reloaded_when_a_column_is_dropped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run(
        "CREATE TABLE log (what text, n int)",
        "ALTER TABLE log REPLICA IDENTITY FULL",
        "INSERT INTO log VALUES ('a', 1), ('b', 2), ('c', 3)",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("ALTER TABLE log DROP n")
    mirror.follow()
    shop.run("DELETE FROM log WHERE what = 'b'", "ALTER TABLE log ADD m int")
    mirror.follow()
    shop.run("DELETE FROM log WHERE what = 'c'", "INSERT INTO log VALUES ('d', 4)")
    mirror.follow()
    for row in mirror.rows("public.log"):
        del row["_row_key"]
    assert_same(shop, mirror, "log")


def test_keys_without_an_iceberg_type_are_strings(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE points (x float8, y real, tags int[], what text, PRIMARY KEY (x, y, tags))",
        "INSERT INTO points VALUES (0.1, 1.5, '{1,2}', 'a'), ('NaN', 'Infinity', '{}', 'b')",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "UPDATE points SET what = 'c' WHERE x = 0.1",
        "DELETE FROM points WHERE x = 'NaN'",
        "INSERT INTO points VALUES (1e300, 2, '{{1},{2}}', 'd')",
    )
    mirror.follow()
    assert mirror.rows("public.points") == [
        {"x": "0.1", "y": "1.5", "tags": "{1,2}", "what": "c"},
        {"x": "1e+300", "y": "2", "tags": "{{1},{2}}", "what": "d"},
    ]


UNREPRESENTABLE = {
    "price numeric(10, 2)": "NaN",
    "day date": "infinity",
    "at timestamp": "0044-03-15 00:00:00 BC",
    "seen timestamptz": "-infinity",
    "days date[]": "{2024-01-01,infinity}",
    "grid int[]": "{{1,2},{3,4}}",
}


@pytest.mark.parametrize("column", UNREPRESENTABLE)
@pytest.mark.parametrize("is_change", [False, True])
def test_value_unrepresentable_in_iceberg(shop: Shop, column: str, *, is_change: bool) -> None:
    value, name = UNREPRESENTABLE[column], column.split(maxsplit=1)[0]
    insert = f"INSERT INTO odd VALUES (1, NULL), (2, '{value}')"  # noqa: S608
    shop.run(f"CREATE TABLE odd (id int PRIMARY KEY, {column})")
    mirror = Mirror(shop.source())
    if is_change:
        mirror.follow()
    shop.run(insert)
    with pytest.raises(AttentionError) as caught:
        mirror.follow()
    assert (caught.value.exit_code, caught.value.where) == (5, "table public.odd, row id = 2")
    assert f" is '{value}', which its Iceberg type cannot hold\n" in str(caught.value)
    advice = "does not help: the log still has" if is_change else "Correct the value in the"
    assert advice in caught.value.todo
    mirror.source.close()

    mirror.source = shop.source(unrepresentable="null")
    mirror.follow()
    (found,) = (row[name] for row in mirror.rows("public.odd") if row["id"] == 2)
    assert found in (None, [date(2024, 1, 1), None])
    assert nulled_counts(mirror.schemas["public.odd"]) == {name: 1}

    mirror = Mirror(shop.source(unrepresentable="text")).follow()
    assert mirror.rows("public.odd") == [{"id": 1, name: None}, {"id": 2, name: value}]
