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

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.faults import CheckStep
    from icestream.contracts.offset import BatchMark, Offset
    from icestream.contracts.options import Options
    from icestream.errors import IcestreamError


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task wrote and nobody committed yet.

    `what` is for the sink alone: JSON for a data file; rows that are staged may add bytes.
    """

    rows: int
    bytes: int
    metadata: dict[str, Any]


@dataclass(frozen=True)
class RowExpectation:
    """A condition that every row should meet; one that can't be told (NULL) counts as met.

    Attributes:
        name: what counters and dead letters call it.
        expr: the condition, in Spark SQL over the table's columns.
        on_fail: `drop`, `dead_letter` or `fail`.
    """

    name: str
    expr: str
    on_fail: str


@dataclass(frozen=True)
class Commit:
    """What a commit did."""

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
        remedy: how a person can bring the rows back; empty if only the source has them.
        source_table: the table's own names in the source, where it can be loaded again.
    """

    table: str
    problem: str
    remedy: str = ""
    source_table: tuple[str, ...] | None = None


# The name of a row's table, where Spark works it out. It never reaches a table.
ROUTE = "__icestream_route"


@dataclass(frozen=True)
class RefusedRows:
    """Rows of a batch that one of the tables did not take, after every attempt.

    Attributes:
        table: the table's full name.
        error: why.
        rows: how many they are.
        parts: each gives some of the rows, in a task; with the column `ROW` if they came with it.
    """

    table: str
    error: IcestreamError
    rows: int
    parts: tuple[Callable[[], Iterator[pa.RecordBatch]], ...]


@dataclass(frozen=True)
class TableCommits:
    """What became of a batch, table by table.

    Attributes:
        commits: what each commit did, by the table's full name.
        held: the tables that held the batch already.
        refused: the tables that did not take it.
    """

    commits: Mapping[str, Commit]
    held: tuple[str, ...] = ()
    refused: tuple[RefusedRows, ...] = ()


def added_up(commits: Mapping[str, Commit]) -> Commit | None:
    """Return what the commits of several tables did together; None if there was none."""
    each = list(commits.values())
    if not each:
        return None
    return Commit(
        snapshot_id=None,
        rows=sum(one.rows for one in each),
        bytes=sum(one.bytes for one in each),
        files=sum(one.files for one in each),
        retries=sum(one.retries for one in each),
        seconds=max(one.seconds for one in each),  # they were made side by side
    )


