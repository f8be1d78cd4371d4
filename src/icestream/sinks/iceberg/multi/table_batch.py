"""One table's part of a batch, from staged rows to the commit."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.contracts.sink import Commit, RefusedRows
from icestream.errors import (
    CheckpointLostError,
    CommitUnknownError,
    ConnectorError,
    CorruptStateError,
    IcestreamError,
    RefusedError,
    SupersededError,
    TransientError,
)
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.multi.routing import StagedRows
from icestream.sinks.iceberg.partition_terms import parse_partition_terms, parse_sort

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from icestream.contracts.catalog import Identifier
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import TaskWriter, WrittenFile
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.sink import IcebergTableSink


logger = logging.getLogger(__name__)

# Pauses before another attempt at a commit that failed without a trace in the table.
RETRY_DELAYS_SECS = (0.1, 0.2, 0.4)
# Raised before the table's metadata is swapped, or by a catalog that did not swap it. Refused
# credentials and a failing store are no fault of one table.
DEFINITE_FAILURES = ("BadRequestException", "IllegalArgumentException")
# Faults of the catalog or the store that concern every table: the batch is replayed later.
CATALOG_WIDE_ERRORS = (TransientError, RefusedError)
# Faults that are not of one table, or must never be ignored: the whole batch stops.
BATCH_STOPPING_ERRORS = (
    *CATALOG_WIDE_ERRORS,
    SupersededError,
    CheckpointLostError,
    CorruptStateError,
)


@dataclass
class TableBatch:
    """The rows of a batch for one table, and their progress towards the commit."""

    table: Identifier
    sink: IcebergTableSink
    staged: list[StagedRows] = field(default_factory=list)
    filled_columns: set[str] = field(default_factory=set)
    is_held: bool = False
    error: IcestreamError | None = None
    writer: TaskWriter | None = None
    files: list[WrittenFile] = field(default_factory=list)
    commit: Commit | None = None

    @property
    def name(self) -> str:
        return self.sink.identity()

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.staged)

    @property
    def is_ready(self) -> bool:
        """Whether there is still something to do for the table."""
        return not self.is_held and self.error is None

    def columns(self, stream: pa.Schema) -> pa.Schema:
        """Return the columns of the stream that the table needs.

        A stream that is a union of events has columns that most of its tables never fill.
        """
        import pyarrow as pa

        needed = self.filled_columns | needed_columns(self.sink.options)
        return pa.schema([one for one in stream if one.name in needed or not one.nullable])

    def refuse(self, error: IcestreamError, mark: BatchMark) -> None:
        """Record that the table refuses its rows; raise an error that concerns the whole batch.

        The table is added to the error.
        """
        error.at(f"pipeline {mark.pipeline!r}, batch {mark.epoch}, table {self.name}")
        if isinstance(error, BATCH_STOPPING_ERRORS) or self._is_unclear(error):
            raise error
        logger.warning("%s", error)
        self.error = error

    def commit_once(self, mark: BatchMark) -> Commit:
        """Commit the files; look up the result of an attempt that failed, and retry."""
        for pause in RETRY_DELAYS_SECS:
            try:
                return self.sink.commit(self.files, mark)
            except CommitUnknownError as exc:  # noqa: PERF203 - one attempt each
                if self._holds(mark, exc):
                    return Commit(None, mark.rows, 0, len(self.files), 0, 0.0)
                logger.info("%s: %s; retrying", self.name, exc.what)
                time.sleep(pause)
        return self.sink.commit(self.files, mark)

    def _holds(self, mark: BatchMark, unclear: CommitUnknownError) -> bool:
        from icestream.sinks.iceberg.java import java_errors

        key = ledger.property_key(mark.pipeline)
        try:
            current = self.sink.target.handle.read_property(key)
        except java_errors() as lost:
            raise TransientError(unclear.what, where=unclear.where, todo=unclear.todo) from lost
        return current is not None and ledger.covers(ledger.parse_mark(current, key), mark)

    def _is_unclear(self, error: IcestreamError) -> bool:
        """Tell whether a commit that the table does not hold may still arrive."""
        if not isinstance(error, CommitUnknownError):
            return False
        from icestream.sinks.iceberg.java import java_class

        cause = error.__cause__
        if not isinstance(cause, Exception) or not java_class(cause).endswith(DEFINITE_FAILURES):
            return True
        return isinstance(self.sink.explain(cause), CATALOG_WIDE_ERRORS)

    def refused(self) -> RefusedRows:
        assert self.error is not None  # noqa: S101 - called only after an error
        return RefusedRows(self.name, self.error, self.rows, tuple(self.staged))


def group_by_table(
    files: Iterable[WrittenFile],
    sinks: Mapping[Identifier, IcebergTableSink],
    io_properties: Mapping[str, str],
) -> list[TableBatch]:
    """Group the rows that the tasks staged by table."""
    batches = {table: TableBatch(table, sink) for table, sink in sinks.items()}
    for file in files:
        for table, staged in file.metadata["tables"].items():
            batch = batches[table]
            blocks = tuple(staged.blocks)
            batch.staged.append(StagedRows(file.metadata["file-path"], blocks, io_properties))
            batch.filled_columns |= staged.filled_columns
    return list(batches.values())


def needed_columns(options: IcebergOptions) -> set[str]:
    """Return the columns that a table always needs, whatever its rows hold."""
    named = [*options.key_fields, *(term.column for term in parse_partition_terms(options))]
    named += [term.column for term in parse_sort(options)]
    named += [name for name in (options.sequence_field, options.op_field) if name is not None]
    return {UNCHANGED_COLUMNS, *named, *(name.split(".")[0] for name in named)}


def catalog_refusal_error(message: str) -> ConnectorError:
    """Return the error for a table that the catalog does not let us create or read."""
    return ConnectorError(
        f"the catalog refused the table: {message}",
        todo="Check the table name and your catalog permissions.",
    )
