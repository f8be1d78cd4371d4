"""The sink contract: files written by tasks, then one commit with its mark.

It separates the engine from the Iceberg sink and is not a role for plugins: the sink is Iceberg by
design.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from icestream.contracts.source import OptionsT
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.faults import CheckStep
    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.options import Options
    from icestream.errors import IcestreamError


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task wrote, not yet committed.

    `metadata` is for the sink alone: JSON for a data file; staged rows may add bytes.
    """

    rows: int
    bytes: int
    metadata: dict[str, Any]


@dataclass(frozen=True)
class RowExpectation:
    """A condition that every row should meet. A result of NULL counts as met.

    Attributes:
        name: its name in counters and dead letters.
        expr: the condition, in Spark SQL over the table's columns.
        on_fail: `drop`, `dead_letter` or `fail`.
    """

    name: str
    expr: str
    on_fail: str


@dataclass(frozen=True)
class Commit:
    """The result of a commit."""

    snapshot_id: int | None
    rows: int
    bytes: int
    files: int
    retries: int
    seconds: float


@dataclass(frozen=True)
class LostRows:
    """Rows that a pipeline committed and that its table no longer holds.

    Attributes:
        table: the table's full name.
        problem: what happened to the table.
        remedy: how the user can restore the rows; empty if only the source has them.
        source_table: the table's name in the source, if it can be loaded again from there.
    """

    table: str
    problem: str
    remedy: str = ""
    source_table: tuple[str, ...] | None = None


# The column with the name of a row's table, if Spark computes it. It never reaches a table.
ROUTE = "__icestream_route"


@dataclass(frozen=True)
class RefusedRows:
    """Rows of a batch that one of the tables refused, after every attempt.

    Attributes:
        table: the table's full name.
        error: the reason.
        rows: the number of rows.
        parts: each yields some of the rows when called in a task, with the column `ROW` if the
            rows had it.
    """

    table: str
    error: IcestreamError
    rows: int
    parts: tuple[Callable[[], Iterator[pa.RecordBatch]], ...]


@dataclass(frozen=True)
class TableCommits:
    """The result of a batch, table by table.

    Attributes:
        commits: the commit of each table, by the table's full name.
        held: the tables that already held the batch.
        refused: the tables that refused it.
    """

    commits: Mapping[str, Commit]
    held: tuple[str, ...] = ()
    refused: tuple[RefusedRows, ...] = ()


def sum_commits(commits: Mapping[str, Commit]) -> Commit | None:
    """Add up the commits of several tables; None if there was none."""
    if not commits:
        return None
    made = commits.values()
    return Commit(
        snapshot_id=None,
        rows=sum(commit.rows for commit in made),
        bytes=sum(commit.bytes for commit in made),
        files=sum(commit.files for commit in made),
        retries=sum(commit.retries for commit in made),
        seconds=max(commit.seconds for commit in made),  # they ran concurrently
    )


