"""The events that the engine emits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class BatchWritten:
    """A batch was written to the table.

    Attributes:
        pipeline: the pipeline's name.
        table: the table's full name.
        epoch: the number of the batch within its query.
        rows: how many rows were written.
        bytes: the size of the data files.
        files: how many data files were written.
        write_secs: how long writing the files took.
        commit_secs: how long the commit took, including retries.
        retries: attempts that failed because another writer committed first.
        snapshot_id: the snapshot that the commit created; None if it created none.
        newest_row_at: event or arrival time of the newest row, in epoch seconds, if known.
        of_many: whether the batch went to several tables, see `MultiTableBatchWritten`.
    """

    pipeline: str
    table: str
    epoch: int
    rows: int
    bytes: int
    files: int
    write_secs: float
    commit_secs: float
    retries: int = 0
    snapshot_id: int | None = None
    newest_row_at: float | None = None
    of_many: bool = False


@dataclass(frozen=True)
class BatchSkipped:
    """A replayed batch was already in the table; `of_many` as in `BatchWritten`."""

    pipeline: str
    table: str
    epoch: int
    of_many: bool = False


@dataclass(frozen=True)
class MultiTableBatchWritten:
    """A batch was written to all its tables; each table has its own `BatchWritten` before.

    Attributes:
        pipeline: the pipeline's name.
        epoch: number of the batch within its query.
        tables: tables that were written to.
        held: tables that held the batch already.
        rows: rows written.
        files: data files made.
        write_secs: how long it took until every row was put aside.
        commit_secs: how long it took from there, the last commit included.
    """

    pipeline: str
    epoch: int
    tables: int
    held: int
    rows: int
    files: int
    write_secs: float
    commit_secs: float


@dataclass(frozen=True)
class CommitFailed:
    """A batch could not be committed, even after `retries` retries."""

    pipeline: str
    table: str
    retries: int
    reason: str


@dataclass(frozen=True)
class RecordsFailed:
    """Records could not be decoded, cast or validated; `dead_letters` of them were kept."""

    pipeline: str
    table: str
    count: int
    dead_letters: int


@dataclass(frozen=True)
class ExpectationUnmet:
    """Rows of a batch fail an expectation; `RecordsFailed` counts them too."""

    pipeline: str
    table: str
    expectation: str
    count: int


@dataclass(frozen=True)
class LagMeasured:
    """How far a pipeline is behind its source.

    Attributes:
        pipeline: the pipeline's name.
        rows: how many rows are not read yet.
        seconds: the age of the oldest of them; None if it is unknown.
        measures: further measurements of the source, such as the lag of its replication slot.
    """

    pipeline: str
    rows: int
    seconds: float | None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineRestarted:
    """A pipeline was restarted after a transient fault."""

    pipeline: str
    attempt: int
    reason: str


Event: TypeAlias = (
    BatchWritten
    | BatchSkipped
    | MultiTableBatchWritten
    | CommitFailed
    | RecordsFailed
    | ExpectationUnmet
    | LagMeasured
    | PipelineRestarted
)
