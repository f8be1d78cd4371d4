"""The two sides of a comparison: a database at one point, and the tables that mirror it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from icestream.schemas.comparison import iceberg_to_arrow
from icestream.sinks.iceberg.ledger import read_mark
from icestream.sinks.iceberg.upsert.soft_deletes import DELETED, DELETED_AT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

    from icestream.contracts.offset import BatchMark, Offset


TableNames = tuple[str, ...]


class SideReader(ABC):
    """Reads rows in tasks. It is pickled and sent to them, so it keeps no connection."""

    @abstractmethod
    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, as the table was at the point."""


@dataclass(frozen=True)
class SideTable:
    """A table of the database.

    Attributes:
        names: its names, outermost first: `("public", "orders")`.
        columns: its columns, with the mirror's types.
        key: the columns that identify a row; empty if none do.
        own: columns that the mirror adds, which mean nothing to a user.
        caveat: why it may differ although nothing is wrong.
        left_out: columns of both sides that can't be compared, and why; not among `columns`.
    """

    names: TableNames
    columns: pa.Schema
    key: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    caveat: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadChanges:
    """The changes of a table between the mirror's mark and the point.

    Attributes:
        keys: the keys of inserted, updated and deleted rows; a table of the key's columns.
        rows: how many changes there were.
        is_truncated: whether the table was truncated.
    """

    keys: pa.Table | None = None
    rows: int = 0
    is_truncated: bool = False


@dataclass(frozen=True)
class Point:
    """The database at one moment.

    Attributes:
        label: the moment in the database's own terms, such as an LSN.
        tables: the tables that are mirrored.
        changes: the changes of each since the mirror's mark.
        behind: how many records the mirror has not read yet, by table, where changes are unknown.
    """

    label: str
    tables: Mapping[TableNames, SideTable]
    changes: Mapping[TableNames, ReadChanges] = field(default_factory=dict)
    behind: Mapping[TableNames, int] = field(default_factory=dict)


class DatabaseSide(ABC):
    """A database whose tables are mirrored.

    Used by one thread of the driver: `tables`, then `point`, then `parts` and `reader` of its
    tables, as often as needed; `close` at the end. Reads see the newest point.

    Attributes:
        passes: how often a table that can't be compared yet, or may still change, is tried.
        retry_secs: the pause before a table that differs is compared again, where the point of
            the database can't be aligned with the mark of the table; 0 where it can.
    """

    passes: ClassVar[int] = 5
    retry_secs: ClassVar[float] = 0.0

    @abstractmethod
    def identity(self) -> str:
        """Name the database for messages, free of secrets."""

    @abstractmethod
    def tables(self) -> list[TableNames]:
        """Return the tables that are mirrored now.

        Raises:
            UnreachableError: the database does not respond.
            RefusedError: credentials or permissions were refused.
        """

    @abstractmethod
    def is_fully_loaded(self, table: TableNames, mark: Offset) -> bool:
        """Return whether a table with this mark has its initial snapshot in full."""

    @abstractmethod
    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        """Fix the database at its current state, and return what changed since the marks.

        Args:
            marks: the offset up to which each mirrored table has the changes.
        """

    @abstractmethod
    def parts(self, table: SideTable, count: int) -> Sequence[Any]:
        """Cut a table into about `count` parts of similar size."""

    @abstractmethod
    def reader(self, table: SideTable) -> SideReader:
        """Return the reader of a table's parts."""

    @abstractmethod
    def close(self) -> None:
        """Release all connections. May be called more than once."""


@dataclass(frozen=True)
class LakeTable:
    """An Iceberg table as it was when it was looked up.

    Attributes:
        name: its full name, which starts with the catalog.
        table: the table as PyIceberg loaded it.
        pipeline: the pipeline that writes it.
        branch: the branch that the pipeline writes to; None for the main branch.
    """

    name: str
    table: Table
    pipeline: str
    branch: str | None = None

    @cached_property
    def mark(self) -> BatchMark | None:
        """The pipeline's newest mark in the table."""
        return read_mark(self.table.properties, self.pipeline)

    @property
    def version(self) -> str:
        """A text that changes with each batch that the pipeline writes."""
        return "" if self.mark is None else self.mark.to_json()

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is compared; None while there is none."""
        if self.branch is None:
            snapshot = self.table.current_snapshot()
            return None if snapshot is None else snapshot.snapshot_id
        reference = self.table.refs().get(self.branch)
        return None if reference is None else reference.snapshot_id

    @property
    def columns(self) -> pa.Schema:
        return iceberg_to_arrow(self.table.schema())

    @property
    def soft_delete_columns(self) -> tuple[str, ...]:
        """The columns of soft deletes, if the table has both."""
        both = {DELETED, DELETED_AT} <= set(self.columns.names)
        return (DELETED, DELETED_AT) if both else ()

    def estimated_rows(self) -> int:
        """Return the row count in the snapshot's summary; it is too high if there are deletes.

        Good enough to choose the number of chunks.
        """
        snapshot = self.snapshot_id and self.table.snapshot_by_id(self.snapshot_id)
        summary: Any = snapshot.summary if snapshot else None
        return int(summary["total-records"] or 0) if summary is not None else 0

    def parts(self, count: int) -> list[tuple[FileScanTask, ...]]:
        """Return its files in at most `count` groups of similar size, large files first."""
        if self.snapshot_id is None:
            return []
        planned = self.table.scan(snapshot_id=self.snapshot_id).plan_files()
        files = sorted(planned, key=lambda task: -task.file.file_size_in_bytes)
        groups: list[list[FileScanTask]] = [[] for _ in range(min(count, len(files)))]
        sizes = [0] * len(groups)
        for file in files:
            smallest = sizes.index(min(sizes))
            groups[smallest].append(file)
            sizes[smallest] += file.file.file_size_in_bytes
        return [tuple(group) for group in groups]

    def reader(self, columns: Sequence[str]) -> LakeReader:
        """Return the reader of columns of its files; it leaves soft-deleted rows out."""
        soft = DELETED if self.soft_delete_columns else None
        names = [*columns, *([soft] if soft else [])]
        # The current schema, whichever one a snapshot was written with.
        projection = self.table.schema().select(*names)
        return LakeReader(self.table.metadata, self.table.io, projection, soft)


@dataclass(frozen=True)
class LakeReader(SideReader):
    """Reads data files with the deletes that belong to them.

    Attributes:
        metadata: the table's metadata.
        io: reads the table's files.
        columns: the columns to read.
        soft: the column that flags a row as deleted; None if there is none.
    """

    metadata: TableMetadata
    io: FileIO
    columns: Schema
    soft: str | None = None

    def read(self, part: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

        scan = ArrowScan(self.metadata, self.io, self.columns, AlwaysTrue())
        for file in part:
            # `ArrowScan.to_record_batches` would hold all rows of a file at once.
            deletes = _read_all_delete_files(self.io, [file])
            for batch in scan._record_batches_from_scan_tasks_and_deletes([file], deletes):
                if self.soft is None:
                    yield batch
                else:
                    is_deleted = pc.fill_null(batch.column(self.soft), False)
                    yield batch.filter(pc.invert(is_deleted))
