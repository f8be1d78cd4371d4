"""The commit: what each commit mode does to the table, and the atomic commit of files and mark.

This module does not import PyIceberg, which planning does not need.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

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
from icestream.sinks.iceberg.options import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.ledger import MarkSnapshot
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.table import TargetTable
    from icestream.sinks.iceberg.writer import IcebergWriter

logger = logging.getLogger(__name__)


EVERY_ROW = "true"  # a filter that matches every row, as JSON


class Mode(ABC):
    """One `commit_mode`, for one sink.

    Args:
        options: the sink's options.
        target: the sink's table.
    """

    replaces: ClassVar[bool] = False  # whether a load replaces rows of the table
    sorts_itself: ClassVar[bool] = False  # whether it needs rows in the order of the stream
    task_modules: ClassVar[tuple[str, ...]] = ("icestream.sinks.iceberg.writer",)

    def __init__(self, options: IcebergOptions, target: TargetTable) -> None:
        self.options = options
        self.target = target

    def reset(self) -> None:  # noqa: B027 - most modes keep no state
        """Forget everything about the table: it was opened again, maybe by another client."""

    def table_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the table for rows with `columns`."""
        return columns

    def stream_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the stream for a table with `columns`."""
        return columns

    @abstractmethod
    def writer(self) -> TaskWriter:
        """Return the writer that tasks use."""

    @abstractmethod
    def commit(self, files: list[WrittenFile], mark: BatchMark | None) -> Commit:
        """Apply what the tasks wrote to the table, in one commit with the mark.

        Rows without a mark belong to no pipeline.
        """

    def discard(self, files: list[WrittenFile]) -> None:
        """Remove what the tasks wrote: the batch is retried or given up."""
        self.target.delete_files(written_paths(files))


def written_paths(files: Iterable[WrittenFile]) -> list[str]:
    """Return every file that tasks wrote: data files, or staged rows and the keys beside them."""
    paths = [file.metadata.get(key) for file in files for key in ("file-path", "keys-path")]
    return [path for path in paths if path is not None]


class Append(Mode):
    """Adds the data files that the tasks wrote."""

    def writer(self) -> IcebergWriter:
        return self.target.writer()

    def commit(self, files: list[WrittenFile], mark: BatchMark | None) -> Commit:
        change = TableChange(added=[file.metadata for file in files], branch=self.options.branch)
        return self.target.commit(change, mark, rows=sum(file.rows for file in files))


@dataclass(frozen=True)
class TableChange:
    """The changes of one commit. Files are in the JSON form of Iceberg's specification.

    Attributes:
        added: data files to add.
        partition_replacements: data files that replace everything in their partitions.
        overwrite_filter: an expression, as JSON; the rows that it matches are removed.
        deletes: delete files to add.
        replaced_deletes: delete files to remove; `deletes` includes their content.
        referenced_files: paths of the data files that `deletes` refer to; the commit fails if
            one was removed.
        is_keyed: whether the change was computed from the keys that the table holds.
        base_snapshot_id: snapshot that it was computed on; None if the table was empty.
        branch: the branch to commit to.
        properties: table properties to set in the same commit.
        summary: further lines for the snapshot's summary.
    """

    added: Sequence[Mapping[str, Any]] = ()
    partition_replacements: Sequence[Mapping[str, Any]] = ()
    overwrite_filter: str | None = None
    deletes: Sequence[Mapping[str, Any]] = ()
    replaced_deletes: Sequence[Mapping[str, Any]] = ()
    referenced_files: Sequence[str] = ()
    is_keyed: bool = False
    base_snapshot_id: int | None = None
    branch: str = MAIN
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_append(self) -> bool:
        return not self.is_keyed

    @property
    def data_files(self) -> list[Mapping[str, Any]]:
        """Every data file that the commit adds."""
        return [*self.added, *self.partition_replacements]


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
    """Commit a change with a mark; return the commit, and the snapshot recorded with the mark.

    Args:
        table: the table.
        change: the change to commit.
        mark: the mark of the batch.
        rows: the number of rows from the stream.
        seen: the pipeline's mark that we last saw in the table; any other mark fences us off.
        recorded: the snapshot of that mark, which the table's history must still include; None
            if that does not matter.
        properties: further lines for the snapshot's summary.
        where: the pipeline, batch and table, for messages.
    """
    started = time.monotonic()
    key, text = ledger.property_key(mark.pipeline), mark.to_json()
    fence = Fence(table, key, seen, recorded, change.branch)
    held = None if seen is None else ledger.parse_mark(seen, key)
    summary = {**properties, **ledger.snapshot_summary(mark, held)}
    snapshot_key = ledger.snapshot_property_key(mark.pipeline)
    try:
        snapshot: MarkSnapshot | None = apply_change(
            table, change, summary, {key: text}, fence, snapshot_key
        )
    except java_errors() as exc:
        _resolve_failed_commit(exc, table, fence, key=key, text=text, seen=seen, where=where)
        snapshot = ledger.read_mark_snapshot(dict(table.java.properties()), mark.pipeline)
    snapshot_id = snapshot.snapshot if snapshot is not None else None
    # Iceberg calls the fence once when it builds the change, and again for each rebuild.
    retries = max(fence.attempts - 1, 0)
    return _commit_report(change, rows, snapshot_id, retries=retries, started=started), snapshot


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
    """Commit a change that belongs to no batch, so it cannot be looked up afterwards."""
    started = time.monotonic()
    try:
        snapshot_id = apply_change(table, change, properties, {}, None).snapshot
    except java_errors() as exc:
        if java_class(exc) == VALIDATION_FAILED:
            raise _stale_error(exc, where) from exc
        kind = CommitConflictError if java_class(exc) == COMMIT_FAILED else CommitUnknownError
        raise kind(
            f"the commit failed: {java_message(exc)}",
            where=where,
            todo="Check the table's newest snapshot before writing the rows again.",
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
    """Find out whether a commit that raised was applied; return only if it was."""
    if fence.lost_history is not None:
        raise CheckpointLostError(
            f"{fence.lost_history}; the rows that this pipeline committed are no longer all there",
            where=where,
            todo=RUN_AGAIN,
        ) from exc
    if fence.is_refused and fence.found_mark != text:
        raise _superseded_error(fence.found_mark, key, where) from exc
    try:
        current = table.read_property(key)
    except java_errors() as lost:
        refuse_dropped(lost, table.exists, where)
        raise CommitUnknownError(
            f"no answer to the commit, and the table can't be read: {java_message(lost)}",
            where=where,
            todo="The batch's files are kept. The next start checks whether the table holds the "
            "batch, and replays it if not.",
        ) from exc
    if current == text:
        logger.warning("%s: the answer to the commit was lost, but the table holds it", where)
        return
    if current != seen:
        raise _superseded_error(current, key, where) from exc
    if java_class(exc) == COMMIT_FAILED:
        attempts = table.commit_attempts()
        conflict = CommitConflictError(
            f"commit refused {attempts} times: other writers changed the table",
            where=where,
            todo="Nothing was written; the batch is replayed at the next start. Use one writer "
            "per table, or partition the table so that writers don't conflict.",
        )
        conflict.retries = attempts - 1
        raise conflict from exc
    if java_class(exc) == VALIDATION_FAILED:
        raise _stale_error(exc, where) from exc
    raise CommitUnknownError(
        f"the commit failed: {java_message(exc)}",
        where=where,
        todo="The table does not hold the batch; it is replayed at the next start.",
    ) from exc


def _stale_error(exc: Exception, where: str) -> CommitConflictError:
    stale = CommitConflictError(
        f"the table changed during the batch: {java_message(exc)}",
        where=where,
        todo="Nothing was written; the batch is replayed at the next start. Use one upsert "
        "writer per table, and compact it between batches or partition by partition.",
    )
    stale.stale = True
    return stale


def _superseded_error(mark: str | None, key: str, where: str) -> IcestreamError:
    if mark is None:
        return CheckpointLostError(
            "the table no longer has the mark of this pipeline: it was dropped and recreated, or "
            "its properties were changed",
            where=where,
            todo=RUN_AGAIN,
        )
    return superseded_error(ledger.parse_mark(mark, key), where)


class Fence:
    """Checks, inside every attempt of a commit, the mark that we last saw and its snapshot.

    Iceberg compares and swaps the table's metadata, and calls this on the metadata that it will
    swap. So no commit of another instance, no rollback and no replaced table goes unnoticed.

    Attributes:
        attempts: how often Iceberg called it.
        is_refused: whether the last call refused the commit.
        found_mark: the mark that the table had then.
        lost_history: why the table no longer holds the rows of the mark; None if it does.
    """

    def __init__(
        self,
        table: JavaTable,
        key: str,
        expected: str | None,
        recorded: MarkSnapshot | None,
        branch: str,
    ) -> None:
        self._table = table
        self._key = key
        self._expected = expected
        self._recorded = recorded
        self._branch = branch
        self.attempts = 0
        self.is_refused = False
        self.found_mark: str | None = None
        self.lost_history: str | None = None

    def validate(self, snapshots: object) -> bool:  # noqa: ARG002 - the interface's signature
        self.attempts += 1
        java = self._table.java
        self.found_mark = java.properties().get(self._key)
        self.is_refused = self.found_mark != self._expected
        if not self.is_refused:
            self.lost_history = ledger.find_lost_history(
                self._table.jvm, java, self._recorded, self._branch
            )
            self.is_refused = self.lost_history is not None
        return not self.is_refused

    def errorMessage(self) -> str:  # noqa: N802 - the interface's name
        return "the mark of this pipeline, or its snapshot, is not the one last seen"

    def toString(self) -> str:  # noqa: N802 - Java calls it for messages
        return f"Fence({self._key})"

    class Java:
        """Declares to Py4J the interface that this class implements."""

        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


def apply_change(
    table: JavaTable,
    change: TableChange,
    summary: Mapping[str, str],
    properties: Mapping[str, str],
    fence: Fence | None,
    snapshot_key: str | None = None,
) -> MarkSnapshot:
    """Commit a change, the snapshot's summary and table properties as one transaction.

    Args:
        table: the table.
        change: the change to commit.
        summary: further lines for the snapshot's summary.
        properties: table properties.
        fence: checks every attempt; None for no check.
        snapshot_key: the table property that records the new snapshot; None for none.

    Returns:
        The new snapshot.
    """
    transaction = table.java.newTransaction()
    for number, operation in enumerate(_operations(table, transaction, change)):
        for key, value in {**change.summary, **summary}.items():
            operation.set(key, value)
        if change.branch != MAIN:
            operation.toBranch(change.branch)
        if fence is not None and number == 0:
            operation.validateWith(fence)
        operation.commit()
    # What the transaction has staged so far; a retry stages the same snapshot id again.
    staged = ledger.head_mark_snapshot(transaction.table(), change.branch)
    assert staged is not None  # noqa: S101 - every operation stages a snapshot
    updated = {**change.properties, **properties}
    if snapshot_key is not None:
        updated[snapshot_key] = staged.to_json()
    if updated:
        update = transaction.updateProperties()
        for key, value in updated.items():
            update.set(key, value)
        update.commit()
    transaction.commitTransaction()
    return staged


def _operations(table: JavaTable, transaction: Any, change: TableChange) -> Iterator[Any]:
    """Yield the steps of a change; each is committed to the transaction before the next."""
    if change.overwrite_filter is not None:
        yield _overwrite(table, transaction, change)
        return
    if change.partition_replacements:
        replacement = transaction.newReplacePartitions()
        for file in change.partition_replacements:
            replacement.addFile(_file(table, file))
        yield replacement
    if change.added or not change.partition_replacements:
        yield _operation(table, transaction, change)


def _overwrite(table: JavaTable, transaction: Any, change: TableChange) -> Any:
    overwrite = transaction.newOverwrite()
    parser = table.jvm.org.apache.iceberg.expressions.ExpressionParser
    overwrite.overwriteByRowFilter(parser.fromJson(change.overwrite_filter, table.java.schema()))
    for file in change.added:
        overwrite.addFile(_file(table, file))
    return overwrite


def _operation(table: JavaTable, transaction: Any, change: TableChange) -> Any:
    if change.is_append:
        append = transaction.newAppend()
        for file in change.added:
            append.appendFile(_file(table, file))
        return append
    return _row_delta(table, transaction, change)


def _row_delta(table: JavaTable, transaction: Any, change: TableChange) -> Any:
    delta = transaction.newRowDelta()
    for file in change.added:
        delta.addRows(_file(table, file))
    for file in change.deletes:
        delta.addDeletes(_file(table, file))
    for file in change.replaced_deletes:
        delta.removeDeletes(_file(table, file))
    if change.base_snapshot_id is not None:
        delta.validateFromSnapshot(change.base_snapshot_id)
    # A row that another writer has added may have one of our keys; if a file was compacted away,
    # or another writer deleted rows of it, our positions are wrong.
    paths = table.jvm.java.util.ArrayList()
    for path in change.referenced_files:
        paths.add(path)
    delta.validateDataFilesExist(paths)
    delta.validateDeletedFiles()
    delta.validateNoConflictingDataFiles()
    delta.validateNoConflictingDeleteFiles()
    return delta


def _file(table: JavaTable, described: Mapping[str, Any]) -> Any:
    mapper = table.jvm.org.apache.iceberg.util.JsonUtil.mapper()
    parser = table.jvm.org.apache.iceberg.ContentFileParser
    return parser.fromJson(mapper.readTree(json.dumps(described)), table.java.specs())
