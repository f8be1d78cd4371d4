"""What happens in a pipeline, as the engine tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class BatchWritten:
    """A batch is in the table.

    Attributes:
        pipeline: the pipeline's name.
        table: the table's full name.
        epoch: number of the batch within its query.
        rows: rows written.
        bytes: bytes of the data files.
        files: data files made.
        write_secs: how long the files took to write.
        commit_secs: how long the commit took, its retries included.
        retries: attempts that another writer's commit spoiled.
        snapshot_id: the snapshot that the commit made; None if it made none.
        newest_row_at: when the newest row happened or arrived, in seconds since 1970, if known.
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
    """A replayed batch was in the table already; `of_many` as in `BatchWritten`."""

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
    """The table did not take a batch, after `retries` further attempts."""

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
    """Rows of a batch do not meet an expectation; they are among those of `RecordsFailed`."""

    pipeline: str
    table: str
    expectation: str
    count: int


@dataclass(frozen=True)
class LagMeasured:
    """How far a pipeline is behind its source.

    Attributes:
        pipeline: the pipeline's name.
        rows: rows that wait.
        seconds: how long the oldest has waited; None where it cannot be told.
        measures: what the source tells of itself, such as how far its replication slot is behind.
    """

    pipeline: str
    rows: int
    seconds: float | None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineRestarted:
    """A passing fault ended a pipeline, and it was started again."""

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
