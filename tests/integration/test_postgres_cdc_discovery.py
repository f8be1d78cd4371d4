"""What a run would mirror and create, asked from a real PostgreSQL without changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.mirrored_tables import Mirror

from icestream.contracts.changes import change_schema_of
from icestream.contracts.source import SourceObject
from icestream.errors import ConnectorError, UnreachableError
from icestream.sources.postgres_cdc import discovery

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop

    from icestream.contracts.changes import ChangeSchema
    from icestream.sources.postgres_cdc import PostgresCdcSource


def listed(source: PostgresCdcSource) -> dict[str, ChangeSchema]:
    schemas = map(change_schema_of, source.list_tables())
    return {".".join(schema.table): schema for schema in schemas}


def objects_in(shop: Shop) -> tuple[int, int]:
    publications = shop.value("SELECT count(*) FROM pg_publication")
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    return publications, shop.value(slots)


def test_tables_are_listed_before_the_first_run(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text, price numeric(10, 2))",
        "INSERT INTO orders SELECT n, 'thing', 1 FROM generate_series(1, 5000) n",
        "CREATE TABLE visits (page text)",
        "CREATE TABLE days (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
    )
    source = shop.source()

    found = listed(source)

    assert {name: schema.key for name, schema in found.items()} == {
        "public.days": ("id", "day"),
        "public.orders": ("id",),
        "public.visits": (),
    }
    assert found["public.orders"].source_bytes == shop.value("SELECT pg_table_size('orders')")
    assert all(schema.is_first and schema.is_snapshot for schema in found.values())
    (columns,) = [each for each in source.list_tables() if len(each) == 3]
    assert [f"{one.name} {one.type}" for one in columns] == [
        "id int32",
        "what string",
        "price decimal128(10, 2)",
    ]
    assert objects_in(shop) == (0, 0)


def test_publications_and_slot_are_listed_before_and_after_the_first_run(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    name = shop.database
    expected = [("publication", name), ("publication", f"{name}_appends")]
    expected.append(("replication slot", name))
    source = shop.source()

    before = source.list_objects()
    assert objects_in(shop) == (0, 0)
    Mirror(shop.source()).follow()

    assert before == [SourceObject(*one, exists=False) for one in expected]
    assert source.list_objects() == [SourceObject(*one, exists=True) for one in expected]


def test_listed_tables_are_those_that_a_run_mirrors(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE log (what text)")
    mirror = Mirror(shop.source()).follow()
    shop.run("CREATE TABLE later (id int PRIMARY KEY)")

    found = listed(shop.source())

    assert set(mirror.tables) == {"public.log", "public.orders"}
    assert set(found) == {"public.later", "public.log", "public.orders"}


def test_publication_of_somebody_else_decides_which_tables_and_columns(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY, what text, secret text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION theirs FOR TABLE orders (id, what)",
    )
    source = shop.source(publication="theirs")

    (columns,) = source.list_tables()

    assert columns.names == ["id", "what"]
    assert source.list_objects()[0] == SourceObject("publication", "theirs", exists=True)
    assert len(source.list_objects()) == 2


def test_table_that_the_publication_lacks_is_refused_as_in_a_run(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION theirs FOR TABLE orders",
    )
    source = shop.source(publication="theirs", tables=["public.orders", "public.other"])

    with pytest.raises(ConnectorError) as caught:
        source.list_tables()

    assert str(caught.value) == (
        f"{shop.where}: publication 'theirs' does not include public.other\n"
        '  Run `ALTER PUBLICATION "theirs" ADD TABLE public.other`.'
    )


@pytest.mark.parametrize(
    ("options", "objects"), [({"snapshot": "only"}, 0), ({"snapshot": "never"}, 3)]
)
def test_options_decide_what_a_run_needs(shop: Shop, options: dict[str, Any], objects: int) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    source = shop.source(**options)

    assert len(source.list_objects()) == objects
    (schema,) = listed(source).values()
    # Without a first load, its size does not matter.
    assert (schema.source_bytes is None) == (options["snapshot"] == "never")


def test_locked_table_is_an_error_instead_of_a_wait(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "LOCK_TIMEOUT_SECS", 0.2)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY)")
    source = shop.source()
    with shop.connect() as other, other.transaction():
        other.execute("LOCK TABLE orders")
        with pytest.raises(ConnectorError) as caught:
            source.list_tables()

    assert (caught.value.where, caught.value.what, caught.value.todo) == (
        shop.where,
        "a table is locked, for example by VACUUM FULL or ALTER TABLE",
        "Try again when that has ended: `SELECT * FROM pg_locks WHERE mode = "
        "'AccessExclusiveLock'`.",
    )
    assert set(listed(source)) == {"public.orders"}


def test_server_that_does_not_answer_is_an_error(shop: Shop) -> None:
    with pytest.raises(UnreachableError):
        shop.source(port=1).list_tables()
