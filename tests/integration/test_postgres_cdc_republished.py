"""Publications changed by another client: the log lacks changes made in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror

from icestream.errors import SourceChangedError

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop

ADD = "ALTER PUBLICATION {0} ADD TABLE orders"
DROP = "ALTER PUBLICATION {0} DROP TABLE orders"
UNTOLD = (
    "INSERT INTO orders SELECT n, 'new' FROM generate_series(100, 140) n",
    "UPDATE orders SET what = 'changed' WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
)


@pytest.fixture(autouse=True)
def _orders(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "CREATE TABLE people (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO people VALUES (1)",
    )


def followed(shop: Shop, **options: Any) -> Mirror:
    mirror = Mirror(shop.source(**options)).follow()
    shop.run("UPDATE orders SET what = 'told' WHERE id = 3")
    return mirror.follow()


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("is_added_back", [True, False])
def test_table_removed_from_our_publication_is_reloaded(
    shop: Shop, caplog: pytest.LogCaptureFixture, *, is_running: bool, is_added_back: bool
) -> None:
    mirror = followed(shop)
    name = f'"{shop.database}"'
    if not is_running:
        mirror.source.close()
        mirror.source = shop.source()
    shop.run(DROP.format(name), *UNTOLD)
    if is_added_back:
        shop.run(ADD.format(name))
    before = mirror.tables["public.people"]
    mirror.follow()
    assert_same(shop, mirror, "orders", "people")
    assert mirror.tables["public.people"] is before, "tables that stayed are not reloaded"
    assert [line for line in caplog.messages if line.startswith("reloading")] == [
        "reloading public.orders: it was removed from its publication and added back, or the "
        "publication was altered"
    ]
    shop.run("INSERT INTO orders VALUES (1000, 'after')")
    mirror.follow()
    assert_same(shop, mirror, "orders", "people")


@pytest.mark.parametrize(
    ("create", "cycle"),
    [
        ("FOR TABLE orders, people", [DROP, *UNTOLD, ADD]),
        ("FOR TABLE orders WHERE (id <> 3), people", [DROP, *UNTOLD, f"{ADD} WHERE (id <> 3)"]),
        (
            "FOR TABLE orders, people",
            [
                "ALTER PUBLICATION {0} SET TABLE people",
                *UNTOLD,
                "ALTER PUBLICATION {0} SET TABLE orders, people",
            ],
        ),
        (
            "FOR ALL TABLES",
            [
                "ALTER PUBLICATION {0} SET (publish = 'insert')",
                *UNTOLD,
                "ALTER PUBLICATION {0} SET (publish = 'insert, update, delete, truncate')",
            ],
        ),
        (
            "FOR TABLES IN SCHEMA public",
            [
                "ALTER PUBLICATION {0} DROP TABLES IN SCHEMA public",
                *UNTOLD,
                "ALTER PUBLICATION {0} ADD TABLES IN SCHEMA public",
            ],
        ),
    ],
    ids=["table", "row filter", "set table", "actions", "schema"],
)
def test_table_removed_from_a_foreign_publication_and_added_back_is_reloaded(
    shop: Shop, create: str, cycle: list[str]
) -> None:
    shop.run(f"CREATE PUBLICATION theirs {create}")
    mirror = followed(shop, publication="theirs")
    mirror.source.close()
    shop.run(*(command.format("theirs") for command in cycle))
    mirror.follow()
    shop.run("INSERT INTO orders VALUES (1000, 'after')")
    mirror.follow()
    expected = [row for row in shop.rows("orders") if "WHERE" not in create or row["id"] != 3]
    assert sorted(mirror.rows("public.orders"), key=repr) == sorted(expected, key=repr)


def test_table_is_reloaded_if_its_row_filter_or_columns_change(shop: Shop) -> None:
    shop.run("CREATE PUBLICATION theirs FOR TABLE orders WHERE (id <> 3), people")
    mirror = followed(shop, publication="theirs")
    mirror.source.close()
    shop.run("ALTER PUBLICATION theirs SET TABLE orders WHERE (id <> 1), people")
    mirror.follow()
    assert sorted(row["id"] for row in mirror.rows("public.orders")) == [2, 3]
    shop.run("ALTER PUBLICATION theirs SET TABLE orders (id), people")
    mirror.follow()
    assert sorted(mirror.rows("public.orders"), key=repr) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_offset_of_an_older_version_adopts_the_publication(shop: Shop) -> None:
    mirror = followed(shop)
    mirror.source.close()
    for note in mirror.position["tables"].values():
        note.pop("publication")
    before = mirror.tables["public.orders"]
    shop.run("INSERT INTO orders VALUES (4, 'd')")
    mirror.follow()
    assert mirror.tables["public.orders"] is before
    assert all(note["publication"] for note in mirror.position["tables"].values())
    assert_same(shop, mirror, "orders", "people")


def test_missing_changes_are_reported_without_snapshots(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = Mirror(shop.source(snapshot="never")).follow()
    name = f'"{shop.database}"'
    shop.run(DROP.format(name), *UNTOLD)
    mirror.follow()
    shop.run("INSERT INTO orders VALUES (1000, 'after')")
    mirror.follow()
    assert [row["id"] for row in mirror.rows("public.orders")] == [1000]
    assert (
        "changes to public.orders are missing: the table was published again or replaced, and "
        "`snapshot: never` rules out a reload"
    ) in caplog.text


def change_identity(shop: Shop, identity: str) -> Mirror:
    """Follow a table whose replica identity is then changed, and the table with it."""
    shop.run(
        "ALTER TABLE orders ADD code int NOT NULL DEFAULT 0",
        "UPDATE orders SET code = id * 10",
        "CREATE UNIQUE INDEX by_code ON orders (code)",
    )
    mirror = followed(shop)
    mirror.source.close()
    shop.run(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    if identity != "NOTHING":  # PostgreSQL refuses them in a publication that has updates
        shop.run("UPDATE orders SET id = 5 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    shop.run("INSERT INTO orders VALUES (6, 'new', 60)")
    return mirror


@pytest.mark.parametrize(
    ("identity", "is_set_back"),
    [("FULL", True), ("NOTHING", True)]
    + [(each, False) for each in ("FULL", "NOTHING", "USING INDEX by_code")],
)
def test_changed_replica_identity_loses_no_change(
    shop: Shop, identity: str, *, is_set_back: bool
) -> None:
    mirror = change_identity(shop, identity)
    if is_set_back:
        shop.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
        shop.run("UPDATE orders SET what = 'newer' WHERE id = 6")
    shop.run("INSERT INTO orders VALUES (7, 'new', 70)")
    mirror.follow()
    assert_same(shop, mirror, "orders")


def test_changes_by_a_temporary_key_are_refused(shop: Shop) -> None:
    mirror = change_identity(shop, "USING INDEX by_code")
    shop.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    with pytest.raises(SourceChangedError) as caught:
        mirror.follow()
    assert str(caught.value) == (
        f"{shop.where}: table public.orders had another key for a while (code), and the log "
        "identifies rows by it in updates and deletes of that time\n  They cannot be applied with "
        "the current key: reload the tables with `icestream run --start-over`."
    )
    mirror = Mirror(shop.source()).follow()
    assert_same(shop, mirror, "orders")
