"""Which data files a table holds now, with the deletes on each, by Iceberg's Java API."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icestream.sinks.iceberg.java_table import JavaTable

# Further back than this, a listing of the whole table is quicker than its history.
MOST_SNAPSHOTS_BEHIND = 50


@dataclass(frozen=True)
class LiveFile:
    """A data file of the table, with the delete files that speak of it.

    Attributes:
        path: where it is.
        rows: how many rows it holds, dead ones included.
        first_row_id: id of its first row where ids are not stored in it; None before format v3.
        described: the file in the JSON form of Iceberg's specification.
        deletes: its delete files in the same form.
    """

    path: str
    rows: int
    first_row_id: int | None
    described: dict[str, Any]
    deletes: tuple[dict[str, Any], ...] = ()


class LiveFiles:
    """The files of one branch, kept in step with the table at the cost of what changed.

    Args:
        table: the table.
        branch: the branch.
        columns: names of the columns whose bounds are of interest.
    """

    def __init__(self, table: JavaTable, branch: str, columns: Sequence[str]) -> None:
        self.table = table
        self._branch = branch
        self._columns = list(columns)
        self._files: dict[str, LiveFile] = {}
        self.snapshot_id: int | None = None

    def refresh(self) -> list[LiveFile]:
        """Return the files as of the branch's newest snapshot."""
        from icestream.sinks.iceberg.java import java_errors, refuse_dropped

        java = self.table.java
        try:
            java.refresh()
        except java_errors() as exc:
            refuse_dropped(exc, self.table.exists)
            raise
        newest = java.snapshot(self._branch) or java.currentSnapshot()
        if newest is None:
            self._files, self.snapshot_id = {}, None
            return []
        if newest.snapshotId() != self.snapshot_id:
            steps = self._steps_since(java, newest)
            if steps is None or not all(self._apply(java, step) for step in steps):
                self._list(java, newest)
            self.snapshot_id = int(newest.snapshotId())
        return list(self._files.values())

    def _steps_since(self, java: Any, newest: Any) -> list[Any] | None:
        """Return the snapshots after the one we know, oldest first; None if the way is lost."""
        if self.snapshot_id is None:
            return None
        steps: list[Any] = []
        step = newest
        while step is not None and step.snapshotId() != self.snapshot_id:
            steps.append(step)
            parent = step.parentId()
            if parent is None or len(steps) > MOST_SNAPSHOTS_BEHIND:
                return None
            step = java.snapshot(parent)
        return None if step is None else steps[::-1]

    def _apply(self, java: Any, snapshot: Any) -> bool:
        """Follow one snapshot; False if a delete file does not say which data file it means."""
        api = self.table.jvm.org.apache.iceberg
        changes = api.SnapshotChanges.builderFor(java).snapshot(snapshot).build()
        for file in _each(changes.removedDataFiles()):
            self._files.pop(str(file.location()), None)
        for file in _each(changes.addedDataFiles()):
            live = self._live(java, file, ())
            self._files[live.path] = live
        for file in _each(changes.removedDeleteFiles()):
            if not self._change_deletes(java, file, add=False):
                return False
        for file in _each(changes.addedDeleteFiles()):
            if not self._change_deletes(java, file, add=True):
                return False
        return True

    def _change_deletes(self, java: Any, file: Any, *, add: bool) -> bool:
        target = file.referencedDataFile()
        if target is None:
            return False
        known = self._files.get(target)
        if known is not None:
            described = self._described(java, file)
            kept = tuple(one for one in known.deletes if _place(one) != _place(described))
            self._files[target] = replace(known, deletes=(*kept, described) if add else kept)
        return True

    def _list(self, java: Any, snapshot: Any) -> None:
        # Bounds by the names of now: the snapshot may be older than a rename.
        scan = java.newScan().includeColumnStats(self._columns).useSnapshot(snapshot.snapshotId())
        self._files = {}
        tasks = scan.planFiles()
        try:
            for task in _each(tasks):
                live = self._live(java, task.file(), task.deletes())
                self._files[live.path] = live
        finally:
            tasks.close()

    def _live(self, java: Any, file: Any, deletes: Iterable[Any]) -> LiveFile:
        first = file.firstRowId()
        return LiveFile(
            path=str(file.location()),
            rows=int(file.recordCount()),
            first_row_id=None if first is None else int(first),
            described=self._described(java, file),
            deletes=tuple(self._described(java, one) for one in deletes),
        )

    def _described(self, java: Any, file: Any) -> dict[str, Any]:
        spec = java.specs().get(file.specId())
        parser = self.table.jvm.org.apache.iceberg.ContentFileParser
        described: dict[str, Any] = json.loads(parser.toJson(file, spec))
        return described


def _each(iterable: Any) -> Iterator[Any]:
    """Go through one of Java's iterables, which Py4J does not know to be one."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _place(described: dict[str, Any]) -> tuple[str, int | None]:
    return described["file-path"], described.get("content-offset")
