"""Branches of a table, by Iceberg's Java API."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icestream.sinks.iceberg.java_table import JavaTable


def head(table: JavaTable, branch: str) -> int | None:
    """Return the id of a branch's newest snapshot; None while there is no such branch."""
    snapshot = table.java.snapshot(branch)
    return None if snapshot is None else int(snapshot.snapshotId())


def is_ancestor(table: JavaTable, older: int, newer: int) -> bool:
    """Tell whether one snapshot is another, or came before it on the same line."""
    return bool(
        table.jvm.org.apache.iceberg.util.SnapshotUtil.isAncestorOf(table.java, newer, older)
    )


def fast_forward(table: JavaTable, target: str, branch: str) -> None:
    """Move a branch to where another one stands, in one commit; made when missing."""
    table.java.manageSnapshots().fastForwardBranch(target, branch).commit()


def holds_older_specs(table: JavaTable, branch: str) -> bool:
    """Tell whether a branch has data files that are not partitioned as the table is now."""
    java = table.java
    if java.specs().size() == 1:
        return False
    snapshot = java.snapshot(branch) or java.currentSnapshot()
    if snapshot is None:
        return False
    current = java.spec().specId()
    return any(
        manifest.partitionSpecId() != current
        and (manifest.hasAddedFiles() or manifest.hasExistingFiles())
        for manifest in snapshot.dataManifests(java.io())
    )
