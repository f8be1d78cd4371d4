"""The errors for a database that cannot be replicated, word for word."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.fixtures.mirrored_tables import Mirror
from tests.fixtures.ports import closed_port
from tests.fixtures.waiting import wait_until

from icestream.errors import (
    AttentionError,
    ConnectorError,
    IcestreamError,
    RefusedError,
    SourceChangedError,
    TransientError,
    UnreachableError,
)
from icestream.sources.postgres_cdc.server import PgServer
from icestream.sources.postgres_cdc.timeline import Anchor, format_lsn, read_lineage, verify_anchor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.changing_database import Shop

    from icestream.sources.postgres_cdc import PostgresCdcSource
    from icestream.sources.postgres_cdc.server import PgSession


@pytest.fixture(autouse=True)
def _orders(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id int PRIMARY KEY, what text)")


def checked(source: PostgresCdcSource) -> list[str]:
    """Run every step of a check; return what they say."""
    return [step.run() for step in source.check()]


def message(kind: type[IcestreamError], act: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        act()
    assert type(caught.value) is kind
    return str(caught.value)


def fresh_role(shop: Shop, attributes: str = "") -> dict[str, str]:
    """Make a role that may read the table and nothing else; return how it signs in."""
    name = f"r_{shop.database}"
    shop.run(
        f"CREATE ROLE {name} LOGIN PASSWORD 'only-for-tests' {attributes}",
        f"GRANT SELECT ON orders TO {name}",
    )
    return {"user": name, "password": "only-for-tests"}


def test_check_creates_nothing(shop: Shop) -> None:
    shop.run("CREATE TABLE log (what text)")
    said = checked(shop.source())
    assert said[0] == f"127.0.0.1:{shop.server.port}"
    assert said[1].startswith("PostgreSQL ")
    assert said[2:] == [
        "wal_level logical",
        "user icestream",
        "2 tables; without a key, so inserts only: public.log",
        "SELECT on 2",
        f"{shop.database}, created by the first run",
        f"{shop.database}, created by the first run",
    ]
    assert shop.value("SELECT count(*) FROM pg_publication") == 0
    assert (
        shop.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = current_database()")
        == 0
    )


def test_wrong_password(shop: Shop) -> None:
    source = shop.source(password="not-the-one")  # noqa: S106
    text = message(RefusedError, lambda: checked(source))
    assert text == (
        f"{shop.where}: password authentication failed for user 'icestream'\n"
        "  Check `user` and `password`."
    )


def test_no_password(shop: Shop) -> None:
    text = message(RefusedError, lambda: checked(shop.source(password=None)))
    assert text == (
        f"{shop.where}: password authentication failed for user 'icestream'\n"
        "  Check `user` and `password`."
    )


def test_missing_database(shop: Shop) -> None:
    text = message(ConnectorError, lambda: checked(shop.source(database="nowhere")))
    assert text == (
        f"source postgres-cdc 127.0.0.1:{shop.server.port}/nowhere: the server has no database "
        "'nowhere'\n  Check the spelling of `database`."
    )


def test_server_that_is_not_running(shop: Shop) -> None:
    port = closed_port()
    source = shop.source(port=port)
    where = f"source postgres-cdc 127.0.0.1:{port}/{shop.database}"
    assert message(UnreachableError, source.initial) == (
        f"{where}: connection to 127.0.0.1:{port} refused\n"
        "  Is the server running? Check `host` and `port`."
    )


def test_unknown_host_name(shop: Shop) -> None:
    source = shop.source(host="nobody.invalid")
    assert message(UnreachableError, source.initial) == (
        f"source postgres-cdc nobody.invalid:{shop.server.port}/{shop.database}: cannot "
        f"resolve the host name of nobody.invalid:{shop.server.port}\n"
        "  Check the spelling of `host` and `port`, and that this machine's DNS resolves the name."
    )


def test_user_without_the_replication_attribute(shop: Shop) -> None:
    role = fresh_role(shop)
    shop.run(f"GRANT CREATE ON DATABASE {shop.database} TO {role['user']}")
    shop.run(f"ALTER TABLE orders OWNER TO {role['user']}")
    expected = (
        f"{shop.where}: user '{role['user']}' may not use replication slots\n"
        f"  Run `ALTER ROLE {role['user']} REPLICATION` as an administrator; managed services have "
        f"a role for it (e.g. `GRANT rds_replication TO {role['user']}`)."
    )
    assert message(RefusedError, lambda: checked(shop.source(**role))) == expected
    assert message(RefusedError, shop.source(**role).initial) == expected


def test_publication_that_the_user_may_not_create(shop: Shop) -> None:
    role = fresh_role(shop, "REPLICATION")
    source = shop.source(**role, publication="shop_changes")
    expected = (
        f"{shop.where}: the database has no publication 'shop_changes', and user "
        f"'{role['user']}' may not create it (permission denied for database {shop.database})\n"
        '  As the owner of the tables, run: CREATE PUBLICATION "shop_changes" FOR TABLE '
        'ONLY "public"."orders" WITH (publish = \'insert, update, delete, truncate\', '
        "publish_via_partition_root = true)"
    )
    assert message(RefusedError, lambda: checked(source)) == expected
    assert message(RefusedError, source.initial) == expected


def test_unprivileged_user_reads_a_publication_of_an_administrator(shop: Shop) -> None:
    role = fresh_role(shop, "REPLICATION")
    shop.run("CREATE PUBLICATION shop_changes FOR TABLE orders", "INSERT INTO orders VALUES (1)")
    mirror = Mirror(shop.source(**role, publication="shop_changes")).follow()
    shop.run("INSERT INTO orders VALUES (2)")
    mirror.follow()
    assert [row["id"] for row in mirror.rows("public.orders")] == [1, 2]


def test_foreign_publication_that_lacks_a_table(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY)", "CREATE PUBLICATION others FOR TABLE people"
    )
    source = shop.source(publication="others", tables=["public.orders", "public.people"])
    expected = (
        f"{shop.where}: publication 'others' does not include public.orders\n"
        '  Run `ALTER PUBLICATION "others" ADD TABLE public.orders`.'
    )
    assert message(ConnectorError, lambda: checked(source)) == expected
    assert message(ConnectorError, source.initial) == expected


def test_table_missing_from_a_foreign_publication_is_skipped_with_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.run(
        "CREATE TABLE people (id int PRIMARY KEY)",
        "CREATE PUBLICATION others FOR TABLE orders",
        "INSERT INTO orders VALUES (1)",
    )
    source = shop.source(publication="others", tables=["public.*"])
    missing = "publication 'others' does not include public.people"

    assert f"others, 1 of 2 tables; 1 left out: {missing}" in checked(source)
    assert set(Mirror(source).follow().tables) == {"public.orders"}
    said = [text for text in caplog.messages if missing in text]
    assert len(said) == 1
    assert said[0].startswith("a table is not replicated: ")


@pytest.mark.parametrize("tables", [["public.*"], ["public.sales"]])
def test_foreign_publication_that_publishes_partitions(shop: Shop, tables: list[str]) -> None:
    shop.run(
        "CREATE TABLE sales (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION others FOR TABLE orders, sales",
    )
    source = shop.source(publication="others", tables=tables)
    expected = (
        f"{shop.where}: publication 'others' publishes public.sales partition by partition\n"
        '  Run `ALTER PUBLICATION "others" SET (publish_via_partition_root = true)`.'
    )
    assert message(ConnectorError, lambda: checked(source)) == expected
    assert message(ConnectorError, source.initial) == expected

    shop.run("ALTER PUBLICATION others SET (publish_via_partition_root = true)")
    assert "public.sales" in Mirror(source).follow().tables


def test_partitioned_table_missing_from_a_foreign_publication_is_skipped(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE sales (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE empty (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE PUBLICATION others FOR TABLE orders",
    )
    source = shop.source(publication="others", tables=["public.*"])

    assert set(Mirror(source).follow().tables) == {"public.orders"}


def test_foreign_publication_without_deletes(shop: Shop) -> None:
    shop.run("CREATE PUBLICATION others FOR TABLE orders WITH (publish = 'insert')")
    assert message(ConnectorError, shop.source(publication="others").initial) == (
        f"{shop.where}: publication 'others' does not publish every kind of change\n"
        "  Run `ALTER PUBLICATION \"others\" SET (publish = 'insert, update, delete, truncate')`."
    )


def test_missing_table(shop: Shop) -> None:
    source = shop.source(tables=["public.nothing", "public.orders"])
    assert message(ConnectorError, source.initial) == (
        f"{shop.where}: the database has no table public.nothing\n"
        "  Check the spelling and the user's permissions (`GRANT USAGE ON SCHEMA ...`, `GRANT "
        "SELECT ON ...`)."
    )


def test_pattern_that_no_table_matches(shop: Shop) -> None:
    assert message(ConnectorError, shop.source(tables=["sales.*"]).initial) == (
        f"{shop.where}: no table of the database matches sales.*\n"
        "  Check `tables`; the form of a pattern is `SCHEMA.NAME`."
    )


def test_slot_that_another_connection_reads(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.slot.BUSY_TIMEOUT_SECS", 0.1)
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'x')")
    end = mirror.planned()
    assert end is not None
    dsn = shop.server.dsn_of(shop.database)
    with closing(
        psycopg.connect(dsn, autocommit=True, application_name="thief", replication="database")
    ) as thief:
        thief.pgconn.send_query(
            f"START_REPLICATION SLOT {shop.database} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{shop.database}')".encode()
        )
        held = "SELECT active FROM pg_replication_slots WHERE slot_name = current_database()"
        wait_until(lambda: bool(shop.value(held)), "the thief to hold the slot")
        pid = thief.info.backend_pid
        text = message(AttentionError, lambda: mirror.read(end))
    assert text == (
        f"{shop.where}: replication slot '{shop.database}' is read by another connection "
        f"(process {pid}, user 'icestream', application 'thief')\n"
        "  A slot has one reader: give each pipeline its own `slot_name`. End a leftover session "
        f"with `SELECT pg_terminate_backend({pid})`."
    )


def test_dropped_slot_is_refused(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    shop.run(f"SELECT pg_drop_replication_slot('{shop.database}')")
    again = Mirror(shop.source(), mirror.position)
    assert message(SourceChangedError, again.step) == (
        f"{shop.where}: replication slot '{shop.database}' no longer exists\n"
        "  Changes since it was dropped are lost: reload everything with "
        "`icestream run --start-over`."
    )


def test_slot_advanced_by_someone_else_is_refused(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    shop.run("INSERT INTO orders VALUES (1, 'x')")
    moved = shop.value(
        "SELECT end_lsn FROM pg_replication_slot_advance(current_database(), "
        "pg_current_wal_flush_lsn())"
    )
    stood = mirror.position["lsn"]
    again = Mirror(shop.source(), mirror.position)
    assert message(SourceChangedError, again.step) == (
        f"{shop.where}: replication slot '{shop.database}' has moved to {moved}, and the tables "
        f"hold changes up to {stood >> 32:X}/{stood & 0xFFFFFFFF:X}\n"
        "  The changes in between can no longer be read: reload everything with `icestream run "
        "--start-over`. Either the pipeline resumed from an offset older than its last commit, or "
        "another pipeline reads from the slot: give each its own `slot_name`, since pipelines with "
        "the same database and tables share one by default."
    )


def test_slot_recreated_by_someone_else_is_refused(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    mirror.source.close()
    shop.run("INSERT INTO orders VALUES (1)")
    shop.run(
        "SELECT pg_drop_replication_slot(current_database())",
        "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')",
    )
    assert "has moved to" in message(SourceChangedError, mirror.step)


def test_slot_of_another_kind(shop: Shop) -> None:
    shop.run(f"SELECT pg_create_logical_replication_slot('{shop.database}', 'test_decoding')")
    expected = (
        f"{shop.where}: replication slot '{shop.database}' already exists, for plugin "
        f"'test_decoding' in database '{shop.database}'\n"
        "  Choose another `slot_name`, or drop the slot with `SELECT "
        f"pg_drop_replication_slot('{shop.database}')` if nothing uses it."
    )
    assert message(ConnectorError, lambda: checked(shop.source())) == expected
    assert message(ConnectorError, shop.source().initial) == expected


def test_dropped_publication_is_refused(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    shop.run(
        "INSERT INTO orders VALUES (1, 'x')",
        f"DROP PUBLICATION {shop.database}",
        "INSERT INTO orders VALUES (2, 'x')",
    )
    assert message(SourceChangedError, mirror.follow) == (
        f"{shop.where}: publication '{shop.database}' no longer exists\n"
        "  Changes since it was dropped are lost. Drop the slot with `SELECT "
        f"pg_drop_replication_slot('{shop.database}')`, and reload everything with `icestream run "
        "--start-over`."
    )


def test_another_server_at_the_same_address(shop: Shop) -> None:
    mirror = Mirror(shop.source()).follow()
    here = mirror.position["system"]
    again = Mirror(shop.source(), {**mirror.position, "system": "1"})
    assert message(SourceChangedError, again.step) == (
        f"{shop.where}: the server has system identifier {here}, and the offset is from 1: it is "
        "another server\n  Check `host` and `port`. If the server was replaced, reload the tables "
        "with `icestream run --start-over`."
    )


def switched(session: PgSession) -> Anchor:
    """An offset on another timeline of the same server."""
    found = read_lineage(session)
    return Anchor(found.system, found.timeline + 1, lsn=found.flushed)


def test_unreadable_timeline_history_is_not_mistaken_for_a_restore(shop: Shop) -> None:
    role = fresh_role(shop)
    with PgServer(shop.source(**role).options).connect() as session:
        anchor = switched(session)
        text = message(AttentionError, lambda: verify_anchor(session, anchor))
    said = "may not open replication connections: must be superuser or replication role to start"
    assert text == (
        f"{shop.where}: the server is on timeline 1, and timeline 2 was read up to "
        f"{format_lsn(anchor.lsn)}: cannot read the timeline history, which shows whether changes "
        f"were lost: user '{role['user']}' {said} walsender\n"
        "  It is read over a replication connection. Give the user the REPLICATION attribute "
        f"(`ALTER ROLE {role['user']} REPLICATION`), and set `host` and `port` to the server "
        "itself, not a connection pooler."
    )


def test_failure_to_read_the_timeline_history_is_transient(shop: Shop) -> None:
    command = f"ALTER DATABASE {shop.database} ALLOW_CONNECTIONS"
    with (
        PgServer(shop.source().options).connect() as session,
        psycopg.connect(shop.server.dsn, autocommit=True) as admin,
    ):
        anchor = switched(session)
        admin.execute(f"{command} false")
        text = message(TransientError, lambda: verify_anchor(session, anchor))
        admin.execute(f"{command} true")
    assert "is not currently accepting connections" in text


def test_user_without_access_to_checkpoints_still_replicates(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("icestream.sources.postgres_cdc.driver.SLOT_CHECK_SECS", 0.0)
    role = fresh_role(shop, "REPLICATION")
    shop.run(
        "REVOKE EXECUTE ON FUNCTION pg_control_checkpoint() FROM PUBLIC",
        "CREATE PUBLICATION shop_changes FOR TABLE orders",
    )
    mirror = Mirror(shop.source(**role, publication="shop_changes")).follow()
    shop.run("INSERT INTO orders VALUES (1)")
    mirror.follow()
    assert [row["id"] for row in mirror.rows("public.orders")] == [1]
    assert [line for line in caplog.messages if "checkpoint" in line] == [
        f"{shop.where}: cannot call pg_control_checkpoint() (permission denied for function "
        "pg_control_checkpoint): a restore from a backup of the data files may go unnoticed; "
        "GRANT EXECUTE ON FUNCTION pg_control_checkpoint() to the user"
    ]
