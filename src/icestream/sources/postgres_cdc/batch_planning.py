"""What the next batch does: put tables in line, read a piece of them whole, or follow the log.

A batch is one of these, told by its two positions alone, so that a replay does the same.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from icestream.sources.postgres_cdc.offset import Note, Part, Place
from icestream.sources.postgres_cdc.snapshot import Bounds, Key, Range, count_pages, find_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.snapshot import Snapshot
    from icestream.sources.postgres_cdc.tables import Table


_log = logging.getLogger(__name__)

MISSING = (
    "are missing: it was published again, or is another table by now, and with `snapshot: never` "
    "it is not loaded again"
)
# A table, the order by which it is read, and from which key up to which.
Asked = tuple[str, str, Key | None, Key | None]
# Chunks are made of smaller pieces, so that they can be about equal.
PIECES = 5


def lacking(place: Place, goal: Place, tables: Mapping[str, Table]) -> list[str]:
    """Return the tables that a goal has and a place neither has nor is about to read.

    Args:
        place: where the batch starts.
        goal: with the tables that are asked for.
        tables: what there is; one that was dropped meanwhile is not lacking.
    """
    known = {**place.tables, **place.unsure}
    return [
        label
        for label in goal.tables
        if label in tables
        and label not in place.pending
        and (label not in known or is_stale(known[label], tables[label]))
    ]


def gone(place: Place, goal: Place) -> set[str]:
    """Return the tables that are followed at a place, and are not there or not asked for now."""
    return set(place.tables) - set(goal.tables)


def stale_reason(note: Note, table: Table) -> str | None:
    """Return why a table must be loaded again; None if its changes in the log are enough."""
    if note.table != table.identity:
        return "it has another key, or is another table of that name"
    if note.columns < table.newest_default:
        return "a column was added with a default"
    if note.publication and note.publication != table.publication:
        return "it was taken out of its publication and put back, or the publication was altered"
    return None


def is_stale(note: Note, table: Table) -> bool:
    """Tell whether a table must be loaded again."""
    return stale_reason(note, table) is not None


def following(note: Note, table: Table) -> Note:
    """Return a note that is not stale; one of an older version takes over the publication."""
    return note if note.publication else replace(note, publication=table.publication)


def is_begun_anew(part: Part, table: Table) -> bool:
    """Tell whether a table that is being read whole must be read from its beginning."""
    return is_stale(part.note, table) or part.order != table.reading_order


def note_of(table: Table, snapshot: Snapshot | None = None) -> Note:
    """Return what is noted of a table that is read now, under a snapshot if that matters."""
    note = Note(table.identity, table.last_column, publication=table.publication)
    return note if snapshot is None else replace(note, seen=snapshot.seen, until=snapshot.lsn)


def put_in_line(
    place: Place,
    goal: Place,
    tables: Mapping[str, Table],
    read_under: Mapping[str, Note],
    *,
    reads_whole: bool,
) -> Place:
    """Return the place with every table in line that is to be read whole.

    Args:
        place: where the batch starts.
        goal: where all of them will have been read.
        tables: what there is.
        read_under: snapshots under which this process had tables without a key read.
        reads_whole: whether tables are read whole at all.
    """
    pending, part = list(place.pending), place.part
    # One that went, and comes back later, is read anew: its changes in between are not told.
    kept = {label: note for label, note in place.tables.items() if label in goal.tables}
    if part is not None and part.table in tables and is_begun_anew(part, tables[part.table]):
        part = None
    for label in place.unsure:
        if label in read_under:
            kept[label] = read_under[label]
        else:
            pending.append(label)
    for label in lacking(place, goal, tables):
        kept.pop(label, None)
        _warn_of_reload(place, tables[label], reads_whole=reads_whole)
        if not reads_whole:
            kept[label] = note_of(tables[label])
        elif label not in pending:
            pending.append(label)
    if place.refresh != goal.refresh:
        anew = [label for label, table in tables.items() if table.mode == "full_refresh"]
        if part is not None and part.table in anew:
            part = None
        pending += [label for label in anew if label not in pending]
    return replace(
        place,
        tables=kept,
        unsure={},
        pending=tuple(pending),
        part=part,
        refresh=goal.refresh,
    )


def _warn_of_reload(place: Place, table: Table, *, reads_whole: bool) -> None:
    """Say why a table that was followed already is loaded again, or that it is not."""
    note = place.unsure.get(table.label) or place.tables.get(table.label)
    if note is None:
        return  # a new table, or one that the user asked to load again
    if reads_whole:
        _log.warning("%s is loaded again: %s", table.label, stale_reason(note, table))
    else:
        _log.warning("changes of %s %s", table.label, MISSING)


@dataclass
class WholeReads:
    """Chooses how much of the tables in line the next batch reads, and cuts it for tasks.

    Attributes:
        tables: what there is.
        chunk_rows: rows of a task, unless fewer tasks do.
        found: where ranges can be cut, as it was found when the batch was planned.
    """

    session: Session
    tables: Mapping[str, Table]
    chunk_rows: int
    found: dict[Asked, Bounds] = field(default_factory=dict)

    def step(self, place: Place, snapshot: Snapshot, max_rows: int) -> Place:
        """Return where a batch ends that reads about so many rows."""
        line, part, left = list(place.pending), place.part, max_rows
        self.found.clear()
        tables, unsure = dict(place.tables), dict(place.unsure)
        while line and left > 0:
            table = self.tables.get(line[0])
            if table is None:  # it was dropped meanwhile
                line.pop(0)
                part = None
                continue
            if left < max_rows and not table.is_keyed and table.rows > left:
                break
            note = self._note(table, part, snapshot)
            rows, after = self._count(table, part, left)
            left -= max(rows, 1)
            if after is not None:
                part = Part(line[0], after, note, table.reading_order)
                break
            part = None
            label = line.pop(0)
            if table.mode == "incremental":
                (tables if table.is_keyed else unsure)[label] = note
        return replace(place, tables=tables, unsure=unsure, pending=tuple(line), part=part)

    def _note(self, table: Table, part: Part | None, snapshot: Snapshot) -> Note:
        if part is not None:
            # Rows of later batches may come from a newer view; changes in between come again.
            return part.note
        return note_of(table, snapshot if table.mode == "incremental" else None)

    def _count(self, table: Table, part: Part | None, left: int) -> tuple[int, Key | None]:
        """Return the rows that a batch reads, and the last one's key if there are more."""
        if not table.is_keyed:
            return table.rows, None
        begin = part.after if part else None
        bounds = self._bounds(table, begin, None, left)
        end = bounds.keys[-1] if bounds.rows == left else None
        # To look for them takes as long as to count the rows, so it is done once.
        self.found[table.identity, table.reading_order, begin, end] = bounds
        return bounds.rows, end

    def ranges(self, start: Place, end: Place) -> Iterator[tuple[Range, int]]:
        """Yield what a batch reads, cut for tasks, with about how many rows each part has."""
        done = len(start.pending) - len(end.pending)
        for place, label in enumerate(start.pending):
            is_last = place == done and end.part is not None and end.part.table == label
            if place > done or (place == done and not is_last):
                return
            table = self.tables.get(label)
            if table is None:
                continue
            begun = start.part if start.part is not None and start.part.table == label else None
            ended = end.part if is_last else None
            if any(part is not None and is_begun_anew(part, table) for part in (begun, ended)):
                continue  # changed before a replay: keys may be others, and it is read anew next
            after = begun.after if begun is not None else None
            yield from self._cut(table, after, ended.after if ended is not None else None)

    def _cut(
        self, table: Table, after: Key | None, upto: Key | None
    ) -> Iterator[tuple[Range, int]]:
        first = after is None
        if not table.is_keyed:
            yield from self._cut_by_pages(table)
            return
        asked = (table.identity, table.reading_order, after, upto)
        bounds = self.found.pop(asked, None) or self._bounds(table, after, upto, None)
        cuts = [key for key in bounds.keys if key != upto]
        left = bounds.rows
        for low, high in zip([after, *cuts], [*cuts, upto], strict=True):
            rows = min(left, self._piece_rows)
            left -= rows
            yield Range(table, low, high, first=first), rows

    def _cut_by_pages(self, table: Table) -> Iterator[tuple[Range, int]]:
        parts = -(-table.rows // self.chunk_rows) or 1
        if table.is_partitioned or table.relation.has_row_key or parts == 1:
            # Pages of parts have the same numbers, and rows that are alike may be on any page.
            yield Range(table, first=True), table.rows
            return
        pages = count_pages(self.session, table)
        starts = sorted({pages * place // parts for place in range(parts)})
        for begin, stop in zip(starts, [*starts[1:], None], strict=True):
            yield Range(table, pages=(begin, stop), first=True), table.rows // len(starts)

    def _bounds(
        self, table: Table, after: Key | None, upto: Key | None, limit: int | None
    ) -> Bounds:
        return find_bounds(
            self.session, table, self._piece_rows, after=after, upto=upto, limit=limit
        )

    @property
    def _piece_rows(self) -> int:
        return -(-self.chunk_rows // PIECES)


def dealt(parts: Sequence[tuple[Range, int]], slots: int, chunk_rows: int) -> list[Dealt]:
    """Return what each task reads: about equal, and in no more tasks than can be of use.

    A task makes files of its own for each partition, so few tasks make few files.
    """
    total = sum(rows for _, rows in parts)
    tasks = -(-total // max(chunk_rows, -(-total // slots), 1)) or 1
    found: list[Dealt] = []
    done = number = 0
    for part, rows in parts:
        here = min(done * tasks // max(total, 1), tasks - 1)
        if found and here == number:
            found[-1].add(part, rows)
        else:
            found.append(Dealt([part], rows))
        number, done = here, done + rows
    return found


@dataclass
class Dealt:
    """What one task reads."""

    ranges: list[Range]
    rows: int

    def add(self, part: Range, rows: int) -> None:
        """Add a range, to the one before if it goes on where that ends."""
        last = self.ranges[-1]
        self.rows += rows
        if part.table is last.table and part.after is not None and part.after == last.upto:
            self.ranges[-1] = replace(last, upto=part.upto)
        else:
            self.ranges.append(part)
