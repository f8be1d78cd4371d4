"""Faults that need a server of their own: its settings, its log, its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.changing_database import Shop, assert_same
from tests.fixtures.mirrored_tables import Mirror
from tests.fixtures.waiting import wait_until

from icestream.errors import AttentionError, SourceChangedError, TransientError, UnreachableError
from icestream.sources.postgres_cdc.server import PgServer
from icestream.sources.postgres_cdc.snapshot import await_open_transactions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import Postgres


@pytest.fixture
def own_shop(postgres_own: Postgres) -> Iterator[Shop]:
    shop = Shop(postgres_own)
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")
    yield shop
    for source in shop.sources:
        source.close()
    shop.connection.close()


def restart(shop: Shop, **settings: str) -> None:
    shop.connection.close()
    shop.server.stop()
    shop.server.settings = settings
    shop.server.start()
    shop.connection = shop.connect()


def test_disabled_logical_decoding_is_reported(own_shop: Shop) -> None:
    restart(own_shop, wal_level="replica")
    todo = (
        "  Run `ALTER SYSTEM SET wal_level = logical` and restart the server; managed services "
        "have a setting for it (e.g. `rds.logical_replication`)."
    )
    with pytest.raises(AttentionError) as caught:
        [step.run() for step in own_shop.source().check()]
    assert str(caught.value) == (
        f"{own_shop.where}: logical decoding is disabled: `wal_level` is 'replica', not "
        f"'logical'\n{todo}"
    )
    with pytest.raises(AttentionError) as caught:
        own_shop.source().initial()
    assert str(caught.value) == (
        f"{own_shop.where}: logical decoding is disabled: `wal_level` is not `logical`\n{todo}"
    )


def test_server_without_a_free_slot_is_reported(own_shop: Shop) -> None:
    restart(own_shop, max_replication_slots="1")
    own_shop.run("SELECT pg_create_physical_replication_slot('other')")
    expected = (
        f"{own_shop.where}: all replication slots of the server are in use\n"  # noqa: S608
        "  Drop an unused one (`SELECT slot_name, active FROM pg_replication_slots`), or "
        "raise `max_replication_slots` and restart the server."
    )
    for act in (own_shop.source().initial, lambda: [s.run() for s in own_shop.source().check()]):
        with pytest.raises(AttentionError) as caught:
            act()
        assert str(caught.value) == expected


def test_slot_whose_wal_was_removed_is_refused(own_shop: Shop) -> None:
    restart(own_shop, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    mirror = Mirror(own_shop.source()).follow()
    for _ in range(4):
        own_shop.run(
            "INSERT INTO orders SELECT n, repeat('x', 200) FROM generate_series(1, 50000) n "
            "ON CONFLICT (id) DO UPDATE SET what = excluded.what || 'y'",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        )
    again = Mirror(own_shop.source(), mirror.position)
    with pytest.raises(SourceChangedError) as caught:
        again.step()
    assert str(caught.value) == (
        f"{own_shop.where}: the server has removed log that replication slot "
        f"'{own_shop.database}' still needed\n"
        "  Changes are lost. Raise `max_slot_wal_keep_size`, drop the slot with `SELECT "
        f"pg_drop_replication_slot('{own_shop.database}')`, and reload everything with "
        "`icestream run --start-over`."
    )


def test_streaming_continues_after_a_server_restart(own_shop: Shop) -> None:
    mirror = Mirror(own_shop.source()).follow()
    own_shop.run("INSERT INTO orders VALUES (1, 'before')")
    own_shop.connection.close()
    own_shop.server.kill()
    with pytest.raises(TransientError):
        mirror.step()
    with pytest.raises(UnreachableError):
        mirror.step()
    own_shop.server.start()
    own_shop.connection = own_shop.connect()
    own_shop.run("INSERT INTO orders VALUES (2, 'after')")
    mirror.follow()
    assert_same(own_shop, mirror, "orders")


def test_prepared_transaction_that_blocks_the_snapshot_is_reported(
    own_shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.snapshot.WARN_AFTER_SECS", 0.0)
    restart(own_shop, max_prepared_transactions="2")
    own_shop.run("BEGIN", "INSERT INTO orders VALUES (1, 'x')", "PREPARE TRANSACTION 'left'")
    own_shop.run("INSERT INTO orders VALUES (2, 'x')")
    with PgServer(own_shop.source().options).connect() as session:
        waiting = threading.Thread(target=await_open_transactions, args=[session])
        waiting.start()
        expected = (
            "the snapshot is waiting for transaction 'left', which user icestream prepared in "
            f"database {own_shop.database} "
        )
        try:
            wait_until(lambda: expected in caplog.text, "a word about the transaction")
        finally:
            own_shop.run("ROLLBACK PREPARED 'left'")
            waiting.join()