class TaskWriter(ABC):
    """Writes rows to files, in a task. It is pickled and sent there, so it keeps no connection.

    A task may run twice or die half-way: files that are never committed are not part of the table,
    and their names never clash with those of another attempt.
    """

    @abstractmethod
    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write every batch and return the closed files."""


class Sink(ABC, Generic[OptionsT]):
    """One table or many, fed batch by batch.

    Building a sink touches no network. The engine then calls, in one thread: `open` once; for
    each batch `holds`, and unless it does `columns`, `prepare`, `writer` and `commit_batch`. A
    crash between any two calls leaves each table as it was before its commit or as it is after,
    and the engine repeats the batch with the same mark.

    With many tables, whether all of them hold a batch is unknown before its rows are read: `holds`
    is then false, and `last_mark` is the newest mark of any table.

    Attributes:
        may_refuse_rows: whether a table may refuse its rows in `commit_batch`. Dead letters are
            then committed after the tables, and a dead-letter table that holds a batch proves that
            the whole batch is committed. Otherwise they are committed before the table.
        is_mirror: whether the tables follow those of a source: each block of changes names its
            table, and `prepare_tables` takes the place of `prepare`.
        keeps_changes: whether a mirror keeps every change as a row, instead of applying it by key.
        options: the sink's options.
        catalog: the catalog of its tables.
        name: the sink's name in the file.
    """

    options_type: ClassVar[type[Options]]
    may_refuse_rows: ClassVar[bool] = False
    is_mirror: ClassVar[bool] = False
    keeps_changes: bool = False
    task_modules: tuple[str, ...] = ()  # modules that `writer` imports in a task

    def __init__(self, options: OptionsT, catalog: Catalog[Any], name: str) -> None:
        self.options = options
        self.catalog = catalog
        self.name = name

    @classmethod
    def build(
        cls, options: Any, catalog: Catalog[Any], name: str, *, changes: bool = False
    ) -> Sink[Any]:
        """Return the sink for the options: one of this class, or of another that implements them.

        Args:
            options: the sink's options.
            catalog: the catalog of its tables.
            name: the sink's name in the file.
            changes: whether the source yields changes to tables of its own.
        """
        if changes:
            raise PlanError(
                "a sink of this kind does not take changes",
                todo="Let the pipeline end in an `iceberg` sink.",
            )
        return cls(options, catalog, name)

    @abstractmethod
    def identity(self) -> str:
        """Name the table for messages: `lake.sales.orders`."""

    @abstractmethod
    def single_table(self) -> Identifier | None:
        """Return the table's name in its catalog; None if rows or changes name their tables."""

    @abstractmethod
    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None:
        """Connect, and read the newest mark of the pipeline from the table, if there is a table.

        Args:
            spark: the session.
            pipeline: name of the pipeline that writes.
            cache: a local folder of the driver for data that can be rebuilt; a temporary one if
                absent. Tasks cannot reach it: on a cluster they run on other machines.
        """

    @abstractmethod
    def last_mark(self) -> BatchMark | None:
        """Return the newest mark of the pipeline that the table held when it was last read."""

    def marks(self) -> list[BatchMark]:
        """Return the newest mark of the pipeline in each table that has one."""
        mark = self.last_mark()
        return [] if mark is None else [mark]

    @abstractmethod
    def foreign_marks(self) -> list[BatchMark]:
        """Return the newest mark of every other pipeline that wrote to the table."""

    @abstractmethod
    def holds(self, mark: BatchMark) -> bool:
        """Tell whether the table already holds the batch. A shortcut: the fence is in `commit`."""

    @abstractmethod
    def columns(self) -> pa.Schema | None:
        """Return the table's columns, or None while there is no table."""

    @abstractmethod
    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:
        """Make the table fit rows with these columns: create it, change it, or refuse.

        After a crash, the same rows still fit the table when the batch is replayed.

        Args:
            columns: the columns of the rows.
            declared: whether the source declares them, so that the list is complete; otherwise a
                column that is missing now may come with the next batch.

        Raises:
            SchemaMismatchError: the rows do not fit and the options forbid changing the table.
        """

    def prepare_tables(self, schemas: Sequence[pa.Schema]) -> None:
        """Prepare the tables of a mirror for blocks of these schemas: create and change them.

        Called before each batch. Blocks of other schemas make the writer raise
        `NewChangeSchemasError`; the batch is then read again, with them among `schemas`.
        """
        raise NotImplementedError(
            f"{self.identity()} is no mirror: it got {len(schemas)} schemas of changes"
        )

    def refuse_columns(self, columns: pa.Schema) -> None:
        """Refuse rows that a new table could not hold. Needs no connection, for a dry run.

        Raises:
            SchemaMismatchError: a table can't have these columns, or the options don't fit them.
        """

    def rows_by_table(self, rows: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Return rows, or a block of changes, by the full name of their table.

        Works without a connection, for a dry run. Rows that `row_faults` finds are not among them.
        """
        return {self.identity(): rows}

    def refuses_column(self, name: str) -> str | None:  # noqa: ARG002
        """Return why the table cannot have a column of this name; None if it can."""
        return None

    def keeps_missing_fields(self) -> bool:
        """Tell whether a row keeps the table's values for fields that its record lacks.

        The rows then have the column `UNCHANGED_COLUMNS`, which names those fields.
        """
        return False

    def adds_columns(self) -> bool:
        """Tell whether the table may gain new columns of the stream."""
        return True

    def widens_columns(self) -> bool:
        """Tell whether a column may be widened, or made optional, for a value that does not fit."""
        return False

    def sorts(self) -> bool:
        """Tell whether Spark has to sort the rows of each file."""
        return False

    def sort_columns(self) -> list[Any]:
        """Return the order of rows within a file, as Spark's columns; empty for none."""
        return []

    def expectations(self) -> tuple[RowExpectation, ...]:
        """Return the conditions that rows should meet; Spark evaluates them."""
        return ()

    def computed_columns(self) -> Mapping[str, str]:
        """Return extra columns that the writer needs, each with its SQL expression."""
        return {}

    def row_faults(self) -> Callable[[pa.RecordBatch], pa.Array | None] | None:
        """Return a function that, in a task, finds the rows that the table refuses; None for none.

        It returns a reason for each bad row of a batch, or None if the batch has none. Called if
        bad rows do not fail the batch, and again after `prepare`; `writer` refuses such rows.
        """
        return None

    @abstractmethod
    def writer(self) -> TaskWriter:
        """Return a writer for the table as it is now."""

    @abstractmethod
    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        """Add the files and the mark to the table atomically.

        Raises:
            SupersededError: another instance of the pipeline wrote since we last looked.
            CommitConflictError: every attempt conflicted with another writer. Nothing was written.
            CommitUnknownError: the commit got no answer, and the table could not be read.
        """

    def commit_batch(
        self,
        files: list[WrittenFile],
        mark: BatchMark,
        on_commit: Callable[[], None],  # noqa: ARG002 - nothing follows the commit of one table
    ) -> TableCommits:
        """Commit the files of a batch to every table that lacks it.

        Args:
            files: what the tasks wrote. A sink of many tables keeps them until `discard`.
            mark: the mark of the batch.
            on_commit: called after the commit of each table of many, from any thread.
        """
        if not files:
            return TableCommits({})
        commit = self.commit(files, replace(mark, rows=sum(file.rows for file in files)))
        return TableCommits({self.identity(): commit})

    def resume(
        self,
        mark: BatchMark,
        letters: BatchMark | None,  # noqa: ARG002 - for many tables
    ) -> tuple[Offset, Offset | None]:
        """Return where to resume without a checkpoint, and the end of the first batch if fixed.

        Args:
            mark: the newest mark of the pipeline.
            letters: the newest mark of its dead-letter table.
        """
        return mark.end, None

    def start_over(self) -> None:
        """Prepare to write every batch to every table, whatever marks they hold."""

    def replayed_batch(self) -> BatchMark | None:
        """Return the batch that `resume` chose to read again, for the tables that lack it."""
        return None

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        """Keep tables of a mirror unchanged until the source has loaded their first rows again.

        Args:
            tables: their names in the source.
        """

    def replaces(self) -> bool:
        """Tell whether the rows of a bounded load replace the rows in the table."""
        return False

    def needs_end(self) -> bool:
        """Tell whether, in an endless stream, each batch would wipe the rows of the one before."""
        return False

    def lost_rows(
        self,
        loaded: Collection[tuple[str, ...]] | None = None,  # noqa: ARG002 - for mirrors
    ) -> list[LostRows]:
        """Return rows that were committed but are no longer in the table.

        Called after `open`, before the first batch: tables may have been dropped, replaced or
        rolled back, and the file may name another table or branch.

        Args:
            loaded: `Source.loaded_tables` at the offset from which the pipeline resumes.
        """
        return []

    def accept_lost_rows(self) -> None:
        """Continue without the rows of `lost_rows`; the decision is durable when this returns."""

    def audits(self) -> bool:
        """Tell whether `publish` first checks the rows with Spark."""
        return False

    def publish(self, mark: BatchMark) -> None:
        """Publish what was committed up to the batch of `mark`, if readers cannot see it yet.

        Called after each batch, also after one that the table already held.

        Raises:
            PublishError: a check failed, so it must not be published.
        """

    def discard(self, files: list[WrittenFile]) -> None:
        """Remove the files of a batch that was not committed: it is retried or given up."""

    def disconnect(self, spark: SparkSession) -> None:
        """Close connections after a fault; the next `open` makes new ones."""

    def explain(self, fault: BaseException) -> IcestreamError | None:  # noqa: ARG002
        """Turn a fault during writing into an icestream error; None if it is unknown."""
        return None

    def check(self) -> Iterator[CheckStep]:
        """Check that the table can be written, step by step, without Spark."""
        yield from ()
