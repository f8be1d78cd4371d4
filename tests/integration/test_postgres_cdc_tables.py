"""Which tables are followed, how each is read, and what becomes of tables that change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror

from icestream.contracts.changes import COLUMN_ID, change_schema_of

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop


def test_table_created_later_is_snapshotted_and_streamed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    mirror = Mirror(shop.source()).follow()
    shop.run("CREATE TABLE people (id int PRIMARY KEY)", "INSERT INTO people VALUES (1), (2)")
    mirror.follow()
    shop.run("INSERT INTO people VALUES (3)", "DELETE FROM people WHERE id = 1")
    mirror.follow()
    assert_same(shop, mirror, "people")


def test_recreated_table_is_reloaded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    shop.run("CREATE TABLE other (id int PRIMARY KEY)")
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, what text)",
        "INSERT INTO orders VALUES (7, 'x')",
    )
    mirror.follow()
    assert_same(shop, mirror, "orders")


def test_empty_table_has_a_schema(shop: Shop) -> None:
    shop.run("CREATE TABLE nothing (id int PRIMARY KEY, at timestamptz)")
    source = shop.source()
    start = source.initial()
    splits = source.splits(start, source.limit(start, source.latest(start), 10), 2)
    (columns,) = source.block_schemas(splits)
    shape = change_schema_of(columns)
    assert (shape.table, shape.key) == (("public", "nothing"), ("id",))
    assert shape.is_snapshot
    assert shape.is_first
    assert columns.names == ["id", "at"]


def test_full_refresh_replaces_the_table_at_each_start(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE rates (code text PRIMARY KEY, rate int)",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO rates VALUES ('a', 1), ('b', 2)",
    )
    streams = [{"name": "rates", "sync_mode": "full_refresh"}, {"name": "orders"}]
    mirror = Mirror(shop.source(streams=streams)).follow()
    shop.run("UPDATE rates SET rate = 9", "INSERT INTO orders VALUES (1)")
    mirror.follow()
    assert [row["rate"] for row in mirror.rows("public.rates")] == [1, 2]
    assert_same(shop, mirror, "orders")
    shop.run("DELETE FROM rates WHERE code = 'b'")
    again = Mirror(shop.source(streams=streams), mirror.position)
    again.tables = mirror.tables
    again.follow()
    assert_same(shop, again, "rates", "orders")


def test_full_refresh_alone_needs_neither_slot_nor_publication(shop: Shop) -> None:
    shop.run("CREATE TABLE rates (code text)", "INSERT INTO rates VALUES ('a'), ('a')")
    source = shop.source(streams=[{"name": "rates", "sync_mode": "full_refresh"}])
    mirror = Mirror(source).follow()
    assert_same(shop, mirror, "rates")
    assert shop.value("SELECT count(*) FROM pg_publication") == 0


def test_snapshot_only_ends(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    source = shop.source(snapshot="only")
    mirror = Mirror(source)
    assert source.has_end()
    assert not source.ends(mirror.position)
    mirror.follow()
    assert source.ends(mirror.position)
    assert_same(shop, mirror, "orders")


def test_without_a_snapshot_only_changes_are_read(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    mirror = Mirror(shop.source(snapshot="never")).follow()
    shop.run("INSERT INTO orders VALUES (2)")
    mirror.follow()
    assert mirror.rows("public.orders") == [{"id": 2}]


def test_start_over_reuses_the_existing_slot(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    Mirror(shop.source()).follow().source.close()
    shop.run("INSERT INTO orders VALUES (2)")
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (3)")
    mirror.follow()
    assert_same(shop, mirror, "orders")


def test_partitioned_table_is_one_table(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE parts (id int PRIMARY KEY, what text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_a PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE part_b PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts SELECT n, 'x' FROM generate_series(1, 15) n",
    )
    mirror = Mirror(shop.source(snapshot_chunk_rows=4)).follow()
    shop.run("UPDATE parts SET id = 19 WHERE id = 1", "DELETE FROM parts WHERE id = 12")
    mirror.follow()
    assert list(mirror.tables) == ["public.parts"]
    assert_same(shop, mirror, "parts")


def test_snapshot_omits_columns_and_rows_that_the_publication_omits(
    shop: Shop,
) -> None:
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY, name text, secret text DEFAULT 's')",
        "INSERT INTO people VALUES (1, 'Ada', 's'), (2, 'Bob', 's'), (3, '100%', 's')",
        "CREATE PUBLICATION part FOR TABLE people (id, name) WHERE (id <> 2)",
    )
    mirror = Mirror(shop.source(publication="part")).follow()
    shop.run("INSERT INTO people VALUES (4, 'Eve', 's')")
    mirror.follow()
    assert mirror.rows("public.people") == [
        {"id": 1, "name": "Ada"},
        {"id": 3, "name": "100%"},
        {"id": 4, "name": "Eve"},
    ]


def test_generated_column_is_in_neither_snapshot_nor_changes(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE prices (id int PRIMARY KEY, net int, "
        "gross int GENERATED ALWAYS AS (net * 2) STORED)",
        "INSERT INTO prices VALUES (1, 10)",
    )
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO prices VALUES (2, 20)")
    mirror.follow()
    assert mirror.rows("public.prices") == [{"id": 1, "net": 10}, {"id": 2, "net": 20}]


def test_names_that_need_quotes(shop: Shop) -> None:
    shop.run(
        'CREATE SCHEMA "My.Shop"',
        'CREATE TABLE "My.Shop"."Or""der 100%" ("Id of" int PRIMARY KEY, "a%b" text)',
        'INSERT INTO "My.Shop"."Or""der 100%" SELECT n, \'%s\' FROM generate_series(1, 9) n',
    )
    source = shop.source(
        streams=[{"name": 'Or"der 100%', "namespace": "My.Shop"}], snapshot_chunk_rows=4
    )
    mirror = Mirror(source).follow(5)
    shop.run('UPDATE "My.Shop"."Or""der 100%" SET "Id of" = 10 WHERE "Id of" = 1')
    mirror.follow()
    rows = mirror.rows('My.Shop.Or"der 100%')
    assert sorted(row["Id of"] for row in rows) == list(range(2, 11))
    assert {row["a%b"] for row in rows} == {"%s"}


def test_renamed_columns_keep_their_number(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, a text, b text)")
    mirror = Mirror(shop.source()).follow()
    before = mirror.schemas["public.orders"]
    shop.run("INSERT INTO orders VALUES (1, 'x', 'y')", "ALTER TABLE orders RENAME a TO c")
    mirror.follow()
    shop.run("ALTER TABLE orders ADD d int", "INSERT INTO orders VALUES (2, 'x', 'y', 4)")
    mirror.follow()
    after = mirror.schemas["public.orders"]
    ids = [after.field(name).metadata[COLUMN_ID] for name in ("id", "c", "b", "d")]
    oid = shop.value("SELECT 'orders'::regclass::oid::int8")
    assert ids == [f"{oid}.{number}".encode() for number in (1, 2, 3, 4)]
    assert before.field("a").metadata[COLUMN_ID] == ids[1]


def test_replica_identity_index_is_the_key(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY, mail text NOT NULL UNIQUE, n int)",
        "ALTER TABLE people REPLICA IDENTITY USING INDEX people_mail_key",
        "INSERT INTO people SELECT n, n || '@x', 0 FROM generate_series(1, 10) n",
    )
    mirror = Mirror(shop.source(snapshot_chunk_rows=3)).follow(4)
    shop.run("UPDATE people SET n = 1", "DELETE FROM people WHERE id = 3")
    mirror.follow()
    assert_same(shop, mirror, "people")


def test_table_that_gets_a_key_is_reloaded_and_streamed_by_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE log (id int, what text)", "INSERT INTO log VALUES (1, 'a'), (2, 'b')")
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "UPDATE log SET what = 'not told' WHERE id = 1", "ALTER TABLE log ADD PRIMARY KEY (id)"
    )
    mirror.follow()
    shop.run("UPDATE log SET what = 'told' WHERE id = 2", "DELETE FROM log WHERE id = 1")
    mirror.follow()
    assert_same(shop, mirror, "log")


def test_table_that_loses_its_key_still_accepts_updates(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE log (id int PRIMARY KEY)", "INSERT INTO log VALUES (1), (2)")
    mirror = Mirror(shop.source()).follow()
    shop.run("ALTER TABLE log DROP CONSTRAINT log_pkey")
    mirror.follow()
    shop.run("INSERT INTO log VALUES (2)")
    mirror.follow()
    assert_same(shop, mirror, "log")
    shop.run("UPDATE log SET id = 3 WHERE id = 1")


def test_dropped_table_in_the_snapshot_queue_is_skipped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    for name in ("a", "b", "c"):
        shop.run(f"CREATE TABLE {name} (id) AS VALUES (1), (2)")
        shop.run(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    mirror = Mirror(shop.source())
    goal = mirror.source.latest(mirror.position)
    mirror.step(2)
    shop.run("DROP TABLE b")
    mirror.follow(2)
    assert sorted(mirror.tables) == ["public.a", "public.c"]
    # The log itself may be longer than what is read of it: others write there too.
    at_our_place = {**goal, "lsn": mirror.position["lsn"]}
    assert mirror.source.rows_between(mirror.position, at_our_place) == 0


@pytest.mark.parametrize(
    "default", ["DEFAULT 5", "DEFAULT random()::int", "GENERATED ALWAYS AS IDENTITY"]
)
def test_default_of_an_added_column_reaches_existing_rows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, default: str
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (3)", f"ALTER TABLE orders ADD n int {default}")
    shop.run("INSERT INTO orders (id) VALUES (4)")
    mirror.follow()
    assert_same(shop, mirror, "orders")
    before = len(mirror.batches)
    shop.run("ALTER TABLE orders ADD plain text", "VACUUM FULL orders")
    shop.run("INSERT INTO orders (id, plain) VALUES (5, 'x')")
    mirror.follow()
    assert sum(mirror.batches[before:]) == 1


def test_older_change_does_not_drop_a_newer_column(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, a text)")
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "INSERT INTO orders VALUES (1, 'x')",
        "ALTER TABLE orders ADD b text",
    )
    mirror.follow()
    assert not change_schema_of(mirror.schemas["public.orders"]).is_whole
    shop.run("INSERT INTO orders VALUES (2, 'x', 'y')")
    mirror.follow()
    assert change_schema_of(mirror.schemas["public.orders"]).is_whole


def test_named_table_that_is_dropped_does_not_stop_the_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.TABLES_REFRESH_SECS", 0.0)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE people (id int PRIMARY KEY)")
    mirror = Mirror(shop.source(tables=["public.orders", "public.people"])).follow()
    shop.run("DROP TABLE people", "INSERT INTO orders VALUES (1)")
    mirror.follow()
    assert_same(shop, mirror, "orders")


def test_schemas_of_changes_are_known_before_they_are_read(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'a')")
    source, start = mirror.source, mirror.position
    splits = source.splits(start, source.limit(start, source.latest(start), 10), 2)

    (known,) = source.block_schemas(splits)
    (block,) = [block for split in splits for block in source.read(split)]
    assert isinstance(block, pa.RecordBatch)

    assert known.equals(block.schema)
    assert [f.metadata for f in known] == [f.metadata for f in block.schema]
    assert change_schema_of(known).version > change_schema_of(block.schema).version
