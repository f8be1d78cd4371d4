"""The marks of a table: which batch of which pipeline it holds.

The newest mark of each pipeline is a table property, written in the same commit as the rows. Any
tool may expire a snapshot, and its summary with it; properties stay. Each
snapshot's summary tells people which batch it holds, in a few hundred bytes: every metadata file
repeats the summaries of all snapshots, so offsets, which may be large, are not among them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import MAX_SHORT_TEXT, BatchMark, short_text
from icestream.errors import CorruptStateError, ForeignTableError
from icestream.sinks.iceberg.options import MAIN
from icestream.sinks.iceberg.properties import CREATED_BY, SOURCE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.catalog import Identifier

PREFIX = "icestream.mark."


def property_key(pipeline: str) -> str:
    """Return the table property that holds a pipeline's newest mark."""
    return PREFIX + pipeline


def read_mark(properties: Mapping[str, str], pipeline: str) -> BatchMark | None:
    """Return a pipeline's newest mark, or None if it never wrote to the table."""
    text = properties.get(property_key(pipeline))
    return None if text is None else parse_mark(text, property_key(pipeline))


def read_marks(properties: Mapping[str, str]) -> dict[str, BatchMark]:
    """Return the newest mark of every pipeline that wrote to the table."""
    return {
        key.removeprefix(PREFIX): parse_mark(text, key)
        for key, text in sorted(properties.items())
        if key.startswith(PREFIX)
    }


def parse_mark(text: str, key: str) -> BatchMark:
    """Parse a mark; an invalid one is an error, never skipped."""
    try:
        return BatchMark.from_json(text)
    except (ValueError, TypeError) as exc:
        raise CorruptStateError(
            f"table property {key!r} is not a mark of icestream: {text!r}",
            todo="Restore the property from an older metadata file of the table, or unset it to "
            "start the pipeline over.",
        ) from exc


# A line of a snapshot's summary: where the pipeline's previous commit to the table ended.
START = "icestream.start"


def snapshot_summary(mark: BatchMark, held: BatchMark | None = None) -> dict[str, str]:
    """Return the summary lines that describe the batch; large offsets are truncated.

    Args:
        mark: the mark of the batch.
        held: the pipeline's newest mark that the table held before.
    """
    start = mark.start
    if held is not None and held.query_id == mark.query_id and held.epoch < mark.epoch:
        # A batch without rows commits nothing, so the next commit covers its offsets too.
        start = held.end
    facts = {
        "icestream.pipeline": mark.pipeline,
        "icestream.query-id": mark.query_id,
        "icestream.epoch": str(mark.epoch),
        "icestream.source": mark.source[:MAX_SHORT_TEXT],
        START: short_text(start),
        "icestream.position": short_text(mark.end),
        "icestream.rows": str(mark.rows),
        "icestream.instance": mark.instance,
    }
    optional = {"records": mark.records, "bad": mark.bad, "span": mark.span, "load": mark.load}
    return facts | {f"icestream.{name}": str(value) for name, value in optional.items() if value}


def covers(held: BatchMark | None, mark: BatchMark) -> bool:
    """Tell whether a table whose newest mark is `held` already has the batch of `mark`."""
    # A wiped checkpoint restarts epochs at 0 under a new query id, so an epoch left by another
    # query says nothing about this batch.
    return held is not None and held.query_id == mark.query_id and mark.epoch <= held.epoch


def is_own_table(properties: Mapping[str, str], pipeline: str) -> bool:
    """Tell whether a pipeline created a table, wrote to it, or prepared it as a mirror."""
    keys = (property_key(pipeline), SOURCE_COLUMNS + pipeline)
    return properties.get(CREATED_BY) == pipeline or any(key in properties for key in keys)


def foreign_table_error(identifier: Identifier) -> ForeignTableError:
    """Return the error for a table that only data names, and that somebody else created."""
    return ForeignTableError(
        "the table exists, and this pipeline did not create it",
        todo="If the pipeline may write to it, list it in the sink: `allowed_tables: "
        f"[{'.'.join(identifier)}]`.",
    )


SNAPSHOT_PREFIX = "icestream.mark-snapshot."
# Table property set by Nessie's REST server, which exposes only the newest snapshot.
NESSIE = "nessie.catalog.content-id"


@dataclass(frozen=True)
class MarkSnapshot:
    """The snapshot that was committed together with a mark.

    Attributes:
        table: UUID of the table.
        snapshot: id of the snapshot. Iceberg chooses it once for all attempts.
        sequence: its sequence number in the first attempt; a retry can only raise it.
    """

    table: str
    snapshot: int
    sequence: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


