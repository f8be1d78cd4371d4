"""The history of a table, as the summaries of its snapshots tell it. Needs no JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import BatchMark, pipeline_of, short_text
from icestream.sinks.iceberg.ledger import START, read_mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from icestream.contracts.offset import Offset

APPENDED, REPLACED = "append", "replace"
_DELETES = ("added-position-deletes", "added-equality-deletes", "added-delete-files")
_HELD_DELETES = ("total-position-deletes", "total-equality-deletes")


@dataclass(frozen=True)
class HistoryEntry:
    """One snapshot of a table.

    Attributes:
        snapshot_id: its id.
        summary: its summary, with `operation`.
    """

    snapshot_id: int
    summary: Mapping[str, str]

    @property
    def operation(self) -> str:
        return self.summary.get("operation", "")

    @property
    def writer(self) -> str | None:
        """The name in its mark: a pipeline, or its replay of dead letters; None for other tools."""
        return self.summary.get("icestream.pipeline")

    @property
    def pipeline(self) -> str | None:
        """The pipeline that created it; None if another tool did."""
        return None if self.writer is None else pipeline_of(self.writer)

    @property
    def batch(self) -> tuple[str, int]:
        """The query and the number of its batch."""
        return self.summary.get("icestream.query-id", ""), self.count("icestream.epoch")

    @property
    def start(self) -> str | None:
        """Where its rows start, as text; None if an older version of icestream wrote it."""
        return self.summary.get(START)

    @property
    def end(self) -> str:
        return self.summary.get("icestream.position", "")

    @property
    def added(self) -> int:
        return self.count("added-records")

    @property
    def removed(self) -> int:
        return self.count("deleted-records")

    @property
    def deletes(self) -> int:
        """How many rows its delete files name, or at least how many delete files it added."""
        return max(self.count(key) for key in _DELETES)

    @property
    def has_deletes(self) -> bool:
        """Whether rows of the table's data files are deleted by delete files."""
        return any(self.count(key) for key in _HELD_DELETES)

    def count(self, key: str) -> int:
        """Return a number of the summary; 0 if it has none."""
        return int(self.summary.get(key, 0))


class TableHistory:
    """The snapshots of one branch of a table, the oldest that still exists first.

    Args:
        table: the table as PyIceberg loaded it.
        branch: the branch; None for the main one.
    """

    def __init__(self, table: Table, branch: str | None = None) -> None:
        self._table = table
        snapshots = list(_ancestors(table, branch))[::-1]
        self.entries = tuple(_entry(snapshot) for snapshot in snapshots)
        self.head_id = snapshots[-1].snapshot_id if snapshots else None
        self.is_cut = bool(snapshots) and _has_lost_ancestors(snapshots[0])

    def entries_of(self, pipeline: str) -> list[HistoryEntry]:
        """Return the snapshots with batches of a pipeline, without replayed dead letters."""
        return [entry for entry in self.entries if entry.writer == pipeline]

    @cached_property
    def rows(self) -> int:
        """The number of rows in the data files of the newest snapshot."""
        if self.head_id is None:
            return 0
        files = self._table.scan(snapshot_id=self.head_id).plan_files()
        return sum(task.file.record_count for task in files)

    def offset(self, text: str, pipeline: str) -> Offset | None:
        """Return the offset that `short_text` shortened; None if no metadata file has it."""
        try:
            found: Offset = json.loads(text)
        except ValueError:
            return self._marked_offsets(pipeline).get(text)
        return found

    def _marked_offsets(self, pipeline: str) -> dict[str, Offset]:
        if pipeline not in self._offsets:
            marks = [read_mark(properties, pipeline) for properties in self._properties()]
            self._offsets[pipeline] = {
                short_text(offset): offset
                for mark in marks
                if isinstance(mark, BatchMark)
                for offset in (mark.start, mark.end)
            }
        return self._offsets[pipeline]

    @cached_property
    def _offsets(self) -> dict[str, dict[str, Offset]]:
        return {}

    def _properties(self) -> Iterator[Mapping[str, str]]:
        """Yield the table's properties, now and in the older metadata files that it keeps."""
        from pyiceberg.serializers import FromInputFile

        yield self._table.properties
        for entry in self._table.metadata.metadata_log:
            file = self._table.io.new_input(entry.metadata_file)
            try:
                yield FromInputFile.table_metadata(file).properties
            except OSError:  # another tool has removed it
                continue


def _ancestors(table: Table, branch: str | None) -> Iterator[Snapshot]:
    """Yield the newest snapshot of a branch and its ancestors, as far as they still exist."""
    snapshot = table.current_snapshot()
    if branch is not None:
        reference = table.refs().get(branch)
        snapshot = table.snapshot_by_id(reference.snapshot_id) if reference else None
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def _has_lost_ancestors(oldest: Snapshot) -> bool:
    """Tell whether older snapshots have existed. PyIceberg's expiry removes the parent's id too."""
    return oldest.parent_snapshot_id is not None or (oldest.sequence_number or 0) > 1


def _entry(snapshot: Snapshot) -> HistoryEntry:
    summary: Any = snapshot.summary
    if summary is None:
        return HistoryEntry(snapshot.snapshot_id, {})
    lines = {"operation": summary.operation.value, **summary.additional_properties}
    return HistoryEntry(snapshot.snapshot_id, lines)
