"""Plans snapshots: which tables to enqueue, how much a batch reads, what each task reads.

A batch enqueues tables, reads a part of a snapshot, or reads the log. Its two offsets alone decide
which, so a replay does the same.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from icestream.sources.postgres_cdc.offset import PgOffset, PgTableState, SnapshotCursor
from icestream.sources.postgres_cdc.snapshot import (
    Key,
    RangeBounds,
    TableRange,
    count_pages,
    find_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icestream.sources.postgres_cdc.server import PgSession
    from icestream.sources.postgres_cdc.snapshot import ExportedSnapshot
    from icestream.sources.postgres_cdc.tables import PgTable


_log = logging.getLogger(__name__)

MISSING_CHANGES = (
    "are missing: the table was published again or replaced, and `snapshot: never` rules out a "
    "reload"
)
# The table, its reading order, the key to start after and the key to stop at.
RangeKey = tuple[str, str, Key | None, Key | None]
# Chunks are assembled from smaller pieces, so that they come out about equal.
PIECES_PER_CHUNK = 5


def missing_tables(offset: PgOffset, target: PgOffset, tables: Mapping[str, PgTable]) -> list[str]:
    """Return the tables of `target` that `offset` has neither read nor enqueued.

    Args:
        offset: where the batch starts.
        target: an offset with every configured table.
        tables: the tables that exist; one dropped in the meantime is not missing.
    """
    known = {**offset.tables, **offset.unconfirmed}
    return [
        name
        for name in target.tables
        if name in tables
        and name not in offset.pending
        and (name not in known or needs_reload(known[name], tables[name]))
    ]


def removed_tables(offset: PgOffset, target: PgOffset) -> set[str]:
    """Return the tables of `offset` that no longer exist or are no longer configured."""
    return set(offset.tables) - set(target.tables)


def reload_reason(state: PgTableState, table: PgTable) -> str | None:
    """Return why a table must be reloaded; None if its changes in the log are enough."""
    if state.identity != table.identity:
        return "its key changed, or another table has its name now"
    if state.last_column < table.newest_default:
        return "a column was added with a default"
    if state.publication and state.publication != table.publication:
        return "it was removed from its publication and added back, or the publication was altered"
    return None


def needs_reload(state: PgTableState, table: PgTable) -> bool:
    """Tell whether a table must be reloaded."""
    return reload_reason(state, table) is not None


def adopt_publication(state: PgTableState, table: PgTable) -> PgTableState:
    """Return the state with a publication version; offsets of older versions store none."""
    return state if state.publication else replace(state, publication=table.publication)


def must_restart(cursor: SnapshotCursor, table: PgTable) -> bool:
    """Tell whether a snapshot in progress must start from the beginning."""
    return needs_reload(cursor.state, table) or cursor.reading_order != table.reading_order


def state_of(table: PgTable, snapshot: ExportedSnapshot | None = None) -> PgTableState:
    """Return the state of a table that is read now, from a snapshot if that matters."""
    state = PgTableState(table.identity, table.last_column, publication=table.publication)
    return (
        state
        if snapshot is None
        else replace(state, snapshot=snapshot.visibility, snapshot_lsn=snapshot.lsn)
    )


def enqueue_snapshots(
    offset: PgOffset,
    target: PgOffset,
    tables: Mapping[str, PgTable],
    snapshot_states: Mapping[str, PgTableState],
    *,
    takes_snapshots: bool,
) -> PgOffset:
    """Return the offset with every table enqueued that needs a snapshot.

    Args:
        offset: where the batch starts.
        target: an offset at which all snapshots are complete.
        tables: the tables that exist.
        snapshot_states: the state of tables without a key that this process has read in full.
        takes_snapshots: whether `snapshot` allows any.
    """
    pending, cursor = list(offset.pending), offset.cursor
    # A table that was removed and comes back is reloaded: the log lacks its changes in between.
    kept = {name: state for name, state in offset.tables.items() if name in target.tables}
    if cursor is not None and cursor.table in tables and must_restart(cursor, tables[cursor.table]):
        cursor = None
    for name in offset.unconfirmed:
        if name in snapshot_states:
            kept[name] = snapshot_states[name]
        else:
            pending.append(name)
    for name in missing_tables(offset, target, tables):
        kept.pop(name, None)
        _warn_about_reload(offset, tables[name], takes_snapshots=takes_snapshots)
        if not takes_snapshots:
            kept[name] = state_of(tables[name])
        elif name not in pending:
            pending.append(name)
    if offset.refresh != target.refresh:
        refreshed = [name for name, table in tables.items() if table.mode == "full_refresh"]
        if cursor is not None and cursor.table in refreshed:
            cursor = None
        pending += [name for name in refreshed if name not in pending]
    return replace(
        offset,
        tables=kept,
        unconfirmed={},
        pending=tuple(pending),
        cursor=cursor,
        refresh=target.refresh,
    )


def _warn_about_reload(offset: PgOffset, table: PgTable, *, takes_snapshots: bool) -> None:
    """Log why a table that was read before is reloaded, or that it is not."""
    state = offset.unconfirmed.get(table.qualified_name) or offset.tables.get(table.qualified_name)
    if state is None:
        return  # a new table, or one that the user asked to reload
    if takes_snapshots:
        _log.warning("reloading %s: %s", table.qualified_name, reload_reason(state, table))
    else:
        _log.warning("changes to %s %s", table.qualified_name, MISSING_CHANGES)


@dataclass
class SnapshotPlanner:
    """Decides how much of the queued snapshots the next batch reads, and splits it for tasks.

    Attributes:
        tables: the tables that exist.
        chunk_rows: rows of a task; more if that still gives every core a task.
        known_bounds: split points found while the batch was planned.
    """

    session: PgSession
    tables: Mapping[str, PgTable]
    chunk_rows: int
    known_bounds: dict[RangeKey, RangeBounds] = field(default_factory=dict)

    def next_offset(self, offset: PgOffset, snapshot: ExportedSnapshot, max_rows: int) -> PgOffset:
        """Return the end of a batch of about `max_rows` rows."""
        queue, cursor, left = list(offset.pending), offset.cursor, max_rows
        self.known_bounds.clear()
        tables, unconfirmed = dict(offset.tables), dict(offset.unconfirmed)
        while queue and left > 0:
            table = self.tables.get(queue[0])
            if table is None:  # dropped in the meantime
                queue.pop(0)
                cursor = None
                continue
            if left < max_rows and not table.is_keyed and table.rows > left:
                break
            state = self._state_of(table, cursor, snapshot)
            rows, last_key = self._count_rows(table, cursor, left)
            left -= max(rows, 1)
            if last_key is not None:
                cursor = SnapshotCursor(queue[0], last_key, state, table.reading_order)
                break
            cursor = None
            name = queue.pop(0)
            if table.mode == "incremental":
                (tables if table.is_keyed else unconfirmed)[name] = state
        return replace(
            offset, tables=tables, unconfirmed=unconfirmed, pending=tuple(queue), cursor=cursor
        )

    def _state_of(
        self, table: PgTable, cursor: SnapshotCursor | None, snapshot: ExportedSnapshot
    ) -> PgTableState:
        if cursor is not None:
            # Later batches may read a newer snapshot; the log replays the changes in between.
            return cursor.state
        return state_of(table, snapshot if table.mode == "incremental" else None)

    def _count_rows(
        self, table: PgTable, cursor: SnapshotCursor | None, left: int
    ) -> tuple[int, Key | None]:
        """Return how many rows a batch reads, and the last key if more rows follow."""
        if not table.is_keyed:
            return table.rows, None
        begin = cursor.last_key if cursor else None
        bounds = self._find_bounds(table, begin, None, left)
        end = bounds.keys[-1] if bounds.rows == left else None
        # Finding them takes as long as counting the rows, so do it once.
        self.known_bounds[table.identity, table.reading_order, begin, end] = bounds
        return bounds.rows, end

    def ranges(self, start: PgOffset, end: PgOffset) -> Iterator[tuple[TableRange, int]]:
        """Yield the ranges of a batch, split for tasks, and roughly how many rows each has."""
        done = len(start.pending) - len(end.pending)
        for index, name in enumerate(start.pending):
            is_last = index == done and end.cursor is not None and end.cursor.table == name
            if index > done or (index == done and not is_last):
                return
            table = self.tables.get(name)
            if table is None:
                continue
            start_cursor = (
                start.cursor if start.cursor is not None and start.cursor.table == name else None
            )
            end_cursor = end.cursor if is_last else None
            cursors = [each for each in (start_cursor, end_cursor) if each is not None]
            if any(must_restart(cursor, table) for cursor in cursors):
                continue  # changed before a replay: its keys may differ, and it is reloaded next
            after = start_cursor.last_key if start_cursor is not None else None
            up_to = end_cursor.last_key if end_cursor is not None else None
            yield from self._split_by_key(table, after, up_to)

    def _split_by_key(
        self, table: PgTable, after: Key | None, up_to: Key | None
    ) -> Iterator[tuple[TableRange, int]]:
        first = after is None
        if not table.is_keyed:
            yield from self._split_by_pages(table)
            return
        range_key = (table.identity, table.reading_order, after, up_to)
        bounds = self.known_bounds.pop(range_key, None) or self._find_bounds(
            table, after, up_to, None
        )
        cuts = [key for key in bounds.keys if key != up_to]
        left = bounds.rows
        for low, high in zip([after, *cuts], [*cuts, up_to], strict=True):
            rows = min(left, self._piece_rows)
            left -= rows
            yield TableRange(table, low, high, first=first), rows

    def _split_by_pages(self, table: PgTable) -> Iterator[tuple[TableRange, int]]:
        parts = -(-table.rows // self.chunk_rows) or 1
        if table.is_partitioned or table.relation.has_row_key or parts == 1:
            # Partitions share page numbers, and identical rows may be on any page.
            yield TableRange(table, first=True), table.rows
            return
        pages = count_pages(self.session, table)
        starts = sorted({pages * part // parts for part in range(parts)})
        for begin, stop in zip(starts, [*starts[1:], None], strict=True):
            yield TableRange(table, pages=(begin, stop), first=True), table.rows // len(starts)

    def _find_bounds(
        self, table: PgTable, after: Key | None, up_to: Key | None, limit: int | None
    ) -> RangeBounds:
        return find_bounds(
            self.session, table, self._piece_rows, after=after, up_to=up_to, limit=limit
        )

    @property
    def _piece_rows(self) -> int:
        return -(-self.chunk_rows // PIECES_PER_CHUNK)


def balance(
    parts: Sequence[tuple[TableRange, int]], slots: int, chunk_rows: int
) -> list[TaskRanges]:
    """Distribute ranges evenly over no more tasks than are useful.

    Each task writes its own files for each partition, so fewer tasks mean fewer files.
    """
    total = sum(rows for _, rows in parts)
    tasks = -(-total // max(chunk_rows, -(-total // slots), 1)) or 1
    assigned: list[TaskRanges] = []
    done = number = 0
    for part, rows in parts:
        task = min(done * tasks // max(total, 1), tasks - 1)
        if assigned and task == number:
            assigned[-1].add(part, rows)
        else:
            assigned.append(TaskRanges([part], rows))
        number, done = task, done + rows
    return assigned


@dataclass
class TaskRanges:
    """What one task reads."""

    ranges: list[TableRange]
    rows: int

    def add(self, part: TableRange, rows: int) -> None:
        """Add a range; one that continues the last range extends it."""
        last = self.ranges[-1]
        self.rows += rows
        if part.table is last.table and part.after is not None and part.after == last.up_to:
            self.ranges[-1] = replace(last, up_to=part.up_to)
        else:
            self.ranges.append(part)
