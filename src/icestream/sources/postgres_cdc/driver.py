"""What the driver knows of the database: its tables, its publication, its slot, its log's end."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from psycopg import sql

from icestream.errors import ConnectorError, RefusedError
from icestream.sources.postgres_cdc import publication, slot
from icestream.sources.postgres_cdc.changes import load_types, peek
from icestream.sources.postgres_cdc.server import Server
from icestream.sources.postgres_cdc.snapshot import Snapshot
from icestream.sources.postgres_cdc.tables import by_label, find_tables
from icestream.sources.postgres_cdc.timeline import lineage_of, verify
from icestream.sources.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.tables import Found, Table
    from icestream.sources.postgres_cdc.timeline import Anchor, Lineage


KEPT = 4096


class Lag:
    """Remembers when the log ended where, to tell the age of what the slot still holds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self._confirmed: int | None = None

    def log_ends(self, lsn: int) -> None:
        """Take note of where the log ends now."""
        with self._lock:
            if not self._ends or lsn > self._ends[-1][1]:
                self._ends.append((self._clock(), lsn))

    def slot_stands(self, lsn: int) -> None:
        """Take note of where the slot stands now."""
        with self._lock:
            self._confirmed = max(lsn, self._confirmed or 0)
            while self._ends and self._ends[0][1] <= self._confirmed and len(self._ends) > 1:
                self._ends.popleft()

    def measure(self) -> dict[str, float]:
        """Return the lag, nothing before the first look."""
        with self._lock:
            if self._confirmed is None or not self._ends:
                return {}
            behind = max(self._ends[-1][1] - self._confirmed, 0)
            oldest = next((at for at, end in self._ends if end > self._confirmed), None)
            seconds = 0.0 if oldest is None else self._clock() - oldest
            return {"slot_lag_bytes": float(behind), "slot_lag_seconds": seconds}


_log = logging.getLogger(__name__)

LOOK_FOR_TABLES_SECS = 10.0
LOOK_AT_SLOT_SECS = 3.0

END_OF_LOG = "SELECT (pg_catalog.pg_current_wal_flush_lsn() - '0/0')::int8"
# Insert, update, delete and truncate; the rest only tells where transactions begin and end.
COUNT_CHANGES = "count(*) FILTER (WHERE get_byte(data, 0) IN (73, 85, 68, 84))"
# One row may be a transaction of its own, with a beginning and an end.
MESSAGES_A_ROW = 4
LOOKED_AT = "lsn - '0/0' AS place, get_byte(data, 0) AS kind"
# A slot that is still to be moved tells what is done already, too. A change has the place where it
# begins, and the end of a transaction the place behind it.
PLACE_AFTER = sql.SQL("""
WITH told AS MATERIALIZED ({peeked}), ahead AS (
    SELECT place, kind = 67 AND place > {start} AS is_end,
           count(*) FILTER (WHERE kind IN (73, 85, 68, 84)) OVER (ROWS UNBOUNDED PRECEDING) AS done
    FROM told WHERE place >= {start}
)
SELECT (SELECT count(*) FROM told), coalesce(max(done), 0),
       coalesce(max(place) FILTER (WHERE is_end AND done <= {rows}),
                min(place) FILTER (WHERE is_end))::int8
FROM ahead
""")


