"""The contract of a commit mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, TaskWriter, WrittenFile
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.table import TargetTable
    from icestream.sinks.iceberg.writer import IcebergWriter


EVERY_ROW = "true"  # an expression that any row meets, as JSON


class Mode(ABC):
    """One `commit_mode`, for one sink.

    Args:
        options: the sink's.
        target: its table.
    """

    replaces: ClassVar[bool] = False  # whether rows leave the table for those of a load
    sorts_itself: ClassVar[bool] = False  # whether rows must come in the order of the stream
    task_modules: ClassVar[tuple[str, ...]] = ("icestream.sinks.iceberg.writer",)

    def __init__(self, options: IcebergOptions, target: TargetTable) -> None:
        self.options = options
        self.target = target

    def opened(self) -> None:  # noqa: B027 - most modes keep nothing
        """Forget what was known of the table: it was opened, maybe by another client."""

    def table_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns that the table has for rows with `columns`."""
        return columns

    def stream_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of the rows that a table with `columns` is filled from."""
        return columns

    @abstractmethod
    def writer(self) -> TaskWriter:
        """Return what tasks write the rows with."""

    @abstractmethod
    def commit(self, files: list[WrittenFile], mark: BatchMark | None) -> Commit:
        """Change the table by what the tasks wrote, in one commit with the mark.

        Without a mark the rows were fed by hand, and belong to no pipeline.
        """

    def discard(self, files: list[WrittenFile]) -> None:
        """Remove what the tasks wrote: the batch is written anew, or not at all."""
        self.target.delete_files(written_paths(files))


def written_paths(files: Iterable[WrittenFile]) -> list[str]:
    """Return every file that tasks wrote: data files, or staged rows and the keys beside them."""
    found = [file.what.get(name) for file in files for name in ("file-path", "keys-path")]
    return [path for path in found if path is not None]


class Append(Mode):
    """Data files, straight from the tasks."""

    def writer(self) -> IcebergWriter:
        return self.target.writer()

    def commit(self, files: list[WrittenFile], mark: BatchMark | None) -> Commit:
        # With the module comes PyIceberg, which planning does without.
        from icestream.sinks.iceberg.java_table import TableChange

        change = TableChange(added=[file.what for file in files], branch=self.options.branch)
        return self.target.commit(change, mark, rows=sum(file.rows for file in files))
