"""The Spark driver's view of the database: tables, publication, slot and end of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from icestream.errors import ConnectorError, RefusedError
from icestream.sources.postgres_cdc import publication, slot
from icestream.sources.postgres_cdc.changes import load_types, peek_query
from icestream.sources.postgres_cdc.server import PgServer
from icestream.sources.postgres_cdc.snapshot import ExportedSnapshot
from icestream.sources.postgres_cdc.tables import by_qualified_name, find_tables
from icestream.sources.postgres_cdc.timeline import read_lineage, verify_anchor
from icestream.sources.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.server import PgSession
    from icestream.sources.postgres_cdc.tables import CatalogTable, PgTable
    from icestream.sources.postgres_cdc.timeline import Anchor, Lineage


MAX_SAMPLES = 4096


class ReplicationLag:
    """Records where the log ended when, to measure the age of what the slot still holds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ends: deque[tuple[float, int]] = deque(maxlen=MAX_SAMPLES)
        self._confirmed: int | None = None

    def record_log_end(self, lsn: int) -> None:
        """Record the current end of the log."""
        with self._lock:
            if not self._ends or lsn > self._ends[-1][1]:
                self._ends.append((self._clock(), lsn))

    def record_confirmed(self, lsn: int) -> None:
        """Record the slot's confirmed LSN."""
        with self._lock:
            self._confirmed = max(lsn, self._confirmed or 0)
            while self._ends and self._ends[0][1] <= self._confirmed and len(self._ends) > 1:
                self._ends.popleft()

    def measure(self) -> dict[str, float]:
        """Return the lag; empty before the first measurement."""
        with self._lock:
            if self._confirmed is None or not self._ends:
                return {}
            behind = max(self._ends[-1][1] - self._confirmed, 0)
            oldest = next((at for at, end in self._ends if end > self._confirmed), None)
            seconds = 0.0 if oldest is None else self._clock() - oldest
            return {"slot_lag_bytes": float(behind), "slot_lag_seconds": seconds}


_log = logging.getLogger(__name__)

TABLES_REFRESH_SECS = 10.0
SLOT_CHECK_SECS = 3.0

END_OF_LOG = "SELECT (pg_catalog.pg_current_wal_flush_lsn() - '0/0')::int8"
# Insert, update, delete and truncate; the other messages mark transactions and schemas.
COUNT_CHANGES = "count(*) FILTER (WHERE get_byte(data, 0) IN (73, 85, 68, 84))"
# A row may be a transaction of its own, with a Begin and a Commit.
MESSAGES_PER_ROW = 4
PEEK_COLUMNS = "lsn - '0/0' AS lsn, get_byte(data, 0) AS kind"
# A slot that is not advanced yet also returns changes that are done. A change has the LSN where it
# starts, a Commit the LSN after it.
LSN_AFTER_QUERY = """
WITH messages AS MATERIALIZED ({peeked}), ahead AS (
    SELECT lsn, kind = 67 AND lsn > {start} AS is_end,
           count(*) FILTER (WHERE kind IN (73, 85, 68, 84)) OVER (ROWS UNBOUNDED PRECEDING) AS done
    FROM messages WHERE lsn >= {start}
)
SELECT (SELECT count(*) FROM messages), coalesce(max(done), 0),
       coalesce(max(lsn) FILTER (WHERE is_end AND done <= {rows}),
                min(lsn) FILTER (WHERE is_end))::int8
FROM ahead
"""


