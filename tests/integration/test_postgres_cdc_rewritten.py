"""Tables that PostgreSQL rewrites during their snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fixtures.changing_database import assert_same
from tests.fixtures.mirrored_tables import Mirror

from icestream.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fixtures.changing_database import Shop

    from icestream.contracts.source import Split
    from icestream.sources.postgres_cdc import PostgresCdcSource

REWRITE = "ALTER TABLE orders ALTER amount TYPE bigint"


def begin(shop: Shop, key: str) -> tuple[PostgresCdcSource, Sequence[Split]]:
    """Take the view under which a table is read."""
    shop.run(
        f"CREATE TABLE orders (id int {key}, amount int)",
        "INSERT INTO orders SELECT n, n FROM generate_series(1, 100) n",
    )
    source = shop.source()
    start = source.initial()
    end = source.limit(start, source.latest(start), 1000)
    return source, source.splits(start, end, 1)


def test_table_rewritten_after_the_snapshot_is_read_in_a_newer_one(shop: Shop) -> None:
    source, splits = begin(shop, "PRIMARY KEY")
    shop.run(REWRITE)

    rows = [block.num_rows for split in splits for block in source.read(split)]

    assert rows == [100]


def test_rewritten_table_without_a_key_is_not_read_as_empty(shop: Shop) -> None:
    source, splits = begin(shop, "")
    shop.run(REWRITE)

    with pytest.raises(TransientError) as caught:
        list(source.read(splits[0]))

    assert caught.value.what == ("the snapshot that public.orders is read from is gone")
    # Read again, under a view that shows it.
    mirror = Mirror(source).follow()
    shop.run("INSERT INTO orders VALUES (200, 200)")
    mirror.follow()
    assert_same(shop, mirror, "orders")


def test_partitioned_table_with_a_rewritten_partition_is_read_in_a_newer_snapshot(
    shop: Shop,
) -> None:
    shop.run(
        "CREATE TABLE lines (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE lines_low PARTITION OF lines FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE lines_high PARTITION OF lines FOR VALUES FROM (50) TO (1000)",
        "INSERT INTO lines SELECT generate_series(1, 100)",
    )
    source = shop.source()
    start = source.initial()
    end = source.limit(start, source.latest(start), 1000)
    splits = source.splits(start, end, 1)
    shop.run("TRUNCATE lines_low", "INSERT INTO lines VALUES (7)")

    assert sum(block.num_rows for split in splits for block in source.read(split)) == 52