class TaskWriter(ABC):
    """Writes rows to files, in a task. Pickled and sent there, so it keeps no connection.

    A task may be run twice or die half-way: files that are never committed hold no rows of the
    table, and their names never meet those of another attempt.
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

    Attributes:
        has_many_tables: whether each row names its table. Whether all of them hold a batch is
            unknown before its rows are read, so `holds` is false, and `last_mark` is the newest
            mark of any table. A table may refuse its rows in `commit_batch`, so dead letters are
            committed after the tables: a dead-letter table that holds a batch proves that the
            whole batch is committed. A single table is committed after the dead letters.
        is_mirror: whether the tables follow those of a source: each block of changes names its
            table, and `prepare_tables` takes the place of `prepare`.
    """

    options_type: ClassVar[type[Options]]
    has_many_tables: ClassVar[bool] = False
    is_mirror: ClassVar[bool] = False
    task_modules: tuple[str, ...] = ()  # what `writer` loads in a task

    @classmethod
    def build(
        cls, options: Any, catalog: Catalog[Any], name: str, *, changes: bool = False
    ) -> Sink[Any]:
        """Return the sink that the options ask for: this one, or one that does it another way.

        Args:
            options: the sink's.
            catalog: where its tables are.
            name: the sink's, in the file.
            changes: whether the source gives changes to tables of its own.
        """
        if changes:
            raise PlanError(
                "a sink of this kind does not take changes",
                todo="Let the pipeline end in an `iceberg` sink.",
            )
        return cls(options, catalog, name)  # type: ignore[call-arg]

    @abstractmethod
    def identity(self) -> str:
        """Name the table for messages: `lake.sales.orders`."""

    @abstractmethod
    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None:
        """Connect, and read the newest mark of the pipeline from the table, if there is a table.

        Args:
            spark: the session.
            pipeline: name of the pipeline that writes.
            cache: a folder of the driver's machine for what can be made again; a temporary one
                if absent. Tasks cannot reach it: on a cluster they run elsewhere.
        """

    @abstractmethod
    def last_mark(self) -> BatchMark | None:
        """Return the newest mark of the pipeline that the table held when last looked at."""

    def marks(self) -> list[BatchMark]:
        """Return the newest mark of the pipeline in each table that has one."""
        mark = self.last_mark()
        return [] if mark is None else [mark]

    @abstractmethod
    def foreign_marks(self) -> list[BatchMark]:
        """Return the newest mark of every other pipeline that wrote to the table."""

    @abstractmethod
    def holds(self, mark: BatchMark) -> bool:
        """Tell whether the table holds the batch already. A shortcut: the fence is in `commit`."""

    @abstractmethod
    def columns(self) -> pa.Schema | None:
        """Return the table's columns, or None while there is no table."""

    @abstractmethod
    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:
        """Make the table fit rows with these columns: create it, change it, or refuse.

        A crash afterwards leaves a table that the same rows fit when the batch is replayed.

        Args:
            columns: the columns of the rows.
            declared: whether the source declares them, so that they are all there are; else a
                column that is missing may be there in the next batch.

        Raises:
            SchemaMismatchError: the rows do not fit and the options forbid changing the table.
        """

    def prepare_tables(self, schemas: Sequence[pa.Schema]) -> None:
        """Make the tables of a mirror ready for blocks of these schemas: create and change them.

        Called before each batch. Blocks of other schemas make the writer raise
        `NewChangeSchemasError`; the batch is then read again, with them among `schemas`.
        """
        raise NotImplementedError(
            f"{self.identity()} is no mirror: it got {len(schemas)} schemas of changes"
        )

    def refuses_column(self, name: str) -> str | None:  # noqa: ARG002
        """Return why the table can have no column of this name; None if it can."""
        return None

    def keeps_missing_fields(self) -> bool:
        """Tell whether a row keeps the table's values for fields that its record lacks.

        The rows then have the column `UNCHANGED_COLUMNS`, which names those fields.
        """
        return False

    def adds_columns(self) -> bool:
        """Tell whether the table may grow a column that the stream shows."""
        return True

    def widens_columns(self) -> bool:
        """Tell whether a column may become wider, or optional, for a value that does not fit."""
        return False

    def sorts(self) -> bool:
        """Tell whether the rows of a file come in an order, which takes Spark to sort them."""
        return False

    def sort_columns(self) -> list[Any]:
        """Return the order of rows within a file, as Spark's columns; empty for none."""
        return []

    def expectations(self) -> tuple[RowExpectation, ...]:
        """Return the conditions that rows should meet, which takes Spark to look at them."""
        return ()

    def computed_columns(self) -> Mapping[str, str]:
        """Return columns that the writer wants beside the rows', each with its SQL expression."""
        return {}

    def row_faults(self) -> Callable[[pa.RecordBatch], pa.Array | None] | None:
        """Return what tells, in a task, why the table does not take rows; None if it takes any.

        It gives a reason for each bad row of a batch, or None for a batch without one. Asked for
        where bad rows do not end the batch, and again after `prepare`; `writer` refuses such rows.
        """
        return None

    @abstractmethod
    def writer(self) -> TaskWriter:
        """Return a writer for the table as it is now."""

    @abstractmethod
    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        """Make the files and the mark part of the table, both or neither.

        Raises:
            SupersededError: another instance of the pipeline wrote since we last looked.
            CommitConflictError: every attempt met another writer. Nothing was written.
            CommitUnknownError: no answer came, and the table could not be asked.
        """

    def commit_batch(
        self,
        files: list[WrittenFile],
        mark: BatchMark,
        on_commit: Callable[[], None],  # noqa: ARG002 - nothing follows the commit of one table
    ) -> TableCommits:
        """Commit the files of a batch to every table that lacks it.

        Args:
            files: what the tasks wrote. Those of many tables stay until `discard`.
            mark: the batch's.
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

    def repeated_batch(self) -> BatchMark | None:
        """Return the batch that `resume` chose to read once more, for the tables that lack it."""
        return None

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        """Keep tables of a mirror unchanged until the source has loaded their first rows again.

        Args:
            tables: by the source's own names.
        """

    def replaces(self) -> bool:
        """Tell whether the rows of one bounded load replace what the table held."""
        return False

    def needs_end(self) -> bool:
        """Tell whether a stream without an end would wipe with each batch what the last wrote."""
        return False

    def lost_rows(
        self,
        loaded: Collection[tuple[str, ...]] | None = None,  # noqa: ARG002 - for mirrors
    ) -> list[LostRows]:
        """Return rows that were committed and that the next batch would silently go without.

        Asked after `open`, before the first batch: tables may have been dropped, replaced or
        rolled back, and the file may name another table or branch.

        Args:
            loaded: `Source.loaded_tables` of where the pipeline continues.
        """
        return []

    def accept_lost_rows(self) -> None:
        """Continue without the rows of `lost_rows`, from now on; durable when this returns."""

    def audits(self) -> bool:
        """Tell whether `publish` asks Spark about the rows first."""
        return False

    def publish(self, mark: BatchMark) -> None:
        """Let readers see what was committed up to the batch of `mark`, if that is held back.

        Called after each batch, also after one that the table held already.

        Raises:
            PublishError: it may not be seen yet.
        """

    def discard(self, files: list[WrittenFile]) -> None:
        """Remove files of a batch that is written anew or not at all, and was never committed."""

    def disconnect(self, spark: SparkSession) -> None:
        """Let go of connections after a fault; the next `open` makes new ones."""

    def explain(self, fault: BaseException) -> IcestreamError | None:  # noqa: ARG002
        """Turn a fault that came up while writing into an error of ours; None if not known."""
        return None

    def check(self) -> Iterator[CheckStep]:
        """Look whether the table can be written, step by step, without Spark."""
        yield from ()
