"""Tables of a mirror that vanish from the lake, and are loaded again from a real PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror
from tests.fixtures.power_cut import power_cut_at
from tests.fixtures.scripted_orders import mirror, rows

from icestream.errors import CheckpointLostError

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop
    from tests.fixtures.spark import Lake


def loaded(mirror: Mirror) -> set[tuple[str, ...]]:
    return set(mirror.source.loaded_tables(mirror.position) or ())


def test_tables_are_reloaded_on_request_even_without_changes(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "CREATE TABLE log (what text)",
        "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 300) n",
        "INSERT INTO log VALUES ('first')",
    )
    before = Mirror(shop.source(snapshot_chunk_rows=50)).follow()
    assert loaded(before) == {("public", "orders"), ("public", "log")}
    before.source.close()
    again = Mirror(shop.source(snapshot_chunk_rows=50), before.position)
    again.source.reload([("public", "orders"), ("public", "log")])
    again.step(100)
    assert not loaded(again), "in line, by the position alone"
    again.step(100)
    assert again.position["part"]["table"] == "public.orders"
    assert ("public", "orders") in loaded(again)
    again.follow(100)
    assert_same(shop, again, "orders", "log")
    shop.run("UPDATE orders SET what = 'b' WHERE id < 10", "INSERT INTO log VALUES ('second')")
    again.follow()
    assert_same(shop, again, "orders", "log")


def test_table_dropped_from_the_lake_is_restored_by_reload(shop: Shop, lake: Lake) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "CREATE TABLE people (id int PRIMARY KEY, name text)",
        "INSERT INTO orders SELECT n, 'a' FROM generate_series(1, 100) n",
        "INSERT INTO people VALUES (1, 'Ada')",
    )
    lake.run(mirror(lake, shop.source()))
    lake.sql("DROP TABLE lake.public.orders")
    shop.run("INSERT INTO orders VALUES (101, 'b')", "INSERT INTO people VALUES (2, 'Grace')")
    with pytest.raises(CheckpointLostError) as caught:
        lake.run(mirror(lake, shop.source()))
    assert str(caught.value) == (
        f"pipeline 'events', table {lake.name}.public.orders: the table was dropped, and the rows "
        "that this pipeline committed went with it\n"
        "  To load the table again from the source: icestream run --pipeline events --reload\n"
        "  To continue without the rows: icestream run --pipeline events --resume\n"
        "  To read the source from the beginning: icestream run --pipeline events "
        "--start-over"
    )
    with power_cut_at("before-commit"):
        lake.run(mirror(lake, shop.source()), recovery="reload")
    lake.run(mirror(lake, shop.source()), recovery="reload")

    assert len(rows(lake, "public.orders")) == 101
    assert [row["name"] for row in rows(lake, "public.people")] == ["Ada", "Grace"]
    with pytest.raises(
        CheckpointLostError, match=r"are in .*\.\*, and the file says .*\.other\.\*"
    ):
        lake.run(mirror(lake, shop.source(), namespace=("other",)))
    lake.run(mirror(lake, shop.source(), namespace=("other",)), recovery="reload")
    assert len(rows(lake, "other.orders")) == 101

    lake.sql("DROP TABLE lake.other.people")
    lake.run(mirror(lake, shop.source(), namespace=("other",)), recovery="resume")
    lake.run(mirror(lake, shop.source(), namespace=("other",)))
    shop.run("INSERT INTO people VALUES (3, 'Edsger')")
    lake.run(mirror(lake, shop.source(), namespace=("other",)))
    assert [row["name"] for row in rows(lake, "other.people")] == ["Edsger"]
