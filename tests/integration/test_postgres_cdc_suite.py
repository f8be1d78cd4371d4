"""The contract of every source, kept by changes from PostgreSQL's log."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.postgres import Postgres

from icestream.testing.source_suite import SourceSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.changing_database import Shop
    from tests.fixtures.service_run import ServiceRun

    from icestream.sources.postgres_cdc import PostgresCdcSource


@pytest.fixture(scope="module")
def postgres(service_run: ServiceRun) -> Iterator[Postgres]:
    """A server whose log tells of nothing else: how far it is must not change by itself."""
    server = Postgres.create(service_run, "postgres-suite")
    yield server
    server.kill()


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
        monkeypatch.setattr("icestream.sources.postgres_cdc.waiting_changes.COUNT_SECS", 0.0)
        monkeypatch.setattr("icestream.sources.postgres_cdc.waiting_changes.COUNT_SHARE", 0.0)
        return Orders(shop)
