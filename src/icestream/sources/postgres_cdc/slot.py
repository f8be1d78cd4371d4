"""The replication slot: what the server keeps for us, and whether it is still ours."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from icestream.errors import AttentionError, ConnectorError, SourceChangedError, TransientError
from icestream.sources.postgres_cdc.timeline import as_lsn

if TYPE_CHECKING:
    from icestream.sources.postgres_cdc.server import Server, Session

_log = logging.getLogger(__name__)

PLUGIN = "pgoutput"
PATIENCE_SECS = 10.0
LOOK_AGAIN_SECS = 0.1
WITH_REASON = 170_000

STATE_QUERY = """
SELECT plugin::text, coalesce(database::text, ''), database = current_database(), active_pid,
       (confirmed_flush_lsn - '0/0')::int8, coalesce(wal_status = 'lost', false), {reason}
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""
CHECKPOINT_QUERY = """
SELECT (redo_lsn - '0/0')::int8, (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8
FROM pg_catalog.pg_control_checkpoint()
"""
# Some managed services let nobody call it.
NOT_ALLOWED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported)
HOLDER_QUERY = """
SELECT s.active_pid, coalesce(a.application_name, ''), coalesce(a.usename::text, '')
FROM pg_catalog.pg_replication_slots AS s
LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = %s AND s.active_pid IS NOT NULL
"""


@dataclass(frozen=True)
class Slot:
    """A slot as the server tells it.

    Attributes:
        plugin: what writes its messages; None for a slot of physical replication.
        database: whose changes it tells.
        is_here: whether that is the database of the session.
        holder: process of the session that reads it now.
        confirmed: everything before this place may be gone.
        is_lost: whether the server removed log that the slot needed.
        reason: why it can't be used any more.
    """

    plugin: str | None
    database: str
    is_here: bool | None
    holder: int | None
    confirmed: int
    is_lost: bool
    reason: str | None


class SavedPlace:
    """Finds a place of the slot that no crash of the server can undo.

    The server keeps a slot that was advanced in memory until its next checkpoint. A slot that
    stands before a place that a checkpoint has saved was restored from a backup.

    Attributes:
        lsn: the newest such place; 0 if none is known.
    """

    def __init__(self) -> None:
        self.lsn = 0
        self._seen: tuple[int, int] | None = None  # where the slot stood, and the log ended then

    def see(self, confirmed: int, log_end: int, redo: int) -> None:
        """Take note of where the slot stands, the log ends, and the last checkpoint began."""
        if self._seen is not None and redo > self._seen[1]:
            self.lsn, self._seen = self._seen[0], None
        if self._seen is None:
            self._seen = (confirmed, log_end)


def look(session: Session) -> Slot | None:
    """Return our slot, None if it is not there."""
    reason = "invalidation_reason" if session.version >= WITH_REASON else "NULL::text"
    query = STATE_QUERY.format(reason=reason)
    rows = session.rows(query, [session.server.options.slot])
    return Slot(*rows[0]) if rows else None


def create(session: Session) -> int:
    """Make the slot and return the place from which on it tells every change."""
    name = session.server.options.slot
    _log.info("making replication slot %s; it waits for transactions that are open", name)
    (place,) = session.row(
        "SELECT (lsn - '0/0')::int8"
        " FROM pg_catalog.pg_create_logical_replication_slot(%s, 'pgoutput')",
        [name],
    )
    return int(place)


def usable(session: Session) -> Slot:
    """Return our slot if it can be read.

    Raises:
        SourceChangedError: it is gone, or the server removed log that it needed.
        ConnectorError: it is of another kind, or of another database.
    """
    slot = look(session)
    if slot is None:
        raise gone(session.server)
    refuse_unfit(slot, session.server)
    return slot


