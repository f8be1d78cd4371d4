"""The replication slot, which makes the server retain the log that we have not read yet."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.errors import AttentionError, ConnectorError, SourceChangedError, TransientError
from icestream.sources.postgres_cdc.timeline import format_lsn

if TYPE_CHECKING:
    from psycopg import sql

    from icestream.sources.postgres_cdc.server import PgServer, PgSession

_log = logging.getLogger(__name__)

PLUGIN = "pgoutput"
BUSY_TIMEOUT_SECS = 10.0
POLL_SECS = 0.1
REASON_VERSION = 170_000

STATE_QUERY = """
SELECT plugin::text, coalesce(database::text, ''), database = current_database(), active_pid,
       (confirmed_flush_lsn - '0/0')::int8, coalesce(wal_status = 'lost', false), {reason}
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""
CHECKPOINT_QUERY = """
SELECT (redo_lsn - '0/0')::int8, (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8
FROM pg_catalog.pg_control_checkpoint()
"""
HOLDER_QUERY = """
SELECT s.active_pid, coalesce(a.application_name, ''), coalesce(a.usename::text, '')
FROM pg_catalog.pg_replication_slots AS s
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = %s AND s.active_pid IS NOT NULL
"""


@dataclass(frozen=True)
class Slot:
    """The state of a replication slot.

    Attributes:
        plugin: its output plugin; None for a physical slot.
        database: the database whose changes it returns.
        is_same_database: whether that is the session's database.
        holder: pid of the session that reads it now.
        confirmed: the log before this LSN may be gone.
        is_lost: whether the server removed log that the slot needed.
        reason: why it was invalidated.
    """

    plugin: str | None
    database: str
    is_same_database: bool | None
    holder: int | None
    confirmed: int
    is_lost: bool
    reason: str | None


class SavedLsn:
    """Finds an LSN of the slot that no crash of the server can undo.

    The server keeps the advance of a slot in memory until its next checkpoint. A slot behind an
    LSN that a checkpoint has saved was restored from a backup.

    Attributes:
        lsn: the latest such LSN; 0 if none is known.
    """

    def __init__(self) -> None:
        self.lsn = 0
        self._seen: tuple[int, int] | None = None  # LSN of the slot, and end of the log then

    def record(self, confirmed: int, log_end: int, redo: int) -> None:
        """Record the slot's LSN, the end of the log, and the start of the last checkpoint."""
        if self._seen is not None and redo > self._seen[1]:
            self.lsn, self._seen = self._seen[0], None
        if self._seen is None:
            self._seen = (confirmed, log_end)


def find(session: PgSession) -> Slot | None:
    """Return our slot; None if it does not exist."""
    reason = "invalidation_reason" if session.version >= REASON_VERSION else "NULL::text"
    query = STATE_QUERY.format(reason=reason)
    rows = session.rows(query, [session.server.options.slot])
    return Slot(*rows[0]) if rows else None


def create(session: PgSession) -> int:
    """Create the slot and return the LSN from which it returns every change."""
    name = session.server.options.slot
    _log.info("creating replication slot %s; this waits for open transactions to end", name)
    (lsn,) = session.row(
        "SELECT (lsn - '0/0')::int8"
        " FROM pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')",
        [name],
    )
    return int(lsn)


def find_usable(session: PgSession) -> Slot:
    """Return our slot if it can be read.

    Raises:
        SourceChangedError: it was dropped, or the server removed log that it needed.
        ConnectorError: it is of another kind, or belongs to another database.
    """
    slot = find(session)
    if slot is None:
        raise missing_error(session.server)
    refuse_unusable(slot, session.server)
    return slot


