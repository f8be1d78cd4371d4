"""One commit: the files and the mark, both or neither, and never twice."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from icestream.contracts.offset import BatchMark, superseded_error
from icestream.contracts.sink import Commit
from icestream.errors import (
    CheckpointLostError,
    CommitConflictError,
    CommitUnknownError,
    IcestreamError,
)
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.java import (
    COMMIT_FAILED,
    RUN_AGAIN,
    VALIDATION_FAILED,
    java_class,
    java_errors,
    java_message,
    refuse_dropped,
)
from icestream.sinks.iceberg.java_table import Fence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.sinks.iceberg.java_table import JavaTable, TableChange
    from icestream.sinks.iceberg.ledger import MarkSnapshot

logger = logging.getLogger(__name__)


def commit_once(
    table: JavaTable,
    change: TableChange,
    mark: BatchMark,
    rows: int,
    *,
    seen: str | None,
    recorded: MarkSnapshot | None,
    properties: Mapping[str, str],
    where: str,
) -> tuple[Commit, MarkSnapshot | None]:
    """Make a change under a mark; return what it did, and the snapshot recorded with the mark.

    Args:
        table: the table.
        change: what happens to it.
        mark: the batch.
        rows: how many rows of the stream that is.
        seen: the pipeline's mark that we last saw in the table; any other one fences us off.
        recorded: the snapshot of that mark, which the table's history must still include; None
            where it does not matter.
        properties: further lines for the snapshot's summary.
        where: the batch's place, for messages.
    """
    started = time.monotonic()
    key, text = ledger.property_key(mark.pipeline), mark.to_json()
    fence = Fence(table, key, seen, recorded, change.branch)
    summary = {**properties, **ledger.snapshot_summary(mark)}
    snapshot_key = ledger.snapshot_property_key(mark.pipeline)
    try:
        made: MarkSnapshot | None = table.commit(change, summary, {key: text}, fence, snapshot_key)
    except java_errors() as exc:
        _resolve_failed_commit(exc, table, fence, key=key, text=text, seen=seen, where=where)
        made = ledger.read_mark_snapshot(dict(table.java.properties()), mark.pipeline)
    snapshot_id = made.snapshot if made is not None else None
    # Asked once when the change is built, then once for each time it had to be built again.
    retries = max(fence.attempts - 1, 0)
    return _commit_report(change, rows, snapshot_id, retries=retries, started=started), made


def _commit_report(
    change: TableChange, rows: int, snapshot_id: int | None, *, retries: int, started: float
) -> Commit:
    files = [*change.data_files, *change.deletes]
    return Commit(
        snapshot_id=snapshot_id,
        rows=rows,
        bytes=sum(file["file-size-in-bytes"] for file in change.data_files),
        files=len(files),
        retries=retries,
        seconds=time.monotonic() - started,
    )


def commit_unmarked(
    table: JavaTable, change: TableChange, rows: int, *, properties: Mapping[str, str], where: str
) -> Commit:
    """Make a change that belongs to no batch; whoever made it knows what was written."""
    started = time.monotonic()
    try:
        snapshot_id = table.commit(change, properties, {}, None).snapshot
    except java_errors() as exc:
        if java_class(exc) == VALIDATION_FAILED:
            raise _stale_error(exc, where) from exc
        kind = CommitConflictError if java_class(exc) == COMMIT_FAILED else CommitUnknownError
        raise kind(
            f"the commit broke off: {java_message(exc)}",
            where=where,
            todo="Look at the table's newest snapshot before writing the rows again.",
        ) from exc
    return _commit_report(change, rows, snapshot_id, retries=0, started=started)


def _resolve_failed_commit(
    exc: Exception,
    table: JavaTable,
    fence: Fence,
    *,
    key: str,
    text: str,
    seen: str | None,
    where: str,
) -> None:
    """Find out what became of a commit that raised; return only if the table holds it."""
    if fence.lost_history is not None:
        raise CheckpointLostError(
            f"{fence.lost_history}; the rows that this pipeline committed are no longer all there",
            where=where,
            todo=RUN_AGAIN,
        ) from exc
    if fence.is_refused and fence.found_mark != text:
        raise _superseded_error(fence.found_mark, key, where) from exc
    try:
        found = table.read_property(key)
    except java_errors() as lost:
        refuse_dropped(lost, table.exists, where)
        raise CommitUnknownError(
            f"no answer to the commit, and the table can't be asked: {java_message(lost)}",
            where=where,
            todo="Its files are kept. The batch is looked up and, if it is not there, "
            "replayed at the next start.",
        ) from exc
    if found == text:
        logger.warning("%s: the answer to the commit was lost, but the table holds it", where)
        return
    if found != seen:
        raise _superseded_error(found, key, where) from exc
    if java_class(exc) == COMMIT_FAILED:
        attempts = table.commit_attempts()
        conflict = CommitConflictError(
            f"commit refused {attempts} times, other writers moved the table",
            where=where,
            todo="Nothing was written; the batch is replayed at the next start. Use one "
            "writer a table, or partition so that writers don't meet.",
        )
        conflict.retries = attempts - 1
        raise conflict from exc
    if java_class(exc) == VALIDATION_FAILED:
        raise _stale_error(exc, where) from exc
    raise CommitUnknownError(
        f"the commit broke off: {java_message(exc)}",
        where=where,
        todo="The table does not hold the batch; it is replayed at the next start.",
    ) from exc


def _stale_error(exc: Exception, where: str) -> CommitConflictError:
    stale = CommitConflictError(
        f"the table changed under the batch: {java_message(exc)}",
        where=where,
        todo="Nothing was written; the batch is replayed at the next start. Use one upsert "
        "writer a table, and compact it between batches or partition by partition.",
    )
    stale.stale = True
    return stale


def _superseded_error(found: str | None, key: str, where: str) -> IcestreamError:
    if found is None:
        return CheckpointLostError(
            "the table no longer has the mark of this pipeline: it was dropped and recreated, or "
            "its properties were changed",
            where=where,
            todo=RUN_AGAIN,
        )
    return superseded_error(ledger.parse_mark(found, key), where)