def refuse_unfit(slot: Slot, server: Server) -> None:
    """Refuse a slot of another kind or database, and one whose changes are lost."""
    name = server.options.slot
    if slot.plugin != PLUGIN or not slot.is_here:
        what = f"for plugin {slot.plugin!r}" if slot.plugin else "for physical replication"
        place = f" in database {slot.database!r}" if slot.database else ""
        raise ConnectorError(
            f"replication slot {name!r} is there already, {what}{place}",
            where=server.where,
            todo=f"Name another one in `slot_name`, or drop it by `SELECT "
            f"pg_drop_replication_slot('{name}')` if nobody needs it.",
        )
    if slot.is_lost or slot.reason:
        why = f" ({slot.reason})" if slot.reason not in (None, "wal_removed") else ""
        raise SourceChangedError(
            f"the server has removed log that replication slot {name!r} still needed{why}",
            where=server.where,
            todo="Changes are lost. Raise `max_slot_wal_keep_size`, drop the slot by `SELECT "
            f"pg_drop_replication_slot('{name}')`, and read everything anew by "
            "`icestream run --start-over`.",
        )


def gone(server: Server) -> SourceChangedError:
    """Return the error for a slot that is not there any more."""
    return SourceChangedError(
        f"the database has no replication slot {server.options.slot!r} any more",
        where=server.where,
        todo="Changes since it was dropped are lost: read everything anew by "
        "`icestream run --start-over`.",
    )


def overtaken(server: Server, ours: int, confirmed: int) -> SourceChangedError:
    """Return the error for a slot that is further than we are."""
    name = server.options.slot
    return SourceChangedError(
        f"replication slot {name!r} has moved to {as_lsn(confirmed)}, and the tables hold changes "
        f"up to {as_lsn(ours)}",
        where=server.where,
        todo="The changes in between can't be read any more: read everything anew by `icestream "
        "run --start-over`. Either the pipeline goes on from a place that is older than its last "
        "commit, or another one reads from the slot: give each a `slot_name` of its own, since "
        "pipelines of the same database and tables share one otherwise.",
    )


def await_free(session: Session) -> None:
    """Wait until nobody reads the slot: an ended session of ours may take a moment to go.

    Raises:
        AttentionError: somebody else goes on reading it.
        TransientError: a session of ours does, which is still to end.
    """
    server = session.server
    deadline = time.monotonic() + PATIENCE_SECS
    while holders := session.rows(HOLDER_QUERY, [server.options.slot]):
        if time.monotonic() > deadline:
            pid, application, user = holders[0]
            raise _busy(server, pid, application, user)
        time.sleep(LOOK_AGAIN_SECS)


def _busy(server: Server, pid: int, application: str, user: str) -> AttentionError | TransientError:
    name = server.options.slot
    by = f"process {pid}, user {user!r}, application {application!r}"
    kind = TransientError if application == server.application else AttentionError
    return kind(
        f"replication slot {name!r} is read by another connection ({by})",
        where=server.where,
        todo="A slot has one reader: give each pipeline a `slot_name` of its own. End a session "
        f"that was left behind by `SELECT pg_terminate_backend({pid})`.",
    )


def advance(session: Session, place: int) -> None:
    """Let the server remove log before a place; a slot that is further already stays."""
    if usable(session).confirmed < place:
        exclusively(session, _advancing(session, place))


def advance_if_free(session: Session, place: int) -> bool:
    """Let the server remove log before a place; False if somebody reads the slot right now."""
    slot = usable(session)
    if slot.confirmed >= place:
        return True
    if slot.holder is not None:
        return False
    try:
        session.rows(_advancing(session, place), passing=psycopg.errors.ObjectInUse)
    except psycopg.errors.ObjectInUse:  # somebody was quicker
        return False
    return True


def _advancing(session: Session, place: int) -> sql.Composed:
    command = sql.SQL("SELECT pg_catalog.pg_replication_slot_advance({}, {}::pg_lsn)")
    named = sql.Literal(session.server.options.slot)
    return command.format(named, sql.Literal(as_lsn(place)))


def exclusively(session: Session, query: sql.Composed) -> tuple[Any, ...]:
    """Return the row of a query that uses the slot, once nobody else does."""
    while True:
        await_free(session)
        try:
            return session.rows(query, passing=psycopg.errors.ObjectInUse)[0]
        except psycopg.errors.ObjectInUse:  # somebody was quicker
            continue
