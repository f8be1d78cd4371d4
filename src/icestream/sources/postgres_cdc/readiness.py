"""The steps of `icestream check`: whether the database can be followed. Nothing is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.faults import CheckStep, check_connection
from icestream.errors import AttentionError, ConnectorError, RefusedError
from icestream.sources.postgres_cdc import publication, slot
from icestream.sources.postgres_cdc.publication import refuse_untold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.sources.postgres_cdc.driver import Driver

MAY_REPLICATE = """
SELECT rolreplication OR rolsuper OR EXISTS (
    SELECT FROM pg_catalog.pg_roles AS r
    WHERE r.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, 'MEMBER'))
FROM pg_catalog.pg_roles WHERE rolname = current_user
"""
FREE_SLOTS = """
SELECT current_setting('max_replication_slots')::int - count(*)
FROM pg_catalog.pg_replication_slots
"""


def readiness(driver: Driver) -> Iterator[CheckStep]:
    """Yield the steps, each a question to the server."""
    options = driver.options
    yield CheckStep("reach server", lambda: _reach(driver))
    yield CheckStep("sign in", lambda: _sign_in(driver))
    if options.follows:
        yield CheckStep("log tells changes", lambda: _wal_level(driver))
        yield CheckStep("replication right", lambda: _may_replicate(driver))
    yield CheckStep("find tables", lambda: _tables(driver))
    yield CheckStep("read tables", lambda: _may_read(driver))
    if options.follows:
        yield CheckStep("publication", lambda: _publication(driver))
        yield CheckStep("replication slot", lambda: _slot(driver))


def _reach(driver: Driver) -> str:
    options = driver.options
    if options.host.startswith("/"):
        return options.host
    host = f"[{options.host}]" if ":" in options.host else options.host
    return check_connection(f"{host}:{options.port}", driver.server.where, "host")


def _sign_in(driver: Driver) -> str:
    (version,) = driver.session.row("SHOW server_version")
    (is_standby,) = driver.session.row("SELECT pg_catalog.pg_is_in_recovery()")
    if is_standby:
        raise ConnectorError(
            "the server is a standby, which can't be followed",
            where=driver.server.where,
            todo="Name the primary in `host`.",
        )
    return f"PostgreSQL {version}, user {driver.options.user}"


def _wal_level(driver: Driver) -> str:
    (level,) = driver.session.row("SHOW wal_level")
    if level != "logical":
        raise AttentionError(
            f"the server's log does not tell changes: `wal_level` is {level!r}, not 'logical'",
            where=driver.server.where,
            todo="Run `ALTER SYSTEM SET wal_level = logical` and restart the server; a managed "
            "service has a switch for it (e.g. `rds.logical_replication`).",
        )
    return "wal_level logical"


def _may_replicate(driver: Driver) -> str:
    (may,) = driver.session.row(MAY_REPLICATE)
    user = driver.options.user
    if not may:
        raise RefusedError(
            f"user {user!r} may not use replication slots",
            where=driver.server.where,
            todo=f"Run `ALTER ROLE {user} REPLICATION` as an administrator; a managed service has "
            f"a role for it (e.g. `GRANT rds_replication TO {user}`).",
        )
    return f"user {user}"


def _tables(driver: Driver) -> str:
    tables = [each.table for each in driver.found().values() if not each.is_part]
    grown = [table.label for table in tables if table.only_grows and table.mode == "incremental"]
    told = f"{len(tables)} table{'s'[: len(tables) != 1]}"
    if grown:
        told += f"; without a key, so new rows only: {', '.join(grown)}"
    return told


def _may_read(driver: Driver) -> str:
    labels = [each.table.label for each in driver.found().values() if not each.is_part]
    refused = driver.session.rows(
        "SELECT label FROM unnest(%s::text[]) AS label"
        " WHERE NOT pg_catalog.has_table_privilege(label, 'SELECT')"
        " AND NOT pg_catalog.has_any_column_privilege(label, 'SELECT')",
        [labels],
    )
    if refused:
        listed, user = ", ".join(label for (label,) in refused), driver.options.user
        raise RefusedError(
            f"user {user!r} may not read {listed}",
            where=driver.server.where,
            todo=f"Run `GRANT SELECT ON {listed} TO {user}`.",
        )
    return f"SELECT on {len(labels)}"


def _publication(driver: Driver) -> str:
    name = driver.options.publication_name
    state = publication.refuse_unfit(driver.session, driver.options)
    found = driver.found()
    if state is None:
        publication.refuse_unmakeable(driver.session, driver.options, found)
        return f"{name}, made at the first run"
    left_out = []
    if not state.is_ours:
        lacking = publication.unpublished(driver.session, driver.options, found)
        left_out = refuse_untold(driver.session, driver.options, lacking, found, state)
    told = f"{name}, {len(driver.published(found))} of {len(found)} tables"
    return f"{told}; it leaves out {len(left_out)}: {left_out[0].what}" if left_out else told


def _slot(driver: Driver) -> str:
    name = driver.options.slot
    found = slot.look(driver.session)
    if found is None:
        (free,) = driver.session.row(FREE_SLOTS)
        if free < 1:
            raise AttentionError(
                "the server has no replication slot left to give",
                where=driver.server.where,
                todo="Drop one that nobody uses (`SELECT slot_name, active FROM "
                "pg_replication_slots`), or raise `max_replication_slots` and restart the server.",
            )
        return f"{name}, made at the first run"
    slot.refuse_unfit(found, driver.server)
    return name
