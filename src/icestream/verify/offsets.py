"""Checks that the batches in a table's history follow each other without gap and overlap."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import short_text
from icestream.verify.comparison import DIFFERS, NOT_COMPARED, SAME
from icestream.verify.history import REPLACED, TableHistory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.source import Source
    from icestream.verify.history import HistoryEntry
    from icestream.verify.side import LakeTable

# Offsets that no batch has; that two batches have; of which only the texts are known; a snapshot
# whose rows do not match its mark; a mark without its snapshot; rows that another writer removed.
GAP, OVERLAP, BREAK, ROWS, LOST, REMOVED = "gap", "overlap", "break", "rows", "lost", "removed"


@dataclass(frozen=True)
class HistoryProblem:
    """Something in the history of a table that contradicts its marks.

    Attributes:
        kind: `gap`, `overlap`, `break`, `rows`, `lost` or `removed`.
        what: what is wrong.
        snapshot_id: the snapshot where it shows; None if there is none.
        partitions: by partition, where the previous batch ended and where this one starts.
    """

    kind: str
    what: str
    snapshot_id: int | None = None
    partitions: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class OffsetReport:
    """Whether a table holds the rows between two offsets of its source, once each.

    Attributes:
        pipeline: the pipeline that writes the table.
        source: what it reads.
        table: the Iceberg table.
        status: `same`, `different` or `not compared`.
        reason: why it was not compared.
        snapshot_id: the table's newest snapshot.
        batches: how many batches were verified.
        start: the offset from which on they were, as text of at most 200 characters.
        end: the offset up to which they were.
        is_from_first: whether the first of them is the pipeline's first batch in the table.
        unlinked: how many batches an older version wrote, without the offset they start at.
        rows: how many rows the batches wrote; None if rows are not compared.
        records: how many records they read.
        bad: how many of these were dropped or became dead letters.
        empty_offsets: how many offsets held no record.
        replayed: how many rows are replayed dead letters.
        total: the number of rows in the table; None if rows are not compared.
        other_writers: how many rows other writers added, by pipeline; `""` for other tools.
        problems: what is wrong.
    """

    pipeline: str
    source: str
    table: str
    status: str
    reason: str = ""
    snapshot_id: int | None = None
    batches: int = 0
    start: str = ""
    end: str = ""
    is_from_first: bool = True
    unlinked: int = 0
    rows: int | None = None
    records: int = 0
    bad: int = 0
    empty_offsets: int = 0
    replayed: int = 0
    total: int | None = None
    other_writers: dict[str, int] = field(default_factory=dict)
    problems: tuple[HistoryProblem, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.status == SAME

    def to_json(self) -> dict[str, Any]:
        """Return the report as `icestream verify --output json` shows it."""
        return asdict(self)


@dataclass(frozen=True)
class OffsetCheck:
    """What to check of the tables of one pipeline.

    Attributes:
        source: the pipeline's source.
        appends: whether each batch only adds rows, so that they can be counted.
        counts_records: whether all records of a batch are in one table.
        keeps_records: whether each good record becomes a row: no transform may leave some out.
    """

    source: Source[Any]
    appends: bool = True
    counts_records: bool = True
    keeps_records: bool = True

    def report(self, lake: LakeTable) -> OffsetReport:
        """Check a table."""
        report = OffsetReport(lake.pipeline, self.source.identity(), lake.name, NOT_COMPARED)
        if lake.mark is None:
            return replace(report, reason="the pipeline has not written this table yet")
        history = TableHistory(lake.table, lake.branch)
        entries = history.entries_of(lake.pipeline)
        report = replace(report, snapshot_id=history.head_id, end=short_text(lake.mark.end))
        if not entries and history.is_cut:
            reason = "the snapshots of its batches have expired, or the table was replaced"
            return replace(report, reason=reason)
        problems = [
            *self._lost(entries, lake.mark),
            *(one for pair in pairwise(entries) for one in self._link(*pair, history)),
            *(self._rows(entries) if self.appends else ()),
            *(_removed(history, lake.pipeline) if self.appends else ()),
        ]
        return replace(
            self._counted(report, entries, history),
            status=DIFFERS if problems else SAME,
            problems=tuple(problems),
        )

    def _counted(
        self, report: OffsetReport, entries: list[HistoryEntry], history: TableHistory
    ) -> OffsetReport:
        linked = [entry for entry in entries if entry.start is not None]
        first = entries[0] if entries else None
        report = replace(
            report,
            batches=len(entries),
            start=(first.start or first.end) if first is not None else "",
            is_from_first=not history.is_cut,
            unlinked=len(entries) - len(linked),
        )
        if not self.appends:
            return report
        others: Counter[str] = Counter()
        for entry in history.entries:
            if entry.pipeline != report.pipeline and entry.operation != REPLACED:
                others[entry.pipeline or ""] += entry.added
        replays = [entry for entry in history.entries if entry.pipeline == report.pipeline]
        counted = linked if self.counts_records else []
        return replace(
            report,
            rows=sum(entry.added for entry in entries),
            total=history.rows,
            records=sum(entry.count("icestream.records") for entry in counted),
            bad=sum(entry.count("icestream.bad") for entry in counted),
            empty_offsets=sum(_empty_offsets(entry) for entry in counted),
            replayed=sum(entry.added for entry in replays if entry not in entries),
            other_writers={name: rows for name, rows in sorted(others.items()) if rows},
        )

    def _lost(self, entries: list[HistoryEntry], mark: BatchMark) -> Iterator[HistoryProblem]:
        """Yield the problem of a mark whose snapshot is not the pipeline's newest one."""
        newest = entries[-1] if entries else None
        if newest is not None and newest.batch == (mark.query_id, mark.epoch):
            if newest.end != short_text(mark.end):
                what = f"the mark ends at {short_text(mark.end)}, and its snapshot at {newest.end}"
                yield HistoryProblem(LOST, what, newest.snapshot_id)
            return
        held = "no batch of this pipeline"
        if newest is not None:
            held = f"this pipeline's rows up to batch {newest.batch[1]} (snapshot {_id(newest)})"
        yield HistoryProblem(
            LOST,
            f"the mark is of batch {mark.epoch}, and the table holds {held}: it was rolled back "
            "or replaced, or its mark was changed",
            newest.snapshot_id if newest is not None else None,
        )

    def _link(
        self, before: HistoryEntry, after: HistoryEntry, history: TableHistory
    ) -> Iterator[HistoryProblem]:
        """Yield what is wrong between two batches that follow each other."""
        if after.start is None or after.start == before.end:
            return
        writer = before.writer or ""
        end, start = history.offset(before.end, writer), history.offset(after.start, writer)
        ranges = None
        if end is not None and start is not None:
            ranges = self.source.partition_ranges(end, start)
        moved = {name: both for name, both in (ranges or {}).items() if both[0] != both[1]}
        if ranges and not moved:
            return
        where = f"batch {after.batch[1]} (snapshot {_id(after)})"
        gaps = {name: both for name, both in moved.items() if both[0] < both[1]}
        if not self.counts_records and before.batch[0] != after.batch[0]:
            # A new checkpoint resumes after the newest batch of all tables. Batches in between
            # may have had no rows for this one.
            moved, gaps = {name: both for name, both in moved.items() if name not in gaps}, {}
            if not moved:
                return
        overlaps = {name: both for name, both in moved.items() if both[0] > both[1]}
        if gaps:
            missing = sum(high - low for low, high in gaps.values())
            what = f"{_count(missing, 'offset')} missing before {where}: {_texts(gaps)}"
            yield HistoryProblem(GAP, what, after.snapshot_id, gaps)
        if overlaps:
            doubled = sum(low - high for low, high in overlaps.values())
            what = f"{_count(doubled, 'offset')} read again by {where}: {_texts(overlaps)}"
            yield HistoryProblem(OVERLAP, what, after.snapshot_id, overlaps)
        if not moved:
            what = (
                f"{where} starts at {after.start}, and batch {before.batch[1]} before it ended "
                f"at {before.end}"
            )
            yield HistoryProblem(BREAK, what, after.snapshot_id)

    def _rows(self, entries: list[HistoryEntry]) -> Iterator[HistoryProblem]:
        """Yield the batches whose rows are not those that their marks count."""
        for entry in entries:
            where = f"batch {entry.batch[1]} (snapshot {_id(entry)})"
            rows, records = entry.count("icestream.rows"), entry.count("icestream.records")
            if rows != entry.added:
                what = f"{where} added {_count(entry.added, 'row')}, and its mark says {rows:,}"
                yield HistoryProblem(ROWS, what, entry.snapshot_id)
            if not records or not self.counts_records:
                continue
            used, span = rows + entry.count("icestream.bad"), entry.count("icestream.span")
            if used > records or (used < records and self.keeps_records):
                what = (
                    f"{where} read {_count(records, 'record')}, and {used:,} are accounted for: "
                    f"{rows:,} written, {used - rows:,} bad"
                )
                yield HistoryProblem(ROWS, what, entry.snapshot_id)
            if span and records > span:
                what = f"{where} read {_count(records, 'record')} from {span:,} offsets"
                yield HistoryProblem(ROWS, what, entry.snapshot_id)


