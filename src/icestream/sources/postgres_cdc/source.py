"""The PostgreSQL CDC source: a snapshot of each table first, then its changes from the log."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icestream.contracts.source import Source, SourceTraits, Split
from icestream.sources.postgres_cdc.changes import ChangesSplit, load_types, read_changes
from icestream.sources.postgres_cdc.discovery import list_objects, list_tables
from icestream.sources.postgres_cdc.driver import Driver
from icestream.sources.postgres_cdc.offset import PgOffset, PgTableState, parse_qualified_name
from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.sources.postgres_cdc.readiness import check_steps
from icestream.sources.postgres_cdc.server import PgServer
from icestream.sources.postgres_cdc.snapshot import TableRange, join_snapshot, read_range
from icestream.sources.postgres_cdc.snapshot_planner import (
    SnapshotPlanner,
    adopt_publication,
    balance,
    enqueue_snapshots,
    missing_tables,
    needs_reload,
    removed_tables,
    state_of,
)
from icestream.sources.postgres_cdc.tables import block_schema, find_sizes
from icestream.sources.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from icestream.contracts.faults import CheckStep
    from icestream.contracts.offset import Offset
    from icestream.contracts.source import SourceObject
    from icestream.sources.postgres_cdc.snapshot import RangeBounds
    from icestream.sources.postgres_cdc.snapshot_planner import RangeKey
    from icestream.sources.postgres_cdc.tables import PgTable
    from icestream.sources.postgres_cdc.timeline import Anchor


MAX_COUNTED_BYTES = 1 << 20
COUNT_INTERVAL_SECS = 1.0
COUNT_PAUSE_FACTOR = 20.0
BYTES_PER_ROW = 150.0
MIN_BYTES_PER_ROW = 10.0
# A batch of fewer rows is too small a sample.
MIN_SAMPLE_ROWS = 1000
PEEK_BYTES = 64 << 20
STRIDE_FACTOR = 4
MAX_STRIDE = 1 << 20


class Backlog:
    """Decides whether the log beyond an LSN is worth a batch, and how long the batch is.

    Args:
        heartbeat_secs: after this time, a batch without rows advances the slot, so that quiet
            tables do not make the server retain the log of busy ones.
    """

    def __init__(self, heartbeat_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat_secs = heartbeat_secs
        self._clock = clock
        self._bytes_per_row = BYTES_PER_ROW
        self._stride = 1
        self._idle_since: tuple[int, float] | None = None
        self._counted: tuple[int, int, int] | None = None  # start, end, changes
        self._count_at = float("-inf")

    def batch_end(self, driver: Driver, start: int) -> int:
        """Return where the log ends if a batch from `start` is worth it, else `start`."""
        now = self._clock()
        if self._idle_since is None or self._idle_since[0] != start:
            self._idle_since = (start, now)
        end = driver.end_of_log()
        if end <= start:
            return start
        if end - start >= MAX_COUNTED_BYTES:
            return end
        counted = self._count(driver, start, end)
        if counted is not None and counted[2]:
            return counted[1]
        return end if now - self._idle_since[1] >= self._heartbeat_secs else start

    def _count(self, driver: Driver, start: int, end: int) -> tuple[int, int, int] | None:
        """Return the latest count of changes from `start`, refreshed at most once a second."""
        is_known = self._counted is not None and self._counted[0] == start
        if is_known and self._counted is not None and self._counted[1] == end:
            return self._counted
        now = self._clock()
        if now >= self._count_at or not is_known:
            self._counted = (start, end, driver.count_changes(end))
            # The server reads from the oldest open transaction on, which may take long.
            took = self._clock() - now
            self._count_at = now + max(COUNT_INTERVAL_SECS, COUNT_PAUSE_FACTOR * took)
        return self._counted

    def estimate_rows(self, start: int, end: int) -> int:
        """Estimate the rows between two LSNs: at least one, unless the range is empty."""
        if end <= start:
            return 0
        if self._counted is not None and self._counted[:2] == (start, end):
            return max(self._counted[2], 1)
        return max(int((end - start) / self._bytes_per_row), 1)

    def limit(self, driver: Driver, start: int, end: int, max_rows: int) -> int:
        """Return an LSN about `max_rows` rows after `start`, at most `end`."""
        if self.estimate_rows(start, end) <= max_rows:
            return end
        step = max(int(max_rows * self._bytes_per_row), 1)
        if step >= MAX_COUNTED_BYTES and self._stride == 1:
            return min(start + step, end)
        # The log of other databases has no rows for us, and small steps through it would take
        # forever. So ask the server, which skips it, but not for all of it at once.
        horizon = min(start + max(step, PEEK_BYTES) * self._stride, end)
        lsn = driver.lsn_after(start, horizon, max_rows)
        return horizon if lsn is None else min(lsn, horizon)

    def learn(self, size: int, rows: int) -> None:
        """Record how many rows `size` bytes of the log held."""
        if size <= 0:
            return
        if rows == 0:
            # A long transaction, or another database's: each peek reads it from the start.
            if size >= MAX_COUNTED_BYTES:
                self._stride = min(self._stride * STRIDE_FACTOR, MAX_STRIDE)
            return
        self._stride = 1
        if rows >= MIN_SAMPLE_ROWS or size >= MAX_COUNTED_BYTES:
            sample = max(size / rows, MIN_BYTES_PER_ROW)
            self._bytes_per_row = min(sample, (self._bytes_per_row + sample) / 2)


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SnapshotSplit:
    """The snapshot rows that one task reads.

    Attributes:
        ranges: the rows.
        snapshot: id of the exported snapshot that all tasks share.
        version: its LSN.
        anchor: what the server must have.
    """

    ranges: tuple[TableRange, ...]
    snapshot: str
    version: int
    anchor: Anchor


class PostgresCdcSource(Source[PostgresCdcOptions]):
    """Tables of a PostgreSQL database and their changes, through a logical replication slot."""

    options_type = PostgresCdcOptions
    traits = SourceTraits(replayable=True, ordered=True, changes=True)

    def __init__(self, options: PostgresCdcOptions) -> None:
        super().__init__(options)
        self._reset()

    def required_packages(self) -> dict[str, str]:
        return {"psycopg": "icestream[postgres]"}

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._driver = Driver(self.options)
        self._backlog = Backlog(self.options.heartbeat_secs)
        self._refresh = uuid.uuid4().hex[:12]
        self._snapshot_states: dict[str, PgTableState] = {}
        self._planned: PgOffset | None = None
        self._bounds: dict[RangeKey, RangeBounds] = {}
        self._committed: PgOffset | None = None
        self._reload: set[str] = set()

    def identity(self) -> str:
        """Name the database and the slot; the server may move."""
        return f"postgres-cdc {self.options.database} {self.options.slot}"

    def initial(self) -> Offset:
        """Create the publication and the slot, and enqueue every table."""
        driver = self._driver
        lineage = driver.lineage()
        start = PgOffset(lineage.system, 0, timeline=lineage.timeline)
        tables = driver.tables(refresh=True)
        lsn = driver.ensure_slot() if self.options.follows else 0
        replicated = {
            name: state_of(table) for name, table in tables.items() if table.mode == "incremental"
        }
        if self.options.snapshot == "never":
            return replace(start, lsn=lsn, tables=replicated).to_json()
        return replace(start, lsn=lsn, pending=tuple(tables), refresh=self._refresh).to_json()

    def latest(self, current: Offset) -> Offset:
        """Return the offset at which every snapshot is complete and the log is read to its end."""
        offset, driver = self._on_current_timeline(self._parse_offset(current)), self._driver
        if self.options.follows:
            driver.check_slot(offset.lsn)
        target = self._target(offset)
        if self._has_snapshots(offset, target):
            driver.close_snapshot()
            if not self.options.follows:
                return current
            removed, offset = removed_tables(offset, target), replace(offset, tables=target.tables)
            if removed:
                return offset.advance_to(self._end_of_log(offset)).to_json()
            end = self._backlog.batch_end(driver, offset.lsn)
            return current if end == offset.lsn else offset.advance_to(end).to_json()
        driver.snapshot()
        return target.advance_to(self._end_of_log(offset)).to_json()

    def _on_current_timeline(self, offset: PgOffset) -> PgOffset:
        """Return the offset on the server's timeline; refuse a server that lost changes."""
        self._driver.require_anchor(offset.anchor)
        timeline, saved = self._driver.lineage().timeline, self._driver.saved.lsn
        if offset.timeline in (0, timeline):
            saved = max(saved, offset.confirmed)
        return replace(offset, timeline=timeline, confirmed=saved)

    def _parse_offset(self, position: Offset) -> PgOffset:
        """Read an offset, without the tables that are to be reloaded."""
        offset = PgOffset.from_json(position)
        cursor = offset.cursor
        # A table that is queued, or was read again since, needs no further reload.
        self._reload &= {*offset.tables, *offset.unconfirmed, *([cursor.table] if cursor else [])}
        if not self._reload:
            return offset
        return replace(
            offset,
            tables={
                name: state for name, state in offset.tables.items() if name not in self._reload
            },
            unconfirmed={
                name: state
                for name, state in offset.unconfirmed.items()
                if name not in self._reload
            },
            cursor=None if cursor is not None and cursor.table in self._reload else cursor,
        )

    def _end_of_log(self, offset: PgOffset) -> int:
        return max(self._driver.end_of_log(), offset.lsn) if self.options.follows else offset.lsn

    def _target(self, offset: PgOffset) -> PgOffset:
        """Return the offset at which the snapshot of every existing table is complete."""
        tables = self._driver.tables()
        kept = {
            name: adopt_publication(state, tables[name])
            for name, state in {**offset.tables, **offset.unconfirmed}.items()
            if name in tables and self.options.mode_of(*parse_qualified_name(name)) == "incremental"
        }
        added = {
            name: state_of(table)
            for name, table in tables.items()
            if table.mode == "incremental" and (name not in kept or needs_reload(kept[name], table))
        }
        refreshes = any(table.mode == "full_refresh" for table in tables.values())
        needs_refresh = refreshes or bool(self._reload)
        refresh = self._refresh if needs_refresh and self._takes_snapshots else offset.refresh
        return replace(
            offset,
            tables={**kept, **added},
            pending=(),
            cursor=None,
            unconfirmed={},
            refresh=refresh,
        )

    @property
    def _takes_snapshots(self) -> bool:
        return self.options.snapshot != "never"

    def _has_snapshots(self, offset: PgOffset, target: PgOffset) -> bool:
        return not (
            offset.pending
            or offset.unconfirmed
            or missing_tables(offset, target, self._driver.tables())
            or offset.refresh != target.refresh
        )

    def rows_between(self, start: Offset, end: Offset) -> int:
        """Estimate the rows: from the server's statistics for tables, from bytes for the log."""
        if start == end:
            return 0
        begin, target = self._parse_offset(start), PgOffset.from_json(end)
        tables = self._driver.tables()
        queued = {*begin.pending, *missing_tables(begin, target, tables)} - set(target.pending)
        rows = sum(max(tables[name].rows, 1) if name in tables else 1 for name in queued)
        rows += (
            bool(begin.unconfirmed)
            + (begin.refresh != target.refresh)
            + (begin.cursor != target.cursor)
        )
        rows += bool(removed_tables(begin, target))
        return rows + self._backlog.estimate_rows(begin.lsn, target.lsn)

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        """Return the end of the next batch: snapshots are completed before the log is read."""
        offset, target, driver = self._parse_offset(start), PgOffset.from_json(end), self._driver
        offset = replace(offset, timeline=target.timeline, confirmed=target.confirmed)
        if not self._has_snapshots(offset, target):
            tables = driver.tables()
            queued = enqueue_snapshots(
                offset, target, tables, self._snapshot_states, takes_snapshots=self._takes_snapshots
            )
            if queued != offset:
                return queued.to_json()
            self._planned = self._planner(tables).next_offset(offset, driver.snapshot(), max_rows)
            return self._planned.to_json()
        lsn = self._backlog.limit(driver, offset.lsn, target.lsn, max_rows)
        kept = {
            name: replace(state, publication=state.publication or target.tables[name].publication)
            for name, state in offset.tables.items()
            if name in target.tables
        }
        return replace(offset, tables=kept).advance_to(lsn).to_json()

    def _planner(self, tables: Mapping[str, PgTable]) -> SnapshotPlanner:
        chunk_rows = self.options.snapshot_chunk_rows
        return SnapshotPlanner(self._driver.session, tables, chunk_rows, self._bounds)

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        """Split snapshots for parallel tasks; one task reads the log."""
        begin, stop = PgOffset.from_json(start), PgOffset.from_json(end)
        self._driver.require_anchor(stop.anchor)
        if begin.pending:
            return self._snapshot_splits(begin, stop, slots)
        if begin.lsn == stop.lsn:
            return []
        self._driver.close_snapshot()
        tables = {
            parse_qualified_name(name): state.snapshot for name, state in begin.tables.items()
        }
        identities = {
            parse_qualified_name(name): state.identity for name, state in begin.tables.items()
        }
        changes = ChangesSplit(begin.lsn, stop.lsn, tables, identities, stop.anchor)
        return [Split(changes, self._backlog.estimate_rows(begin.lsn, stop.lsn))]

    def _snapshot_splits(self, begin: PgOffset, stop: PgOffset, slots: int) -> list[Split]:
        tables = self._driver.tables(refresh=True)
        parts = list(self._planner(tables).ranges(begin, stop))
        if not parts:
            return []
        snapshot = self._driver.snapshot([part.table for part, _ in parts])
        # On a replay, the tables may already hold the batch, read from another snapshot.
        is_replay, self._planned = stop != self._planned, None
        for table in {part.table.qualified_name: part.table for part, _ in parts}.values():
            self._snapshot_states.pop(table.qualified_name, None)
            if not table.is_keyed and not is_replay:
                self._snapshot_states[table.qualified_name] = state_of(table, snapshot)
        chunk_rows = self.options.snapshot_chunk_rows
        return [
            Split(
                SnapshotSplit(tuple(each.ranges), snapshot.id, snapshot.lsn, stop.anchor), each.rows
            )
            for each in balance(parts, slots, chunk_rows)
        ]

    def may_read(self, table: tuple[str, ...]) -> bool | None:
        return len(table) == 2 and self.options.mode_of(*table) is not None

    def named_tables(self) -> Sequence[tuple[str, ...]]:
        return self.options.named_tables

    def block_schemas(self, splits: Sequence[Split]) -> Sequence[pa.Schema]:
        """Return the current columns of the tables; the log may have older ones."""
        parts: dict[str, tuple[TableRange, int]] = {}
        for split in splits:
            if isinstance(split.what, ChangesSplit):
                return self._current_schemas(split.what)
            for part in split.what.ranges:
                parts[part.table.qualified_name] = (part, split.what.version)
        firsts = [part.table for part, _ in parts.values() if part.first]
        sizes = find_sizes(self._driver.session, firsts)
        return [
            block_schema(
                replace(part.table.relation, version=version),
                self._driver.types,
                snapshot=True,
                first=part.first,
                size=sizes.get(part.table.relation.id),
            )
            for part, version in parts.values()
        ]

    def list_tables(self) -> Sequence[pa.Schema]:
        """Return the tables that are published, and those that a run would publish."""
        return list_tables(self._driver)

    def list_objects(self) -> Sequence[SourceObject]:
        """Return the publications and the slot."""
        return list_objects(self._driver)

    def _current_schemas(self, changes: ChangesSplit) -> Sequence[pa.Schema]:
        # Taken before the lookup: a schema change after it has a later LSN.
        version = self._driver.end_of_log()
        return [
            block_schema(replace(table.relation, version=version), self._driver.types)
            for table in self._driver.tables(refresh=True).values()
            if table.names in changes.tables and changes.follows(table.relation)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield blocks of one table each. Runs in a task."""
        server = PgServer(self.options, split.what.anchor)
        if isinstance(split.what, ChangesSplit):
            yield from read_changes(server, split.what)
            return
        types = TypeCatalog(unrepresentable=self.options.unrepresentable)
        with server.connect() as session:
            for part in split.what.ranges:
                join_snapshot(session, split.what.snapshot, part)
                load_types(session, types, part.table.relation.columns)
                yield from read_range(session, types, part)
                session.rows("COMMIT")

    def first_rows(self, max_rows: int, tables: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the first rows of each table by key, read by a plain query.

        Neither the slot nor the publication is created. If there is a publication, its columns
        and row filters apply.
        """
        server = PgServer(self.options)
        types = TypeCatalog(unrepresentable=self.options.unrepresentable)
        with server.connect() as session:
            for table in self._driver.tables_to_preview():
                if tables and not {table.qualified_name, ".".join(table.names)} & set(tables):
                    continue
                session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                load_types(session, types, table.relation.columns)
                yield from read_range(session, types, TableRange(table, limit=max_rows))
                session.rows("COMMIT")

    def loaded_tables(self, position: Offset) -> frozenset[tuple[str, ...]] | None:
        """Return the tables whose snapshot has begun and that are still configured."""
        if not self._takes_snapshots:
            return None  # a table without changes has no rows yet
        offset = PgOffset.from_json(position)
        started = () if offset.cursor is None else (offset.cursor.table,)
        loaded = map(parse_qualified_name, (*offset.tables, *offset.unconfirmed, *started))
        return frozenset(names for names in loaded if self.options.mode_of(*names) is not None)

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        """Enqueue another snapshot of some tables."""
        self._reload |= {
            name for name in self._driver.tables() if parse_qualified_name(name) in tables
        }
        # Without a new id, the target of a quiet database might equal the previous offset.
        self._refresh = uuid.uuid4().hex[:12]

    def committed(self, position: Offset, rows: int) -> None:
        """Let the server remove the log before an offset."""
        offset = PgOffset.from_json(position)
        if self.options.follows:
            self._driver.require_anchor(offset.anchor)
            before, self._committed = self._committed, offset
            if before is not None and not (before.pending or before.unconfirmed):
                self._backlog.learn(offset.lsn - before.lsn, rows)
            self._driver.advance_slot(offset.lsn)

    def measure(self) -> Mapping[str, float]:
        """Return how far the slot is behind the log: `slot_lag_bytes`, `slot_lag_seconds`."""
        return self._driver.lag.measure()

    def has_end(self) -> bool:
        """Tell whether the source takes snapshots only."""
        return self.options.snapshot == "only"

    def ends(self, position: Offset) -> bool:
        """Tell whether all snapshots are complete and nothing follows."""
        offset = PgOffset.from_json(position)
        return self.has_end() and not offset.pending and not offset.unconfirmed

    def check(self) -> Iterator[CheckStep]:
        """Check that the database can be replicated; create nothing."""
        return check_steps(self._driver)

    def close(self) -> None:
        """Close the driver's sessions. The slot stays for the next start."""
        self._driver.close()
