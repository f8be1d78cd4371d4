"""The contract of a sink that is many tables: each row names the one that it goes to."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icestream.contracts.sink import Commit, Sink
from icestream.contracts.source import OptionsT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from icestream.contracts.mark import BatchMark
    from icestream.contracts.sink import WrittenFile
    from icestream.errors import IcestreamError

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
    """Return what the commits of several tables did together, None if there was none."""
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


class ManyTables(Sink[OptionsT]):
    """Many tables, fed batch by batch; a table that holds a batch already is left as it is.

    Whether all of them hold a batch can't be told before its rows are read, so `holds` is false.
    `last_mark` is the newest of any table, and the others may lack its batch.
    """

    @abstractmethod
    def commit_tables(
        self, files: list[WrittenFile], mark: BatchMark, done: Callable[[], None]
    ) -> TableCommits:
        """Commit to every table that lacks the batch. The files stay until `discard`.

        Args:
            files: what the tasks wrote.
            mark: the batch's.
            done: called after each table's commit, from any thread.
        """

    @abstractmethod
    def marks(self) -> list[BatchMark]:
        """Return the pipeline's newest mark in each of the tables, as last looked at."""

    @abstractmethod
    def begin_anew(self, again: BatchMark | None) -> None:
        """Take note that the pipeline begins under a new checkpoint.

        Args:
            again: the batch that is read once more, for the tables that lack it; None to write to
                every table whatever it holds.
        """

    @abstractmethod
    def read_again(self) -> BatchMark | None:
        """Return the batch that `begin_anew` named last."""


class MirroredTables(ManyTables[OptionsT]):
    """Tables that follow those of a source: each block of changes says which one it is for."""

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        """Leave tables as they are until their first rows come: the source loads them again.

        Args:
            tables: by the source's own names.
        """

    @abstractmethod
    def follow(self, shapes: Sequence[pa.Schema]) -> None:
        """Make the tables ready for blocks with these columns: create them, change them.

        Called in place of `prepare`, before each batch. Blocks of other shapes make the writer
        raise `NewShapesError`; the batch is then read again, with them among `shapes`.
        """
