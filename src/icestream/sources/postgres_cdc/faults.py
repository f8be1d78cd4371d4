"""What PostgreSQL says when it refuses or breaks off, as errors of ours without a secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from icestream.contracts.secrets import without_secrets
from icestream.errors import (
    AttentionError,
    ConnectorError,
    IcestreamError,
    RefusedError,
    SourceChangedError,
    TransientError,
    UnreachableError,
)

if TYPE_CHECKING:
    import psycopg

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions


class Fault(NamedTuple):
    """How a fault is recognised, and what is said of it.

    Attributes:
        states: SQLSTATEs, whole or the first letters of them; none if only words tell.
        words: what the message must hold, as a pattern. A connection that is refused has no
            SQLSTATE, so that words are all there is.
        kind: the error.
        what: what is said. `{user}`, `{database}`, `{host}`, `{port}`, `{slot}`, `{publication}`
            and `{said}`, the server's own words, are filled in.
        todo: what to do about it.
    """

    states: tuple[str, ...]
    words: str
    kind: type[IcestreamError]
    what: str
    todo: str


FAULTS = (
    Fault(
        (),
        r"password authentication failed|no password supplied|password is missing|28P01",
        RefusedError,
        "the server refuses the password of user {user!r}",
        "Look at `user` and `password`.",
    ),
    Fault(
        (),
        r"no pg_hba.conf entry",
        RefusedError,
        "the server lets no user {user!r} in from this machine: {said}",
        "Add a line for the user, the database and this machine to the server's pg_hba.conf, or "
        "set `sslmode: require` if it asks for encryption.",
    ),
    Fault(
        (),
        r"database \".*\" does not exist",
        ConnectorError,
        "the server has no database {database!r}",
        "Look at the spelling of `database`.",
    ),
    Fault(
        (),
        r"role \".*\" does not exist|is not permitted to log in",
        RefusedError,
        "the server lets no user {user!r} in",
        "Look at the spelling of `user`, and whether the role may log in.",
    ),
    Fault(
        (),
        r"server does not support SSL|SSL error|certificate",
        RefusedError,
        "the encrypted connection was not made: {said}",
        "Look at `sslmode`, and at the certificates of the server and of this machine.",
    ),
    Fault(
        (),
        r"start (walsender|WAL sender)",
        RefusedError,
        "user {user!r} may not open replication connections: {said}",
        "Run `ALTER ROLE {user} REPLICATION` as an administrator; a managed service has a role "
        "for it (e.g. `GRANT rds_replication TO {user}`).",
    ),
    Fault(
        (),
        r"unsupported startup parameter: replication|replication .*not supported",
        RefusedError,
        "replication connections are not supported at {host}:{port}: {said}",
        "Let `host` and `port` name the server itself, not a connection pooler.",
    ),
    Fault(
        (),
        r"could not translate host name|[Nn]ame or service not known|Name has no usable address",
        UnreachableError,
        "no machine is known by the name {host!r}",
        "Look at the spelling of `host`, and whether this machine's DNS knows the name.",
    ),
    Fault(
        (),
        r"Connection refused",
        UnreachableError,
        "nothing listens at {host}:{port}",
        "Is the server running? Are `host` and `port` right?",
    ),
    Fault(
        (),
        r"timeout expired|connection timeout|No route to host|Network is unreachable",
        UnreachableError,
        "no answer from {host}:{port}",
        "Are `host` and `port` right? Is a firewall or a VPN in between?",
    ),
    Fault(
        ("55000",),
        r"wal_level",
        AttentionError,
        "the server's log does not tell changes: `wal_level` is not `logical`",
        "Run `ALTER SYSTEM SET wal_level = logical` and restart the server; a managed service has "
        "a switch for it (e.g. `rds.logical_replication`).",
    ),
    Fault(
        ("55000",),
        r"no longer (get changes|available)|can no longer|invalidated|exceeded the maximum",
        SourceChangedError,
        "the server has removed log that replication slot {slot!r} still needed: {said}",
        "Changes are lost. Raise `max_slot_wal_keep_size`, drop the slot by `SELECT "
        "pg_drop_replication_slot('{slot}')`, and read everything anew by `icestream run "
        "--start-over`.",
    ),
    Fault(
        ("53400",),
        r"replication slots",
        AttentionError,
        "the server has no replication slot left to give",
        "Drop one that nobody uses (`SELECT slot_name, active FROM pg_replication_slots`), or "
        "raise `max_replication_slots` and restart the server.",
    ),
    Fault(
        ("55006",),
        r"replication slot",
        TransientError,
        "replication slot {slot!r} is used by another connection",
        "Two readers can't share a slot: give each pipeline a `slot_name` of its own.",
    ),
    Fault(
        ("42704",),
        r"publication",
        SourceChangedError,
        "the database has no publication {publication!r} any more",
        "Changes since it was dropped are lost. Drop the slot by `SELECT "
        "pg_drop_replication_slot('{slot}')`, and read everything anew by `icestream run "
        "--start-over`.",
    ),
    Fault(
        ("42704",),
        r"replication slot",
        SourceChangedError,
        "the database has no replication slot {slot!r} any more",
        "Changes since it was dropped are lost: read everything anew by `icestream run "
        "--start-over`.",
    ),
    Fault(
        ("25006", "55000"),
        r"recovery|read-only transaction",
        ConnectorError,
        "the server is a standby, which can't be followed",
        "Name the primary in `host`.",
    ),
    Fault(
        ("42501",),
        r"replication slots|REPLICATION",
        RefusedError,
        "user {user!r} may not use replication slots",
        "Run `ALTER ROLE {user} REPLICATION` as an administrator; a managed service has a role "
        "for it (e.g. `GRANT rds_replication TO {user}`).",
    ),
    Fault(
        ("42501",),
        r"",
        RefusedError,
        "user {user!r} lacks a right: {said}",
        "Grant it to the user (`GRANT USAGE ON SCHEMA ...`, `GRANT SELECT ON ...`).",
    ),
    Fault(
        ("42P01", "42703"),
        r"",
        TransientError,
        "a table changed while it was read: {said}",
        "It is read again by the `restart` policy.",
    ),
    Fault(
        ("08", "57P", "40", "53", "58"),
        r"",
        TransientError,
        "the server broke off: {said}",
        "It is asked again by the `restart` policy. Look at the server's log if it goes on.",
    ),
)
# Whoever is cut off in the middle gets no SQLSTATE.
CUT_OFF = re.compile(
    r"server closed the connection|connection (is lost|is closed|has been closed|was lost)"
    r"|Connection reset|Broken pipe|the connection is|consuming input failed|starting up"
    r"|shutting down|too many (clients|connections)|remaining connection slots"
    r"|connection failed|connection is bad"
)


def where_is(options: PostgresCdcOptions) -> str:
    """Return the place that messages about a database name."""
    return f"source postgres-cdc {options.host}:{options.port}/{options.database}"


def to_error(exc: psycopg.Error, options: PostgresCdcOptions) -> IcestreamError:
    """Return the error of ours for one of psycopg's."""
    text, state = str(exc), exc.sqlstate or ""
    filled = {
        "user": options.user,
        "database": options.database,
        "host": options.host,
        "port": options.port,
        "slot": options.slot,
        "publication": options.publication_name,
        "said": without_secrets(_said(text), options),
    }
    where = where_is(options)
    for fault in FAULTS:
        if _is(fault, state, text):
            return fault.kind(
                fault.what.format(**filled), where=where, todo=fault.todo.format(**filled)
            )
    if not state and CUT_OFF.search(text):
        return TransientError(
            f"the server broke off: {filled['said']}",
            where=where,
            todo="It is asked again by the `restart` policy. Look at the server's log if it goes "
            "on.",
        )
    shown = f" ({state})" if state else ""
    return ConnectorError(f"the server says: {filled['said']}{shown}", where=where)


def _is(fault: Fault, state: str, text: str) -> bool:
    if state and fault.states:
        matches = state.startswith(fault.states)
    else:
        matches = not state and not fault.states
    # Signing in gives a SQLSTATE to no client, but a session may be refused later on.
    return (matches or (bool(state) and state[:2] in ("28", "3D") and not fault.states)) and bool(
        re.search(fault.words, text)
    )


def _said(text: str) -> str:
    """Return the server's own words: the last line that is no hint, without what libpq adds."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = lines[0] if lines else "nothing"
    words = words.rpartition("failed: ")[2]
    return re.sub(r"^(FATAL|ERROR):\s*", "", words)
