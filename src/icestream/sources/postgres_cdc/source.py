"""The PostgreSQL change source: tables read whole first, then their changes from the log."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icestream.contracts.source import Source, SourceTraits, Split
from icestream.sources.postgres_cdc.batch_planning import (
    WholeReads,
    dealt,
    following,
    gone,
    is_stale,
    lacking,
    note_of,
    put_in_line,
)
from icestream.sources.postgres_cdc.changes import Changes, load_types, read_changes
from icestream.sources.postgres_cdc.driver import Driver
from icestream.sources.postgres_cdc.offset import Note, Place, names_of
from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.sources.postgres_cdc.readiness import readiness
from icestream.sources.postgres_cdc.server import Server
from icestream.sources.postgres_cdc.snapshot import Range, read_range, share
from icestream.sources.postgres_cdc.tables import block_columns
from icestream.sources.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from icestream.contracts.faults import CheckStep
    from icestream.contracts.offset import Offset
    from icestream.sources.postgres_cdc.batch_planning import Asked
    from icestream.sources.postgres_cdc.snapshot import Bounds
    from icestream.sources.postgres_cdc.tables import Table
    from icestream.sources.postgres_cdc.timeline import Anchor


COUNTED_BYTES = 1 << 20
COUNT_SECS = 1.0
COUNT_SHARE = 20.0
BYTES_A_ROW = 150.0
LEAST_BYTES_A_ROW = 10.0
# A batch that brought fewer rows tells little about the next.
ENOUGH_ROWS = 1000
LOOKED_BYTES = 64 << 20
STRIDE = 4
LONGEST_STRIDE = 1 << 20


class WaitingChanges:
    """Decides whether what was added to the log is worth a batch.

    Args:
        heartbeat_secs: after so long a batch without rows moves the slot on, so that a quiet
            table does not keep the log of a busy one.
    """

    def __init__(self, heartbeat_secs: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat_secs = heartbeat_secs
        self._clock = clock
        self._bytes_a_row = BYTES_A_ROW
        self._stride = 1
        self._stood_at: tuple[int, float] | None = None
        self._counted: tuple[int, int, int] | None = None  # from where, to where, how many
        self._count_at = float("-inf")

    def end(self, driver: Driver, start: int) -> int:
        """Return where the log ends if a batch from `start` is worth it, else `start`."""
        now = self._clock()
        if self._stood_at is None or self._stood_at[0] != start:
            self._stood_at = (start, now)
        end = driver.end_of_log()
        if end <= start:
            return start
        if end - start >= COUNTED_BYTES:
            return end
        counted = self._count(driver, start, end)
        if counted is not None and counted[2]:
            return counted[1]
        return end if now - self._stood_at[1] >= self._heartbeat_secs else start

    def _count(self, driver: Driver, start: int, end: int) -> tuple[int, int, int] | None:
        """Return the newest count from a place, made anew at most once a second."""
        is_known = self._counted is not None and self._counted[0] == start
        if is_known and self._counted is not None and self._counted[1] == end:
            return self._counted
        now = self._clock()
        if now >= self._count_at or not is_known:
            self._counted = (start, end, driver.count_changes(end))
            # The server begins to read at the oldest transaction that is open: it may take long.
            took = self._clock() - now
            self._count_at = now + max(COUNT_SECS, COUNT_SHARE * took)
        return self._counted

    def rows(self, start: int, end: int) -> int:
        """Return about how many rows are between two places; at least one unless none can be."""
        if end <= start:
            return 0
        if self._counted is not None and self._counted[:2] == (start, end):
            return max(self._counted[2], 1)
        return max(int((end - start) / self._bytes_a_row), 1)

    def cap(self, driver: Driver, start: int, end: int, max_rows: int) -> int:
        """Return a place about so many rows away."""
        if self.rows(start, end) <= max_rows:
            return end
        step = max(int(max_rows * self._bytes_a_row), 1)
        if step >= COUNTED_BYTES and self._stride == 1:
            return min(start + step, end)
        # Log of other databases tells nothing of ours, and small steps through it would never
        # end. So the server is asked, which passes over it, but not over all of it in one go.
        horizon = min(start + max(step, LOOKED_BYTES) * self._stride, end)
        told = driver.place_after(start, horizon, max_rows)
        return horizon if told is None else min(told, horizon)

    def learn(self, size: int, rows: int) -> None:
        """Take note of how many rows a piece of the log brought."""
        if size <= 0:
            return
        if rows == 0:
            # A long transaction, or somebody else's: each peek reads it from its beginning.
            if size >= COUNTED_BYTES:
                self._stride = min(self._stride * STRIDE, LONGEST_STRIDE)
            return
        self._stride = 1
        if rows >= ENOUGH_ROWS or size >= COUNTED_BYTES:
            seen = max(size / rows, LEAST_BYTES_A_ROW)
            self._bytes_a_row = min(seen, (self._bytes_a_row + seen) / 2)


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WholeRows:
    """What a task reads of tables as they are.

    Attributes:
        ranges: the rows.
        snapshot: by which all tasks share one view of the database.
        version: the place of the log that it shows.
        anchor: what the server must have.
    """

    ranges: tuple[Range, ...]
    snapshot: str
    version: int
    anchor: Anchor


class PostgresCdcSource(Source[PostgresCdcOptions]):
    """Tables of a PostgreSQL database and their changes, by a slot of logical replication."""

    options_type = PostgresCdcOptions
    traits = SourceTraits(replayable=True, ordered=True, changes=True)

    def __init__(self, options: PostgresCdcOptions) -> None:
        super().__init__(options)
        self._begin_anew()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._driver = Driver(self.options)
        self._waiting = WaitingChanges(self.options.heartbeat_secs)
        self._refresh = uuid.uuid4().hex[:12]
        self._read_under: dict[str, Note] = {}
        self._planned: Place | None = None
        self._bounds: dict[Asked, Bounds] = {}
        self._committed: Place | None = None
        self._reload: set[str] = set()

    def identity(self) -> str:
        """Name the database and the slot; the server may move."""
        return f"postgres-cdc {self.options.database} {self.options.slot}"

    def initial(self) -> Offset:
        """Make the publication and the slot, and put every table in line."""
        driver = self._driver
        lineage = driver.lineage()
        start = Place(lineage.system, 0, timeline=lineage.timeline)
        tables = driver.tables(anew=True)
        lsn = driver.make_slot() if self.options.follows else 0
        followed = {
            label: note_of(table) for label, table in tables.items() if table.mode == "incremental"
        }
        if self.options.snapshot == "never":
            return replace(start, lsn=lsn, tables=followed).to_json()
        return replace(start, lsn=lsn, pending=tuple(tables), refresh=self._refresh).to_json()

    def latest(self, current: Offset) -> Offset:
        """Return the place where every table is read and the log is followed to its end."""
        place, driver = self._held(self._place(current)), self._driver
        if self.options.follows:
            driver.watch_slot(place.lsn)
        goal = self._goal(place)
        if self._is_read_whole(place, goal):
            driver.close_snapshot()
            if not self.options.follows:
                return current
            has_gone, place = gone(place, goal), replace(place, tables=goal.tables)
            if has_gone:
                return place.at(self._end_of_log(place)).to_json()
            end = self._waiting.end(driver, place.lsn)
            return current if end == place.lsn else place.at(end).to_json()
        driver.snapshot()
        return goal.at(self._end_of_log(place)).to_json()

    def _held(self, place: Place) -> Place:
        """Return a place on the timeline of the server, which is refused if it lost changes."""
        self._driver.hold_to(place.anchor)
        timeline, saved = self._driver.lineage().timeline, self._driver.saved.lsn
        if place.timeline in (0, timeline):
            saved = max(saved, place.confirmed)
        return replace(place, timeline=timeline, confirmed=saved)

    def _place(self, position: Offset) -> Place:
        """Read a position, without the tables that are to be loaded again."""
        place = Place.from_json(position)
        part = place.part
        # One that is in line, or read again since then, was dealt with.
        self._reload &= {*place.tables, *place.unsure, *([part.table] if part else [])}
        if not self._reload:
            return place
        return replace(
            place,
            tables={name: note for name, note in place.tables.items() if name not in self._reload},
            unsure={name: note for name, note in place.unsure.items() if name not in self._reload},
            part=None if part is not None and part.table in self._reload else part,
        )

    def _end_of_log(self, place: Place) -> int:
        return max(self._driver.end_of_log(), place.lsn) if self.options.follows else place.lsn

    def _goal(self, place: Place) -> Place:
        """Return the place where every table that there is now has been read."""
        tables = self._driver.tables()
        kept = {
            label: following(note, tables[label])
            for label, note in {**place.tables, **place.unsure}.items()
            if label in tables and self.options.mode_of(*names_of(label)) == "incremental"
        }
        there = {
            label: note_of(table)
            for label, table in tables.items()
            if table.mode == "incremental" and (label not in kept or is_stale(kept[label], table))
        }
        refreshes = any(table.mode == "full_refresh" for table in tables.values())
        reads_again = refreshes or bool(self._reload)
        refresh = self._refresh if reads_again and self._reads_whole else place.refresh
        return replace(
            place, tables={**kept, **there}, pending=(), part=None, unsure={}, refresh=refresh
        )

    @property
    def _reads_whole(self) -> bool:
        return self.options.snapshot != "never"

    def _is_read_whole(self, place: Place, goal: Place) -> bool:
        return not (
            place.pending
            or place.unsure
            or lacking(place, goal, self._driver.tables())
            or place.refresh != goal.refresh
        )

    def rows_between(self, start: Offset, end: Offset) -> int:
        """Return about how many rows: as the server estimates tables, and bytes of the log tell."""
        if start == end:
            return 0
        begin, goal = self._place(start), Place.from_json(end)
        tables = self._driver.tables()
        labels = {*begin.pending, *lacking(begin, goal, tables)} - set(goal.pending)
        rows = sum(max(tables[label].rows, 1) if label in tables else 1 for label in labels)
        rows += bool(begin.unsure) + (begin.refresh != goal.refresh) + (begin.part != goal.part)
        rows += bool(gone(begin, goal))
        return rows + self._waiting.rows(begin.lsn, goal.lsn)

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        """Return where the next batch ends: tables are read whole before the log is followed."""
        place, goal, driver = self._place(start), Place.from_json(end), self._driver
        place = replace(place, timeline=goal.timeline, confirmed=goal.confirmed)
        if not self._is_read_whole(place, goal):
            tables = driver.tables()
            in_line = put_in_line(
                place, goal, tables, self._read_under, reads_whole=self._reads_whole
            )
            if in_line != place:
                return in_line.to_json()
            self._planned = self._whole_reads(tables).step(place, driver.snapshot(), max_rows)
            return self._planned.to_json()
        lsn = self._waiting.cap(driver, place.lsn, goal.lsn, max_rows)
        kept = {
            name: replace(note, publication=note.publication or goal.tables[name].publication)
            for name, note in place.tables.items()
            if name in goal.tables
        }
        return replace(place, tables=kept).at(lsn).to_json()

    def _whole_reads(self, tables: Mapping[str, Table]) -> WholeReads:
        chunk_rows = self.options.snapshot_chunk_rows
        return WholeReads(self._driver.session, tables, chunk_rows, self._bounds)

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        """Cut tables that are read whole; the log is read by one task."""
        begin, stop = Place.from_json(start), Place.from_json(end)
        self._driver.hold_to(stop.anchor)
        if begin.pending:
            return self._whole_splits(begin, stop, slots)
        if begin.lsn == stop.lsn:
            return []
        self._driver.close_snapshot()
        tables = {names_of(label): note.seen for label, note in begin.tables.items()}
        identities = {names_of(label): note.table for label, note in begin.tables.items()}
        asked = Changes(begin.lsn, stop.lsn, tables, identities, stop.anchor)
        return [Split(asked, self._waiting.rows(begin.lsn, stop.lsn))]

    def _whole_splits(self, begin: Place, stop: Place, slots: int) -> list[Split]:
        tables = self._driver.tables(anew=True)
        parts = list(self._whole_reads(tables).ranges(begin, stop))
        if not parts:
            return []
        snapshot = self._driver.snapshot([part.table for part, _ in parts])
        # A replay may find that the tables hold the batch, as it was read under another view.
        is_replay, self._planned = stop != self._planned, None
        for table in {part.table.label: part.table for part, _ in parts}.values():
            self._read_under.pop(table.label, None)
            if not table.is_keyed and not is_replay:
                self._read_under[table.label] = note_of(table, snapshot)
        chunk_rows = self.options.snapshot_chunk_rows
        return [
            Split(WholeRows(tuple(each.ranges), snapshot.id, snapshot.lsn, stop.anchor), each.rows)
            for each in dealt(parts, slots, chunk_rows)
        ]

    def shapes(self, splits: Sequence[Split]) -> Sequence[pa.Schema]:
        """Return the columns of tables as they are now; the log may tell older ones."""
        found: dict[str, pa.Schema] = {}
        for split in splits:
            if isinstance(split.what, Changes):
                return self._shapes_now(split.what)
            for part in split.what.ranges:
                relation = replace(part.table.relation, version=split.what.version)
                found[part.table.label] = block_columns(
                    relation, self._driver.types, snapshot=True, first=part.first
                )
        return list(found.values())

    def _shapes_now(self, asked: Changes) -> Sequence[pa.Schema]:
        # Before the look: a change of columns that comes after it is told by a later place.
        version = self._driver.end_of_log()
        return [
            block_columns(replace(table.relation, version=version), self._driver.types)
            for table in self._driver.tables(anew=True).values()
            if table.names in asked.tables and asked.follows(table.relation)
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield blocks of one table each, in a task."""
        server = Server(self.options, split.what.anchor)
        if isinstance(split.what, Changes):
            yield from read_changes(server, split.what)
            return
        types = TypeCatalog(unrepresentable=self.options.unrepresentable)
        with server.connect() as session:
            for part in split.what.ranges:
                share(session, split.what.snapshot, part)
                load_types(session, types, part.table.relation.columns)
                yield from read_range(session, types, part)
                session.rows("COMMIT")

    def loaded_tables(self, position: Offset) -> frozenset[tuple[str, ...]] | None:
        """Return the tables that were read whole, or in part, and that the options still name."""
        if not self._reads_whole:
            return None  # of a table that never changed nothing was read
        place = Place.from_json(position)
        part = () if place.part is None else (place.part.table,)
        loaded = map(names_of, (*place.tables, *place.unsure, *part))
        return frozenset(names for names in loaded if self.options.mode_of(*names) is not None)

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        """Put tables in line once more."""
        self._reload |= {label for label in self._driver.tables() if names_of(label) in tables}
        # Without it, the goal of a quiet database might equal the position before.
        self._refresh = uuid.uuid4().hex[:12]

    def committed(self, position: Offset, rows: int) -> None:
        """Let the server remove the log before a position."""
        place = Place.from_json(position)
        if self.options.follows:
            self._driver.hold_to(place.anchor)
            before, self._committed = self._committed, place
            if before is not None and not (before.pending or before.unsure):
                self._waiting.learn(place.lsn - before.lsn, rows)
            self._driver.advance(place.lsn)

    def measure(self) -> Mapping[str, float]:
        """Return how far the slot is behind the log: `slot_lag_bytes`, `slot_lag_seconds`."""
        return self._driver.lag.measure()

    def has_end(self) -> bool:
        """Tell whether the tables are only read whole."""
        return self.options.snapshot == "only"

    def ends(self, position: Offset) -> bool:
        """Tell whether the tables have been read whole and that was all."""
        place = Place.from_json(position)
        return self.has_end() and not place.pending and not place.unsure

    def check(self) -> Iterator[CheckStep]:
        """Look whether the database can be followed; nothing is made."""
        return readiness(self._driver)

    def close(self) -> None:
        """End the driver's sessions. The slot stays, for the next start."""
        self._driver.close()