def _removed(history: TableHistory, pipeline: str) -> Iterator[HistoryProblem]:
    """Yield what other writers removed, and counts of the table that contradict each other."""
    before: HistoryEntry | None = None
    for entry in history.entries:
        lost = entry.removed - entry.added if entry.operation == REPLACED else entry.removed
        if entry.operation == REPLACED and before is not None and before.has_deletes:
            lost = 0  # compaction applies the deletes
        lost = max(lost, 0) + (entry.deletes if entry.operation != REPLACED else 0)
        if lost and entry.pipeline != pipeline:
            writer = "another tool" if entry.pipeline is None else f"pipeline {entry.pipeline!r}"
            what = f"{writer} removed {_count(lost, 'row')} in snapshot {_id(entry)}"
            yield HistoryProblem(REMOVED, f"{what} ({entry.operation})", entry.snapshot_id)
        before = entry
    total, counted = before.count("total-records") if before else 0, history.rows
    if total != counted:
        what = f"the newest snapshot says {_count(total, 'row')}, and its files have {counted:,}"
        yield HistoryProblem(ROWS, what, history.head_id)


def _empty_offsets(entry: HistoryEntry) -> int:
    span, records = entry.count("icestream.span"), entry.count("icestream.records")
    return max(span - records, 0) if records else 0


def _texts(partitions: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} from {min(both)} to {max(both)}" for name, both in partitions.items())


def _id(entry: HistoryEntry) -> int:
    return entry.snapshot_id


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