class Driver:
    """The driver's sessions, and what it last learned from the server.

    Args:
        options: of the source.
    """

    def __init__(self, options: PostgresCdcOptions) -> None:
        self.options = options
        self.server = PgServer(options)
        self.types = TypeCatalog(unrepresentable=options.unrepresentable)
        self.lag = ReplicationLag()
        self._lock = threading.RLock()
        self._session: PgSession | None = None
        self._snapshot: ExportedSnapshot | None = None
        self._tables: Mapping[str, PgTable] = {}
        self._tables_at = float("-inf")
        self._slot_at = float("-inf")
        self._advanced = 0
        self.saved = slot.SavedLsn()
        self._can_read_checkpoints = True
        self._warned: set[str] = set()

    @property
    def session(self) -> PgSession:
        """A session for queries; reconnects if the last one broke."""
        with self._lock:
            if self._session is None or self._session.is_broken:
                self._session = self.server.connect()
                # The server may have been restored from older files.
                self._slot_at, self.saved = float("-inf"), slot.SavedLsn()
            return self._session

    def lineage(self) -> Lineage:
        """Return the lineage of the server's log when the session was opened."""
        session = self.session
        if session.lineage is None:
            session.lineage = read_lineage(session)
        return session.lineage

    def require_anchor(self, anchor: Anchor) -> None:
        """Refuse a server without the log of an offset, now and at each connection.

        Raises:
            SourceChangedError: it is another server, or lost changes that were read.
        """
        before, self.server.anchor = self.server.anchor, anchor
        session = self.session
        is_same = before is not None and (before.system, before.timeline) == (
            anchor.system,
            anchor.timeline,
        )
        if not is_same:
            verify_anchor(session, anchor)

    def end_of_log(self) -> int:
        """Return the end of the log that is flushed to disk."""
        end = int(self.session.row(END_OF_LOG)[0])
        self.lag.record_log_end(end)
        return end

    def find_tables(self) -> Mapping[tuple[str, str], CatalogTable]:
        """Return the configured tables. Tables may be missing once the first lookup succeeded.

        Raises:
            ConnectorError: there are none, or a named table does not exist.
        """
        found = find_tables(self.session, self.options)
        if self._tables:
            return found
        missing = [name for name in self.options.named_tables if name not in found]
        if missing:
            raise ConnectorError(
                f"the database has no table {', '.join('.'.join(name) for name in missing)}",
                where=self.server.where,
                todo="Check the spelling and the user's permissions "
                "(`GRANT USAGE ON SCHEMA ...`, `GRANT SELECT ON ...`).",
            )
        if not found:
            patterns = ", ".join(".".join(each) for each in self.options.patterns)
            raise ConnectorError(
                f"no table of the database matches {patterns}",
                where=self.server.where,
                todo="Check `tables`; the form of a pattern is `SCHEMA.NAME`.",
            )
        return found

    def tables(self, *, refresh: bool = False) -> Mapping[str, PgTable]:
        """Return the tables to read by qualified name, and publish new ones.

        Args:
            refresh: whether to query the catalog even if the last lookup is recent.
        """
        if refresh or time.monotonic() - self._tables_at >= TABLES_REFRESH_SECS:
            found = self.find_tables()
            if self.options.follows:
                self._publish(found)
            tables = by_qualified_name(self.readable_tables(found))
            if not _identities(tables) <= _identities(self._tables):
                # A snapshot older than a table's publication misses the changes between the two.
                self.close_snapshot()
            self._tables = tables
            for table in self._tables.values():
                load_types(self.session, self.types, table.relation.columns)
            self._tables_at = time.monotonic()
        return self._tables

    def readable_tables(self, found: Mapping[tuple[str, str], CatalogTable]) -> list[PgTable]:
        """Return the tables that can be read, as published."""
        unpublished = [
            each.table
            for each in found.values()
            if not each.is_partition
            and (each.table.mode == "full_refresh" or not self.options.follows)
        ]
        if not self.options.follows:
            return unpublished
        members = publication.find_members(self.session, self.options)
        published = publication.published_tables(found, members)
        return [*(table for table in published if table.mode == "incremental"), *unpublished]

    def tables_to_preview(self) -> list[PgTable]:
        """Return the tables that a run would read, as far as they are published; creates none."""
        found = self.find_tables()
        tables = {each.table.names: each.table for each in found.values() if not each.is_partition}
        if not self.options.follows:
            return list(tables.values())
        state = publication.find_usable(self.session, self.options)
        published = {} if state is None else self.readable_tables(found)
        # A run adds what is missing to a publication of its own.
        adopted = tables if state is None or state.is_ours else {}
        return list({**adopted, **{table.names: table for table in published}}.values())

    def _publish(self, found: Mapping[tuple[str, str], CatalogTable]) -> None:
        try:
            left_out = publication.ensure(self.session, self.options, found)
        except RefusedError as exc:
            if not self._tables:
                raise
            left_out = [exc]
        # One table that we may not publish must not stop the others.
        for refused in left_out:
            if refused.what not in self._warned:
                _log.warning("a table is not replicated: %s", refused)
                self._warned.add(refused.what)

    def ensure_slot(self) -> int:
        """Return the LSN to start at: that of an existing slot, or of a new one."""
        found = slot.find(self.session)
        if found is None:
            return self._started_at(slot.create(self.session))
        slot.refuse_unusable(found, self.server)
        slot.await_free(self.session)
        if self.options.snapshot == "never":
            return self._started_at(found.confirmed)
        # The snapshots include everything older.
        slot.advance(self.session, self.end_of_log())
        return self._started_at(slot.find_usable(self.session).confirmed)

    def _started_at(self, lsn: int) -> int:
        self._advanced = lsn
        return lsn

    def check_slot(self, current: int) -> None:
        """Check the slot every few seconds.

        Raises:
            SourceChangedError: it was dropped, invalidated, or advanced by someone else.
        """
        if time.monotonic() - self._slot_at < SLOT_CHECK_SECS:
            return
        found = slot.find_usable(self.session)
        self._record_checkpoint(found.confirmed)
        self.lag.record_confirmed(found.confirmed)
        ours = max(current, self._advanced)
        if found.confirmed > ours:
            raise slot.moved_error(self.server, ours, found.confirmed)
        if found.confirmed < self._advanced:
            self.advance_slot(self._advanced)
        self._slot_at = time.monotonic()

    def _record_checkpoint(self, confirmed: int) -> None:
        """Record which LSN of the slot a checkpoint has saved, if the user may query it."""
        from psycopg.errors import FeatureNotSupported, InsufficientPrivilege

        if not self._can_read_checkpoints:
            return
        # Some managed services do not allow it.
        not_allowed = (InsufficientPrivilege, FeatureNotSupported)
        try:
            rows = self.session.rows(slot.CHECKPOINT_QUERY, reraise=not_allowed)
        except not_allowed as exc:
            self._can_read_checkpoints = False
            _log.warning(
                "%s: cannot call pg_control_checkpoint() (%s): a restore from a backup of the data "
                "files may go unnoticed; GRANT EXECUTE ON FUNCTION pg_control_checkpoint() to the "
                "user",
                self.server.where,
                exc.diag.message_primary,
            )
            return
        redo, log_end = rows[0]
        self.saved.record(confirmed, log_end, redo)

    def advance_slot(self, lsn: int) -> None:
        """Let the server remove the log before `lsn`; deferred while a task reads the slot."""
        with self._lock:
            self._advanced = max(self._advanced, lsn)
            if slot.advance_if_free(self.session, lsn):
                self.lag.record_confirmed(lsn)

    def count_changes(self, end: int) -> int:
        """Return how many changes the slot has up to an LSN."""
        with self._lock:
            query = peek_query(self.session, end, COUNT_CHANGES)
            return int(slot.run_exclusively(self.session, query)[0])

    def lsn_after(self, start: int, end: int, rows: int) -> int | None:
        """Return the end of the last transaction with which the slot has at most `rows` changes.

        At least one transaction, whatever its size; None if there are no more up to `end`.
        """
        from psycopg import sql

        template = sql.SQL(LSN_AFTER_QUERY)
        most = MESSAGES_PER_ROW * rows
        while True:
            with self._lock:
                query = peek_query(self.session, end, PEEK_COLUMNS, most)
                messages, changes, last = slot.run_exclusively(
                    self.session, template.format(peeked=query, start=start, rows=rows)
                )
            if messages < most:
                return None if changes <= rows else int(last)
            if changes >= rows:
                return int(last)
            most *= MESSAGES_PER_ROW  # many came before `start`, or are not rows

    def snapshot(self, tables: Iterable[PgTable] = ()) -> ExportedSnapshot:
        """Return the open snapshot, or a new one if some tables are not visible in it."""
        found = self._snapshot
        if found is None or not found.is_alive() or not found.sees(tables):
            self.close_snapshot()
            found = self._snapshot = ExportedSnapshot.open(self.server)
        return found

    def close_snapshot(self) -> None:
        """Close the snapshot, once no table needs it."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def close(self) -> None:
        """Close the sessions. The slot stays, and retains the log until the next start."""
        self.close_snapshot()
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None


def _identities(tables: Mapping[str, PgTable]) -> set[tuple[str, str]]:
    return {
        (label, f"{table.identity} {table.newest_default} {table.publication}")
        for label, table in tables.items()
    }
