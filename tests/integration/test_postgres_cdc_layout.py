"""How mirrors of real PostgreSQL tables are partitioned, and how many files a first load writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fixtures.scripted_orders import mirror

from icestream.contracts.changes import change_schema_of
from icestream.sinks.iceberg.multi import mirror_table

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop
    from tests.fixtures.spark import Lake

    from icestream.sources.postgres_cdc import PostgresCdcSource

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, what text, price numeric(10,2))"
FILL = "INSERT INTO orders SELECT n, 'thing ' || n, n / 7.0 FROM generate_series(1, {}) n"


@pytest.mark.parametrize(("rows", "files"), [(1_000, 1), (200_000, 2)])
def test_first_load_writes_no_small_files(shop: Shop, lake: Lake, rows: int, files: int) -> None:
    shop.run(ORDERS, FILL.format(rows), "ANALYZE")
    source = shop.source()

    lake.run(mirror(lake, source, namespace=("shop",)))

    table = lake.catalog.client().load_table("shop.orders")
    planned = list(table.scan().plan_files())
    assert sum(task.file.record_count for task in planned) == rows
    assert len(planned) == files
    assert table.spec().is_unpartitioned()


def sizes(source: PostgresCdcSource) -> dict[str, int | None]:
    """Return the sizes with which the tables of the first batch would be created."""
    start = source.initial()
    splits = source.splits(start, source.limit(start, source.latest(start), 10_000), 2)
    schemas = map(change_schema_of, source.block_schemas(splits))
    return {schema.table[-1]: schema.source_bytes for schema in schemas}


def test_first_rows_carry_the_size_of_the_table_and_its_large_values(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "CREATE TABLE large (id int PRIMARY KEY, what text)",
        "ALTER TABLE large ALTER what SET STORAGE EXTERNAL",
        "INSERT INTO large SELECT n, repeat('x', 100000) FROM generate_series(1, 20) n",
    )

    found = sizes(shop.source())

    assert found["empty"] == 0
    assert (found["large"] or 0) > 2_000_000


def test_size_of_a_partitioned_table_is_that_of_its_partitions(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE days (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "INSERT INTO days SELECT n, '2026-01-01'::date + n % 50 FROM generate_series(1, 9000) n",
    )

    found = sizes(shop.source())

    size = shop.value("SELECT pg_table_size('days_1') + pg_table_size('days_2')")
    assert found == {"days": size}
    assert size > 100_000


def test_large_table_is_bucketed_by_its_key(
    shop: Shop, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_table, "BYTES_PER_BUCKET", 16_384)
    shop.run(ORDERS, FILL.format(1000), "CREATE TABLE small (id int PRIMARY KEY)")

    lake.run(mirror(lake, shop.source(), namespace=("shop",)))

    (field,) = lake.catalog.client().load_table("shop.orders").spec().fields
    assert (field.name, str(field.transform)) == ("id_bucket", "bucket[4]")
    assert lake.catalog.client().load_table("shop.small").spec().is_unpartitioned()