class Driver:
    """The driver's sessions, and what was last heard from the server.

    Args:
        options: which database.
    """

    def __init__(self, options: PostgresCdcOptions) -> None:
        self.options = options
        self.server = Server(options)
        self.types = TypeCatalog(unrepresentable=options.unrepresentable)
        self.lag = Lag()
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._snapshot: Snapshot | None = None
        self._tables: Mapping[str, Table] = {}
        self._tables_at = float("-inf")
        self._slot_at = float("-inf")
        self._advanced = 0
        self.saved = slot.SavedPlace()
        self._sees_checkpoints = True
        self._left_out: set[str] = set()

    @property
    def session(self) -> Session:
        """A session for questions; a new one if the last was cut off."""
        with self._lock:
            if self._session is None or self._session.is_broken:
                self._session = self.server.connect()
                # It may be a server that was restarted from older files.
                self._slot_at, self.saved = float("-inf"), slot.SavedPlace()
            return self._session

    def lineage(self) -> Lineage:
        """Return which log the server writes, as it was when the session was opened."""
        session = self.session
        if session.lineage is None:
            session.lineage = lineage_of(session)
        return session.lineage

    def hold_to(self, anchor: Anchor) -> None:
        """Refuse a server that does not have the log of an offset, now and at each connection.

        Raises:
            SourceChangedError: it is another server, or has lost changes that were read.
        """
        before, self.server.anchor = self.server.anchor, anchor
        session = self.session
        is_same = before is not None and (before.system, before.timeline) == (
            anchor.system,
            anchor.timeline,
        )
        if not is_same:
            verify(session, anchor)

    def end_of_log(self) -> int:
        """Return where the log ends that is safely on the server's disk."""
        end = int(self.session.row(END_OF_LOG)[0])
        self.lag.log_ends(end)
        return end

    def found(self) -> Mapping[tuple[str, str], Found]:
        """Return the tables that the options ask for; one that is dropped later is not missed.

        Raises:
            ConnectorError: there is none, or one that is named is not there.
        """
        found = find_tables(self.session, self.options)
        if self._tables:
            return found
        lacking = [name for name in self.options.named_tables if name not in found]
        if lacking:
            raise ConnectorError(
                f"the database has no table {', '.join('.'.join(name) for name in lacking)}",
                where=self.server.where,
                todo="Look at the spelling, and whether the user may see it "
                "(`GRANT USAGE ON SCHEMA ...`, `GRANT SELECT ON ...`).",
            )
        if not found:
            patterns = ", ".join(".".join(each) for each in self.options.patterns)
            raise ConnectorError(
                f"no table of the database is called {patterns}",
                where=self.server.where,
                todo="Look at `tables`; a pattern is written as `SCHEMA.NAME`.",
            )
        return found

    def tables(self, *, anew: bool = False) -> Mapping[str, Table]:
        """Return the tables to read by their labels, as last looked at; new ones are published.

        Args:
            anew: whether to look now in any case.
        """
        if anew or time.monotonic() - self._tables_at >= LOOK_FOR_TABLES_SECS:
            found = self.found()
            if self.options.follows:
                self._publish(found)
            tables = by_label(self.published(found))
            if not _identities(tables) <= _identities(self._tables):
                # A view that is older than a table's publication does not see what that leaves out.
                self.close_snapshot()
            self._tables = tables
            for table in self._tables.values():
                load_types(self.session, self.types, table.relation.columns)
            self._tables_at = time.monotonic()
        return self._tables

    def published(self, found: Mapping[tuple[str, str], Found]) -> list[Table]:
        """Return those tables that can be read, as they are published."""
        whole = [
            each.table
            for each in found.values()
            if not each.is_part and (each.table.mode == "full_refresh" or not self.options.follows)
        ]
        if not self.options.follows:
            return whole
        members = publication.members(self.session, self.options)
        followed = publication.followed(found, members)
        return [*(table for table in followed if table.mode == "incremental"), *whole]

    def _publish(self, found: Mapping[tuple[str, str], Found]) -> None:
        try:
            left_out = publication.make_ready(self.session, self.options, found)
        except RefusedError as exc:
            if not self._tables:
                raise
            left_out = [exc]
        # A table that somebody else made is no reason to stop the others.
        for refused in left_out:
            if refused.what not in self._left_out:
                _log.warning("a table is not followed: %s", refused)
                self._left_out.add(refused.what)

    def make_slot(self) -> int:
        """Return where to begin: at the slot that is there, or at a new one."""
        found = slot.look(self.session)
        if found is None:
            return self._begun(slot.create(self.session))
        slot.refuse_unfit(found, self.server)
        slot.await_free(self.session)
        if self.options.snapshot == "never":
            return self._begun(found.confirmed)
        # The tables are read as they are now, so nothing older is needed.
        slot.advance(self.session, self.end_of_log())
        return self._begun(slot.usable(self.session).confirmed)

    def _begun(self, lsn: int) -> int:
        self._advanced = lsn
        return lsn

    def watch_slot(self, current: int) -> None:
        """Look at the slot every few seconds.

        Raises:
            SourceChangedError: it is gone, lost, or moved by somebody else.
        """
        if time.monotonic() - self._slot_at < LOOK_AT_SLOT_SECS:
            return
        found = slot.usable(self.session)
        self._note_checkpoint(found.confirmed)
        self.lag.slot_stands(found.confirmed)
        ours = max(current, self._advanced)
        if found.confirmed > ours:
            raise slot.overtaken(self.server, ours, found.confirmed)
        if found.confirmed < self._advanced:
            self.advance(self._advanced)
        self._slot_at = time.monotonic()

    def _note_checkpoint(self, confirmed: int) -> None:
        """Note which position of the slot a checkpoint saved, if the user may ask for it."""
        if not self._sees_checkpoints:
            return
        try:
            rows = self.session.rows(slot.CHECKPOINT_QUERY, passing=slot.NOT_ALLOWED)
        except slot.NOT_ALLOWED as exc:
            self._sees_checkpoints = False
            _log.warning(
                "%s: pg_control_checkpoint() can't be called (%s): a restore from a backup of the "
                "data files may not be recognised; GRANT EXECUTE ON FUNCTION "
                "pg_control_checkpoint() to the user",
                self.server.where,
                exc.diag.message_primary,
            )
            return
        redo, log_end = rows[0]
        self.saved.see(confirmed, log_end, redo)

    def advance(self, lsn: int) -> None:
        """Let the server remove log before a place: soon, if a task reads the slot right now."""
        with self._lock:
            self._advanced = max(self._advanced, lsn)
            if slot.advance_if_free(self.session, lsn):
                self.lag.slot_stands(lsn)

    def count_changes(self, end: int) -> int:
        """Return how many changes the slot tells up to a place."""
        with self._lock:
            query = peek(self.session, end, COUNT_CHANGES)
            return int(slot.exclusively(self.session, query)[0])

    def place_after(self, start: int, end: int, rows: int) -> int | None:
        """Return the end of the last transaction by which the slot tells at most so many changes.

        At least one transaction, whatever its size; None if all up to `end` are no more.
        """
        most = MESSAGES_A_ROW * rows
        while True:
            with self._lock:
                query = peek(self.session, end, LOOKED_AT, most)
                told, changes, last = slot.exclusively(
                    self.session, PLACE_AFTER.format(peeked=query, start=start, rows=rows)
                )
            if told < most:
                return None if changes <= rows else int(last)
            if changes >= rows:
                return int(last)
            most *= MESSAGES_A_ROW  # many of them were of before `start`, or tell of no row

    def snapshot(self, tables: Iterable[Table] = ()) -> Snapshot:
        """Return the view of the database that is open, or a new one if it hides tables."""
        found = self._snapshot
        if found is None or not found.is_alive() or not found.shows(tables):
            self.close_snapshot()
            found = self._snapshot = Snapshot.open(self.server)
        return found

    def close_snapshot(self) -> None:
        """Let go of the view of the database, once nothing is read whole any more."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def close(self) -> None:
        """End the sessions. The slot stays, and holds what comes until the next start."""
        self.close_snapshot()
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def _identities(tables: Mapping[str, Table]) -> set[tuple[str, str]]:
    return {
        (label, f"{table.identity} {table.newest_default} {table.publication}")
        for label, table in tables.items()
    }
