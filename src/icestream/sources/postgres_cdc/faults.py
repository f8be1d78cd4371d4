"""Turns PostgreSQL errors into icestream errors, without secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from icestream.contracts.faults import transport_faults
from icestream.contracts.secrets import without_secrets
from icestream.errors import (
    AttentionError,
    ConnectorError,
    IcestreamError,
    RefusedError,
    SourceChangedError,
    TransientError,
)

if TYPE_CHECKING:
    import psycopg

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions


class ErrorRule(NamedTuple):
    """How to recognise an error of the server, and what to report.

    Attributes:
        sqlstates: SQLSTATEs or prefixes of them; none to match the message only.
        pattern: matches the server's message. A refused connection has no SQLSTATE.
        error_type: the error to raise.
        message: of that error, with the placeholders `{user}`, `{database}`, `{host}`, `{port}`,
            `{slot}`, `{publication}` and `{said}`, the server's message.
        todo: what to do about it.
    """

    sqlstates: tuple[str, ...]
    pattern: str
    error_type: type[IcestreamError]
    message: str
    todo: str


ADDRESS_KEYS = "`host` and `port`"
ERROR_RULES = (
    ErrorRule(
        (),
        r"password authentication failed|no password supplied|password is missing|28P01",
        RefusedError,
        "password authentication failed for user {user!r}",
        "Check `user` and `password`.",
    ),
    ErrorRule(
        (),
        r"no pg_hba.conf entry",
        RefusedError,
        "the server does not accept user {user!r} from this host: {said}",
        "Add an entry for the user, the database and this host to the server's pg_hba.conf, or "
        "set `sslmode: require` if the server requires encryption.",
    ),
    ErrorRule(
        (),
        r"database \".*\" does not exist",
        ConnectorError,
        "the server has no database {database!r}",
        "Check the spelling of `database`.",
    ),
    ErrorRule(
        (),
        r"role \".*\" does not exist|is not permitted to log in",
        RefusedError,
        "user {user!r} does not exist or may not log in",
        "Check the spelling of `user`, and that the role has the LOGIN attribute.",
    ),
    ErrorRule(
        (),
        r"server does not support SSL|SSL error|certificate",
        RefusedError,
        "TLS connection to {host}:{port} failed: {said}",
        "Check `sslmode`, and the certificates of the server and of this host.",
    ),
    ErrorRule(
        (),
        r"start (walsender|WAL sender)",
        RefusedError,
        "user {user!r} may not open replication connections: {said}",
        "Run `ALTER ROLE {user} REPLICATION` as an administrator; managed services have a role for "
        "it (e.g. `GRANT rds_replication TO {user}`).",
    ),
    ErrorRule(
        (),
        r"unsupported startup parameter: replication|replication .*not supported",
        RefusedError,
        "replication connections are not supported at {host}:{port}: {said}",
        "Set `host` and `port` to the server itself, not a connection pooler.",
    ),
    *(
        ErrorRule((), *fault)
        for fault in transport_faults(
            "{host}:{port}",
            ADDRESS_KEYS,
            no_answer=r"timeout expired|connection timeout|No route to host|Network is unreachable",
        )
    ),
    ErrorRule(
        ("55000",),
        r"wal_level",
        AttentionError,
        "logical decoding is disabled: `wal_level` is not `logical`",
        "Run `ALTER SYSTEM SET wal_level = logical` and restart the server; managed services have "
        "a setting for it (e.g. `rds.logical_replication`).",
    ),
    ErrorRule(
        ("55000",),
        r"no longer (get changes|available)|can no longer|invalidated|exceeded the maximum",
        SourceChangedError,
        "the server has removed log that replication slot {slot!r} still needed: {said}",
        "Changes are lost. Raise `max_slot_wal_keep_size`, drop the slot with `SELECT "
        "pg_drop_replication_slot('{slot}')`, and reload everything with `icestream run "
        "--start-over`.",
    ),
    ErrorRule(
        ("53400",),
        r"replication slots",
        AttentionError,
        "all replication slots of the server are in use",
        "Drop an unused one (`SELECT slot_name, active FROM pg_replication_slots`), or raise "
        "`max_replication_slots` and restart the server.",
    ),
    ErrorRule(
        ("55006",),
        r"replication slot",
        TransientError,
        "replication slot {slot!r} is used by another connection",
        "A slot has one reader: give each pipeline its own `slot_name`.",
    ),
    ErrorRule(
        ("42704",),
        r"publication",
        SourceChangedError,
        "publication {publication!r} no longer exists",
        "Changes since it was dropped are lost. Drop the slot with `SELECT "
        "pg_drop_replication_slot('{slot}')`, and reload everything with `icestream run "
        "--start-over`.",
    ),
    ErrorRule(
        ("42704",),
        r"replication slot",
        SourceChangedError,
        "replication slot {slot!r} no longer exists",
        "Changes since it was dropped are lost: reload everything with `icestream run "
        "--start-over`.",
    ),
    ErrorRule(
        ("25006", "55000"),
        r"recovery|read-only transaction",
        ConnectorError,
        "the server is a standby, and changes can only be read from a primary",
        "Set `host` to the primary.",
    ),
    ErrorRule(
        ("42501",),
        r"replication slots|REPLICATION",
        RefusedError,
        "user {user!r} may not use replication slots",
        "Run `ALTER ROLE {user} REPLICATION` as an administrator; managed services have a role for "
        "it (e.g. `GRANT rds_replication TO {user}`).",
    ),
    ErrorRule(
        ("42501",),
        r"",
        RefusedError,
        "user {user!r} lacks a privilege: {said}",
        "Grant it to the user (`GRANT USAGE ON SCHEMA ...`, `GRANT SELECT ON ...`).",
    ),
    ErrorRule(
        ("55P03",),
        r"",
        ConnectorError,
        "a table is locked, for example by VACUUM FULL or ALTER TABLE",
        "Try again when that has ended: `SELECT * FROM pg_locks WHERE mode = "
        "'AccessExclusiveLock'`.",
    ),
    ErrorRule(
        ("42P01", "42703"),
        r"",
        TransientError,
        "a table changed while it was read: {said}",
        "The `restart` policy reads it again.",
    ),
    ErrorRule(
        ("08", "57P", "40", "53", "58"),
        r"",
        TransientError,
        "the connection to the server broke: {said}",
        "The `restart` policy reconnects. Check the server's log if it happens again.",
    ),
)
# A connection that breaks has no SQLSTATE.
DISCONNECTED = re.compile(
    r"server closed the connection|connection (is lost|is closed|has been closed|was lost)"
    r"|Connection reset|Broken pipe|the connection is|consuming input failed|starting up"
    r"|shutting down|too many (clients|connections)|remaining connection slots"
    r"|connection failed|connection is bad"
)


def error_location(options: PostgresCdcOptions) -> str:
    """Return the `where` of errors about a database."""
    return f"source postgres-cdc {options.host}:{options.port}/{options.database}"


def to_error(exc: psycopg.Error, options: PostgresCdcOptions) -> IcestreamError:
    """Return the icestream error for one of psycopg's."""
    text, state = str(exc), exc.sqlstate or ""
    filled = {
        "user": options.user,
        "database": options.database,
        "host": options.host,
        "port": options.port,
        "slot": options.slot,
        "publication": options.publication_name,
        "said": without_secrets(_server_message(text), options),
    }
    where = error_location(options)
    for rule in ERROR_RULES:
        if _matches(rule, state, text):
            return rule.error_type(
                rule.message.format(**filled), where=where, todo=rule.todo.format(**filled)
            )
    if not state and DISCONNECTED.search(text):
        return TransientError(
            f"the connection to the server broke: {filled['said']}",
            where=where,
            todo="The `restart` policy reconnects. Check the server's log if it happens again.",
        )
    code = f" ({state})" if state else ""
    return ConnectorError(f"the server reports: {filled['said']}{code}", where=where)


def _matches(rule: ErrorRule, state: str, text: str) -> bool:
    if state and rule.sqlstates:
        matches = state.startswith(rule.sqlstates)
    else:
        matches = not state and not rule.sqlstates
    # Login failures come without a SQLSTATE, but a session may also be refused later.
    return (matches or (bool(state) and state[:2] in ("28", "3D") and not rule.sqlstates)) and bool(
        re.search(rule.pattern, text)
    )


def _server_message(text: str) -> str:
    """Return the server's message: the first line, without what libpq adds."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = lines[0] if lines else "nothing"
    words = words.rpartition("failed: ")[2]
    return re.sub(r"^(FATAL|ERROR):\s*", "", words)
