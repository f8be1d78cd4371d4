"""The contract of every source, kept by changes from PostgreSQL's log."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from icestream.testing.source_suite import SourceSuite

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop
    from tests.fixtures.postgres import Postgres

    from icestream.sources.postgres_cdc import PostgresCdcSource


@pytest.fixture
def postgres(postgres_alone: Postgres) -> Postgres:
    """How far its log is must not change by itself."""
    return postgres_alone


class Orders:
    """A table that rows are added to, a transaction at a time."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.numbers = count()
        shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")

    def source(self) -> PostgresCdcSource:
        return self.shop.source(snapshot="never", heartbeat_secs=1000)

    def add(self, rows: int) -> None:
        first = next(self.numbers) * 1000
        with self.shop.connection.cursor() as cursor:
            query = "INSERT INTO orders SELECT n, 'what' FROM generate_series(%s::int, %s) n"
            cursor.execute(query, [first, first + rows - 1])


class TestPostgresCdc(SourceSuite):
    not_held = {
        "shape": "each block has the columns of its own table",
        "exact_counts": "transactions are kept whole, however many rows a batch may have",
    }

    @pytest.fixture
    def system(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Orders:
        monkeypatch.setattr("icestream.sources.postgres_cdc.source.COUNT_INTERVAL_SECS", 0.0)
        monkeypatch.setattr("icestream.sources.postgres_cdc.source.COUNT_PAUSE_FACTOR", 0.0)
        return Orders(shop)


def test_rows_of_a_short_wal_range_are_counted(shop: Shop) -> None:
    orders = Orders(shop)
    source = orders.source()
    start = source.initial()
    orders.add(37)
    assert source.rows_between(start, source.latest(start)) == 37