def refuse_unusable(slot: Slot, server: PgServer) -> None:
    """Refuse a slot of another kind or database, and one whose changes are lost."""
    name = server.options.slot
    if slot.plugin != PLUGIN or not slot.is_same_database:
        what = f"for plugin {slot.plugin!r}" if slot.plugin else "for physical replication"
        database = f" in database {slot.database!r}" if slot.database else ""
        raise ConnectorError(
            f"replication slot {name!r} already exists, {what}{database}",
            where=server.where,
            todo=f"Choose another `slot_name`, or drop the slot with `SELECT "
            f"pg_drop_replication_slot('{name}')` if nothing uses it.",
        )
    if slot.is_lost or slot.reason:
        why = f" ({slot.reason})" if slot.reason not in (None, "wal_removed") else ""
        raise SourceChangedError(
            f"the server has removed log that replication slot {name!r} still needed{why}",
            where=server.where,
            todo="Changes are lost. Raise `max_slot_wal_keep_size`, drop the slot with `SELECT "
            f"pg_drop_replication_slot('{name}')`, and reload everything with "
            "`icestream run --start-over`.",
        )


def missing_error(server: PgServer) -> SourceChangedError:
    """Return the error for a slot that was dropped."""
    return SourceChangedError(
        f"replication slot {server.options.slot!r} no longer exists",
        where=server.where,
        todo="Changes since it was dropped are lost: reload everything with "
        "`icestream run --start-over`.",
    )


def moved_error(server: PgServer, ours: int, confirmed: int) -> SourceChangedError:
    """Return the error for a slot that is ahead of us."""
    name = server.options.slot
    return SourceChangedError(
        f"replication slot {name!r} has moved to {format_lsn(confirmed)}, and the tables hold "
        f"changes up to {format_lsn(ours)}",
        where=server.where,
        todo="The changes in between can no longer be read: reload everything with `icestream run "
        "--start-over`. Either the pipeline resumed from an offset older than its last commit, or "
        "another pipeline reads from the slot: give each its own `slot_name`, since pipelines with "
        "the same database and tables share one by default.",
    )


def await_free(session: PgSession) -> None:
    """Wait until nothing reads the slot: our own ended session may take a moment to close.

    Raises:
        AttentionError: someone else keeps reading it.
        TransientError: a session of ours still reads it.
    """
    server = session.server
    deadline = time.monotonic() + BUSY_TIMEOUT_SECS
    while holders := session.rows(HOLDER_QUERY, [server.options.slot]):
        if time.monotonic() > deadline:
            pid, application, user = holders[0]
            raise _busy_error(server, pid, application, user)
        time.sleep(POLL_SECS)


def _busy_error(
    server: PgServer, pid: int, application: str, user: str
) -> AttentionError | TransientError:
    name = server.options.slot
    by = f"process {pid}, user {user!r}, application {application!r}"
    kind = TransientError if application == server.application else AttentionError
    return kind(
        f"replication slot {name!r} is read by another connection ({by})",
        where=server.where,
        todo="A slot has one reader: give each pipeline its own `slot_name`. End a leftover "
        f"session with `SELECT pg_terminate_backend({pid})`.",
    )


def advance(session: PgSession, lsn: int) -> None:
    """Let the server remove the log before `lsn`; never moves the slot back."""
    if find_usable(session).confirmed < lsn:
        run_exclusively(session, _advance_query(session, lsn))


def advance_if_free(session: PgSession, lsn: int) -> bool:
    """Let the server remove the log before `lsn`; False if the slot is being read."""
    import psycopg

    slot = find_usable(session)
    if slot.confirmed >= lsn:
        return True
    if slot.holder is not None:
        return False
    try:
        session.rows(_advance_query(session, lsn), reraise=psycopg.errors.ObjectInUse)
    except psycopg.errors.ObjectInUse:  # another session was faster
        return False
    return True


def _advance_query(session: PgSession, lsn: int) -> sql.Composed:
    from psycopg import sql

    command = sql.SQL("SELECT pg_catalog.pg_replication_slot_advance({}, {}::pg_lsn)")
    named = sql.Literal(session.server.options.slot)
    return command.format(named, sql.Literal(format_lsn(lsn)))


def run_exclusively(session: PgSession, query: sql.Composed) -> tuple[Any, ...]:
    """Run a query that uses the slot once it is free, and return its row."""
    import psycopg

    while True:
        await_free(session)
        try:
            return session.rows(query, reraise=psycopg.errors.ObjectInUse)[0]
        except psycopg.errors.ObjectInUse:  # another session was faster
            continue
