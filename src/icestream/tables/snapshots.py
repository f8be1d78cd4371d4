"""The snapshots of a table, with the marks of their batches. Needs no JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot as PyIcebergSnapshot


@dataclass(frozen=True)
class SnapshotInfo:
    """One snapshot of a table.

    Attributes:
        snapshot_id: its id.
        parent_snapshot_id: the id of its parent; None for the first snapshot.
        timestamp_ms: when it was created, in epoch milliseconds.
        manifest_list: the file that lists its manifests.
        summary: the commit's summary, including `operation` and the mark.
        is_current: whether it is the current snapshot.
        refs: the branches and tags that point to it.
    """

    snapshot_id: int
    parent_snapshot_id: int | None
    timestamp_ms: int
    manifest_list: str
    summary: Mapping[str, str]
    is_current: bool = False
    refs: tuple[str, ...] = ()

    @property
    def operation(self) -> str:
        return self.summary.get("operation", "")

    @property
    def rows_added(self) -> int:
        return int(self.summary.get("added-records", 0))

    @property
    def rows_total(self) -> int | None:
        total = self.summary.get("total-records")
        return None if total is None else int(total)

    @property
    def pipeline(self) -> str | None:
        """The pipeline that created it; None if another tool did."""
        return self.summary.get("icestream.pipeline")

    @property
    def epoch(self) -> int | None:
        """The number of its batch; None if another tool created it."""
        epoch = self.summary.get("icestream.epoch")
        return None if epoch is None else int(epoch)

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as `icestream snapshots --output json` shows it."""
        return {
            "snapshot_id": self.snapshot_id,
            "parent_snapshot_id": self.parent_snapshot_id,
            "timestamp_ms": self.timestamp_ms,
            "manifest_list": self.manifest_list,
            "summary": dict(self.summary),
            "is_current": self.is_current,
            "refs": list(self.refs),
            "pipeline": self.pipeline,
            "epoch": self.epoch,
        }


def list_snapshots(table: Table, *, limit: int | None = None) -> list[SnapshotInfo]:
    """Return the snapshots that the table still has, the newest first."""
    # Two commits may fall into one millisecond, so the sequence number comes first.
    newest_first = sorted(
        table.snapshots(),
        key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms),
        reverse=True,
    )
    return [_info(snapshot, table) for snapshot in newest_first[:limit]]


def current_snapshot(table: Table) -> SnapshotInfo | None:
    """Return the current snapshot; None for a table without one."""
    current = table.current_snapshot()
    return None if current is None else _info(current, table)


def _info(snapshot: PyIcebergSnapshot, table: Table) -> SnapshotInfo:
    summary: dict[str, str] = {}
    if snapshot.summary is not None:
        operation = {"operation": snapshot.summary.operation.value}
        summary = {**operation, **snapshot.summary.additional_properties}
    return SnapshotInfo(
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=snapshot.parent_snapshot_id,
        timestamp_ms=snapshot.timestamp_ms,
        manifest_list=snapshot.manifest_list,
        summary=summary,
        is_current=snapshot.snapshot_id == table.metadata.current_snapshot_id,
        refs=tuple(
            sorted(
                name
                for name, reference in table.refs().items()
                if reference.snapshot_id == snapshot.snapshot_id
            )
        ),
    )