def snapshot_property_key(pipeline: str) -> str:
    """Return the table property that holds the snapshot of a pipeline's newest mark."""
    return SNAPSHOT_PREFIX + pipeline


def read_mark_snapshot(properties: Mapping[str, str], pipeline: str) -> MarkSnapshot | None:
    """Return the snapshot of a pipeline's newest mark; None if none was recorded.

    Raises:
        CorruptStateError: the property holds something else.
    """
    key = snapshot_property_key(pipeline)
    text = properties.get(key)
    if text is None:
        return None
    try:
        return MarkSnapshot(**json.loads(text))
    except (ValueError, TypeError) as exc:
        raise CorruptStateError(
            f"table property {key!r} is not a snapshot recorded by icestream: {text!r}",
            todo="Restore the property from an older metadata file of the table, or unset it if "
            "the table was neither replaced nor rolled back.",
        ) from exc


def head_mark_snapshot(table: Any, branch: str) -> MarkSnapshot | None:
    """Return the snapshot of a Java table that a commit to a branch builds on, if there is one."""
    head = _head(table, branch)
    if head is None:
        return None
    return MarkSnapshot(_uuid(table), int(head.snapshotId()), int(head.sequenceNumber()))


def find_lost_history(
    jvm: Any, table: Any, recorded: MarkSnapshot | None, branch: str
) -> str | None:
    """Return why the history of a branch lacks the recorded snapshot; None if it has it.

    Args:
        jvm: Spark's JVM.
        table: the Java table, as it was last refreshed.
        recorded: the snapshot of the pipeline's mark; None if an older version recorded none.
        branch: the branch that the next commit extends.
    """
    if recorded is None:
        return None
    if _uuid(table) != recorded.table:
        return "the table was dropped, and another one was created under its name"
    head = _head(table, branch)
    if head is not None and (
        _includes(jvm, table, head, recorded) or _hides_history(table, head, recorded)
    ):
        return None
    if branch != MAIN and table.snapshot(branch) is None:
        return f"branch {branch!r} was dropped"
    if head is None or _begins_after(table, head, recorded):
        return "the table was replaced, e.g. by `CREATE OR REPLACE TABLE`"
    return f"branch {branch!r} was rolled back"


def _uuid(table: Any) -> str:
    # `Table.uuid` fails where a table of format v1 has none.
    return str(table.operations().current().uuid())


def _head(table: Any, branch: str) -> Any:
    # Iceberg creates a missing branch from the head of the main branch.
    return table.snapshot(branch) or table.currentSnapshot()


def _includes(jvm: Any, table: Any, head: Any, recorded: MarkSnapshot) -> bool:
    """Tell whether the recorded snapshot is in the history of another one, or expired from it."""
    if int(head.snapshotId()) == recorded.snapshot:
        return True
    snapshot = table.snapshot(recorded.snapshot)
    util = jvm.org.apache.iceberg.util.SnapshotUtil
    if snapshot is not None and util.isAncestorOf(table, head.snapshotId(), recorded.snapshot):
        return True
    oldest = _oldest_ancestor(table, head)
    if oldest.parentId() is None:
        return False
    if snapshot is not None and _oldest_ancestor(table, snapshot).parentId() == oldest.parentId():
        return False  # both histories come from one expired snapshot, so they are two branches
    # Older snapshots were expired, and all that remain are newer than the recorded one, which only
    # a tag may have kept. Format v1 has no sequence numbers.
    return int(oldest.sequenceNumber()) > recorded.sequence or not recorded.sequence


def _hides_history(table: Any, head: Any, recorded: MarkSnapshot) -> bool:
    """Tell whether the catalog exposes a newer snapshot and none of its ancestors."""
    is_newer = int(head.sequenceNumber()) > recorded.sequence
    return is_newer and head.parentId() is None and NESSIE in table.properties()


def _begins_after(table: Any, head: Any, recorded: MarkSnapshot) -> bool:
    oldest = _oldest_ancestor(table, head)
    return oldest.parentId() is None and int(oldest.sequenceNumber()) > recorded.sequence


def _oldest_ancestor(table: Any, head: Any) -> Any:
    """Return the oldest snapshot that can be reached from a branch's newest one."""
    while (parent := head.parentId()) is not None:
        before = table.snapshot(parent)
        if before is None:
            return head
        head = before
    return head
