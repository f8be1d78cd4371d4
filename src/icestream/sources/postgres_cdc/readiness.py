"""The steps of `icestream check`: whether the database can be replicated. Creates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.faults import CheckStep, check_connection
from icestream.errors import AttentionError, ConnectorError, RefusedError
from icestream.sources.postgres_cdc import publication, slot
from icestream.sources.postgres_cdc.faults import ADDRESS_KEYS
from icestream.sources.postgres_cdc.publication import refuse_unpublished

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


def check_steps(driver: Driver) -> Iterator[CheckStep]:
    """Yield the checks, each a query to the server."""
    options = driver.options
    yield CheckStep("reach server", lambda: _check_address(driver))
    yield CheckStep("sign in", lambda: _sign_in(driver))
    if options.follows:
        yield CheckStep("wal_level is logical", lambda: _wal_level(driver))
        yield CheckStep("replication privilege", lambda: _may_replicate(driver))
    yield CheckStep("find tables", lambda: _tables(driver))
    yield CheckStep("read tables", lambda: _may_read(driver))
    if options.follows:
        yield CheckStep("publication", lambda: _publication(driver))
        yield CheckStep("replication slot", lambda: _slot(driver))


def _check_address(driver: Driver) -> str:
    options = driver.options
    if options.host.startswith("/"):
        return options.host
    host = f"[{options.host}]" if ":" in options.host else options.host
    return check_connection(f"{host}:{options.port}", driver.server.where, ADDRESS_KEYS)


def _sign_in(driver: Driver) -> str:
    (version,) = driver.session.row("SHOW server_version")
    (is_standby,) = driver.session.row("SELECT pg_catalog.pg_is_in_recovery()")
    if is_standby:
        raise ConnectorError(
            "the server is a standby, and changes can only be read from a primary",
            where=driver.server.where,
            todo="Set `host` to the primary.",
        )
    return f"PostgreSQL {version}, user {driver.options.user}"


def _wal_level(driver: Driver) -> str:
    (level,) = driver.session.row("SHOW wal_level")
    if level != "logical":
        raise AttentionError(
            f"logical decoding is disabled: `wal_level` is {level!r}, not 'logical'",
            where=driver.server.where,
            todo="Run `ALTER SYSTEM SET wal_level = logical` and restart the server; managed "
            "services have a setting for it (e.g. `rds.logical_replication`).",
        )
    return "wal_level logical"


def _may_replicate(driver: Driver) -> str:
    (may,) = driver.session.row(MAY_REPLICATE)
    user = driver.options.user
    if not may:
        raise RefusedError(
            f"user {user!r} may not use replication slots",
            where=driver.server.where,
            todo=f"Run `ALTER ROLE {user} REPLICATION` as an administrator; managed services have "
            f"a role for it (e.g. `GRANT rds_replication TO {user}`).",
        )
    return f"user {user}"


def _tables(driver: Driver) -> str:
    tables = [each.table for each in driver.find_tables().values() if not each.is_partition]
    insert_only = [
        table.qualified_name
        for table in tables
        if table.is_insert_only and table.mode == "incremental"
    ]
    summary = f"{len(tables)} table{'s'[: len(tables) != 1]}"
    if insert_only:
        summary += f"; without a key, so inserts only: {', '.join(insert_only)}"
    return summary


def _may_read(driver: Driver) -> str:
    names = [
        each.table.qualified_name for each in driver.find_tables().values() if not each.is_partition
    ]
    refused = driver.session.rows(
        "SELECT label FROM unnest(%s::text[]) AS label"
        " WHERE NOT pg_catalog.has_table_privilege(label, 'SELECT')"
        " AND NOT pg_catalog.has_any_column_privilege(label, 'SELECT')",
        [names],
    )
    if refused:
        listed, user = ", ".join(label for (label,) in refused), driver.options.user
        raise RefusedError(
            f"user {user!r} may not read {listed}",
            where=driver.server.where,
            todo=f"Run `GRANT SELECT ON {listed} TO {user}`.",
        )
    return f"SELECT on {len(names)}"


def _publication(driver: Driver) -> str:
    name = driver.options.publication_name
    state = publication.find_usable(driver.session, driver.options)
    found = driver.find_tables()
    if state is None:
        publication.refuse_missing_privileges(driver.session, driver.options, found)
        return f"{name}, created by the first run"
    left_out = []
    if not state.is_ours:
        missing = publication.unpublished_tables(driver.session, driver.options, found)
        left_out = refuse_unpublished(driver.session, driver.options, missing, found, state)
    summary = f"{name}, {len(driver.readable_tables(found))} of {len(found)} tables"
    return f"{summary}; {len(left_out)} left out: {left_out[0].what}" if left_out else summary


def _slot(driver: Driver) -> str:
    name = driver.options.slot
    found = slot.find(driver.session)
    if found is None:
        (free,) = driver.session.row(FREE_SLOTS)
        if free < 1:
            raise AttentionError(
                "all replication slots of the server are in use",
                where=driver.server.where,
                todo="Drop an unused one (`SELECT slot_name, active FROM "
                "pg_replication_slots`), or raise `max_replication_slots` and restart the server.",
            )
        return f"{name}, created by the first run"
    slot.refuse_unusable(found, driver.server)
    return name
