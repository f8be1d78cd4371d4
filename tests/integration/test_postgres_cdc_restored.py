"""A server whose log is another one by now: restored from a backup, or failed over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.fixtures.changing_database import Shop, assert_same
from tests.fixtures.mirrored_tables import Mirror
from tests.fixtures.waiting import wait_until

from icestream.errors import SourceChangedError, TransientError
from icestream.sources.postgres_cdc.timeline import format_lsn, parse_lsn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.postgres import Postgres

CONFIRMED = "SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots"
LSN = "[0-9A-F]+/[0-9A-F]+"
LOG_END = "SELECT (pg_current_wal_flush_lsn() - '0/0')::int8"
RELOAD_REMEDY = (
    "The Iceberg tables may hold rows that the database no longer has. Reload them with "
    "`icestream run --start-over`."
)


@pytest.fixture
def own_shop(postgres_own: Postgres) -> Iterator[Shop]:
    # It would write log between the backup and the restore, and after.
    postgres_own.settings["autovacuum"] = "off"
    postgres_own.stop()
    postgres_own.start()
    shop = Shop(postgres_own)
    shop.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    yield shop
    for source in shop.sources:
        source.close()
    shop.connection.close()


def stop(shop: Shop) -> None:
    shop.connection.close()
    shop.server.stop()


def start(shop: Shop) -> None:
    shop.server.start()
    shop.connection = shop.connect()


def restore(shop: Shop, backup: Path) -> None:
    stop(shop)
    shop.server.restore_data(backup)
    start(shop)


def back_up(shop: Shop, to: Path) -> Path:
    stop(shop)
    shop.server.copy_data(to)
    start(shop)
    return to


def reloaded(shop: Shop) -> Mirror:
    """Start over, as the message says."""
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO b VALUES (-1)", "DELETE FROM b WHERE id = 1")
    return mirror.follow()


@pytest.mark.parametrize("is_running", [True, False])
def test_server_restored_from_a_backup_is_refused(
    own_shop: Shop, tmp_path: Path, *, is_running: bool
) -> None:
    mirror = Mirror(own_shop.source()).follow()
    mirror.source.close()
    backup = back_up(own_shop, tmp_path / "backup")
    own_shop.run("INSERT INTO a SELECT generate_series(1, 500)")
    mirror.follow()
    assert_same(own_shop, mirror, "a", "b")
    if not is_running:
        mirror.source.close()
        mirror.source = own_shop.source()
    restore(own_shop, backup)
    own_shop.run("INSERT INTO b SELECT generate_series(1, 50)")
    if is_running:
        with pytest.raises(TransientError):
            mirror.step()
    confirmed = own_shop.value(CONFIRMED)
    read = format_lsn(mirror.position["lsn"])
    # The server writes log by itself, too.
    expected = (
        rf"{re.escape(own_shop.where)}: the server's log ends at {LSN}, and it was read up to "
        rf"{read} before: the server was restored from a backup, or is a standby that had not "
        rf"received everything when it was promoted\n  {re.escape(RELOAD_REMEDY)}"
    )
    for act in (lambda: mirror.source.committed(mirror.position, 0), mirror.step):
        with pytest.raises(SourceChangedError) as caught:
            act()
        assert re.fullmatch(expected, str(caught.value))
        assert caught.value.exit_code == 5
    assert own_shop.value(CONFIRMED) == confirmed
    assert_same(own_shop, reloaded(own_shop), "a", "b")


def test_task_of_a_planned_batch_refuses_a_restored_server(own_shop: Shop, tmp_path: Path) -> None:
    mirror = Mirror(own_shop.source()).follow()
    mirror.source.close()
    backup = back_up(own_shop, tmp_path / "backup")
    own_shop.run("INSERT INTO a SELECT generate_series(1, 500)")
    end = mirror.planned()
    assert end is not None
    (split,) = mirror.source.splits(mirror.position, end, 1)
    restore(own_shop, backup)
    with pytest.raises(SourceChangedError, match="the server was restored from a backup"):
        list(mirror.source.read(split))


def test_table_snapshotted_before_the_restore_is_refused(own_shop: Shop, tmp_path: Path) -> None:
    """The offset's place in the log is that of the slot, which the backup has."""
    mirror = Mirror(own_shop.source())
    mirror.source.close()
    backup = back_up(own_shop, tmp_path / "backup")
    own_shop.run("INSERT INTO a SELECT generate_series(1, 500)")
    end = mirror.planned(1)
    while end is not None and "part" not in end:
        mirror.commit(end)
        end = mirror.planned(1)
    assert end is not None
    mirror.commit(end)
    mirror.source.close()
    restore(own_shop, backup)
    with pytest.raises(SourceChangedError, match="the server was restored from a backup"):
        mirror.step()


