"""The driver's session that keeps one view of the database open while tables are read whole."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from psycopg import sql

from icestream.errors import ConnectorError, IcestreamError, TransientError

if TYPE_CHECKING:
    from icestream.sources.postgres_cdc.chunks import Range
    from icestream.sources.postgres_cdc.server import Server, Session

_log = logging.getLogger(__name__)

LOOK_AGAIN_SECS = 0.1
SAY_AFTER_SECS = 5.0

EXPORT = """
SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text,
       (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8
"""
NEWEST_ID = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8"
OLDEST_ID = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8"
LONGEST_RUNNING = """
SELECT pid, coalesce(usename::text, ''), coalesce(application_name, ''), coalesce(state, ''),
       extract(epoch FROM now() - xact_start)::int8
FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 1
"""


class Snapshot:
    """One view of the database, which other sessions can share while this one lives.

    Attributes:
        id: by which they share it.
        seen: which transactions it sees, as `pg_snapshot` writes it.
        lsn: where in the log it was taken: nothing that it sees comes later.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.id, self.seen, self.lsn = session.row(EXPORT)

    @classmethod
    def open(cls, server: Server) -> Snapshot:
        """Take a view that sees everything the slot and the publication do not tell of.

        What was open when they were made may be in neither, so its end is waited for.
        """
        session = server.connect()
        try:
            await_open_transactions(session)
            return cls(session)
        except BaseException:
            session.close()
            raise

    def is_alive(self) -> bool:
        """Tell whether other sessions can still share it."""
        if self._session.is_broken:
            return False
        try:
            self._session.row("SELECT 1")
        except IcestreamError:
            return False
        return True

    def close(self) -> None:
        """Let go of it."""
        self._session.close()


def await_open_transactions(session: Session) -> None:
    """Wait until every transaction that writes, and is open now, has ended."""
    (newest,) = session.row(NEWEST_ID)
    say_at = time.monotonic() + SAY_AFTER_SECS
    while session.row(OLDEST_ID)[0] < newest:
        if time.monotonic() > say_at:
            for pid, user, application, state, seconds in session.rows(LONGEST_RUNNING):
                _log.warning(
                    "the snapshot waits for a transaction that has been open for %d s: process %d, "
                    "user %s, application %s, %s",
                    *(seconds, pid, user, application, state),
                )
            say_at = time.monotonic() + 2 * SAY_AFTER_SECS
        time.sleep(LOOK_AGAIN_SECS)


def share(session: Session, snapshot: str, part: Range) -> None:
    """Begin a transaction in the view that the driver's session keeps open.

    A table with a key may be read in a newer one: its changes since come again from the log.
    """
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    session.rows(begin)
    try:
        session.rows(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except ConnectorError as exc:
        if not part.table.is_keyed:
            raise TransientError(
                f"the view of the database under which {part.table.label} is read is gone",
                where=session.server.where,
                todo="It is read again by the `restart` policy.",
            ) from exc
        session.rows("ROLLBACK")
        session.rows(begin)