def test_restored_server_that_has_written_newer_wal_is_refused(
    own_shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.SLOT_CHECK_SECS", 0.0)
    mirror = Mirror(own_shop.source()).follow()
    mirror.source.close()
    backup = back_up(own_shop, tmp_path / "backup")
    restored_to = own_shop.value(CONFIRMED)
    for _ in range(4):
        own_shop.run("INSERT INTO a SELECT count(*) FROM a", "CHECKPOINT")
        mirror.follow()
    mirror.source.close()
    restore(own_shop, backup)
    while own_shop.value(LOG_END) < mirror.position["lsn"]:
        own_shop.run("INSERT INTO b SELECT coalesce(max(id), 0) + 1 FROM b")
        own_shop.run("SELECT pg_switch_wal()")
    with pytest.raises(SourceChangedError) as caught:
        mirror.step()
    assert str(caught.value) == (
        f"{own_shop.where}: replication slot '{own_shop.database}' is back at "
        f"{format_lsn(restored_to)}, and was saved to disk at "
        f"{format_lsn(mirror.position['confirmed'])}: the server was restored from a backup\n"
        f"  {RELOAD_REMEDY}"
    )


def test_server_crash_is_not_mistaken_for_a_restore(
    own_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash takes the slot back to the last checkpoint, and asynchronous commits with it."""
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.SLOT_CHECK_SECS", 0.0)
    mirror = Mirror(own_shop.source())
    for number in range(3):
        own_shop.run("SET synchronous_commit = off", "INSERT INTO a SELECT count(*) FROM a")
        mirror.follow()
        if number == 1:
            own_shop.run("CHECKPOINT")
    own_shop.run("INSERT INTO b VALUES (1)")
    own_shop.connection.close()
    own_shop.server.kill()
    start(own_shop)
    mirror.source.close()
    mirror.follow()
    assert_same(own_shop, mirror, "a", "b")


def test_offset_of_an_older_version_adopts_the_timeline(own_shop: Shop) -> None:
    mirror = Mirror(own_shop.source()).follow()
    mirror.source.close()
    for key in ("timeline", "confirmed"):
        mirror.position.pop(key, None)
    own_shop.run("INSERT INTO a VALUES (1)")
    mirror.follow()
    assert mirror.position["timeline"] == 1
    assert_same(own_shop, mirror, "a", "b")


@pytest.fixture
def standby(own_shop: Shop, mirror: Mirror) -> Iterator[Postgres]:
    """A standby that has the slot of the mirror, too."""
    mirror.source.close()
    stop(own_shop)
    server = own_shop.server.standby()
    start(own_shop)
    yield server
    server.kill()


@pytest.fixture
def mirror(own_shop: Shop) -> Mirror:
    return Mirror(own_shop.source()).follow()


def promote(shop: Shop, mirror: Mirror, standby: Postgres) -> None:
    """Make a standby the server of the shop."""
    mirror.source.close()
    stop(shop)
    if not standby.process.is_running:
        standby.start()
    shop.server = standby
    shop.connection = shop.connect()
    shop.run("SELECT pg_promote()")
    mirror.source = shop.source()


def test_standby_promoted_with_every_read_change_is_streamed(
    own_shop: Shop, mirror: Mirror, standby: Postgres
) -> None:
    standby.start()
    own_shop.run("INSERT INTO a SELECT generate_series(1, 500)")
    mirror.follow()
    own_shop.run("INSERT INTO b VALUES (1)")
    end = own_shop.value(LOG_END)
    with psycopg.connect(standby.dsn, autocommit=True) as connection:
        received = "SELECT pg_last_wal_replay_lsn() - '0/0' >= %s"
        wait_until(
            lambda: connection.execute(received, [end]).fetchall() == [(True,)],
            "the standby to receive everything",
        )
    promote(own_shop, mirror, standby)
    own_shop.run("INSERT INTO b VALUES (2)")
    mirror.follow()
    assert mirror.position["timeline"] == 2
    assert_same(own_shop, mirror, "a", "b")


def test_standby_promoted_without_some_read_changes_is_refused(
    own_shop: Shop, mirror: Mirror, standby: Postgres
) -> None:
    own_shop.run("INSERT INTO a SELECT generate_series(1, 500)")
    mirror.follow()
    promote(own_shop, mirror, standby)
    own_shop.run("INSERT INTO b SELECT generate_series(1, 2000)")
    with pytest.raises(SourceChangedError) as caught:
        mirror.step()
    head, _, todo = str(caught.value).partition("\n  ")
    said, _, left_at = head.rpartition(" ")
    assert said == (
        f"{own_shop.where}: the server is on timeline 2, and timeline 1 was read up to "
        f"{format_lsn(mirror.position['lsn'])}: it left timeline 1 at"
    )
    assert parse_lsn(left_at) < mirror.position["lsn"]
    assert todo == (
        "The server was restored from a backup, or is a standby that was promoted before it had "
        f"received everything. {RELOAD_REMEDY}"
    )
    assert_same(own_shop, reloaded(own_shop), "a", "b")
