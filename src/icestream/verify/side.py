"""The contract of the other side: a database whose tables are mirrored, seen at one point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from icestream.schemas.comparison import iceberg_to_arrow
from icestream.sinks.iceberg.ledger import read_mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

    from icestream.contracts.offset import BatchMark, Offset


TableNames = tuple[str, ...]


class Reader(ABC):
    """Reads rows in tasks. Pickled and sent there, so it keeps no connection."""

    @abstractmethod
    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, as the table was at the point."""


@dataclass(frozen=True)
class SideTable:
    """A table of the database.

    Attributes:
        names: outermost first: `("public", "orders")`.
        columns: its columns, with the types that the mirror gives them.
        key: the columns that tell rows apart; none if nothing does.
        own: columns that the mirror adds to it, which say nothing to a person.
        caveat: why it may differ although nothing is wrong.
    """

    names: TableNames
    columns: pa.Schema
    key: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    caveat: str = ""


@dataclass(frozen=True)
class ReadChanges:
    """What happened to a table between a position and the point.

    Attributes:
        keys: the keys of rows that came, went or changed; a table of the key's columns.
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
        shown: the moment in the database's own words.
        tables: the tables that are mirrored.
        changes: what happened to each since the mirror's mark.
    """

    label: str
    tables: Mapping[TableNames, SideTable]
    changes: Mapping[TableNames, ReadChanges] = field(default_factory=dict)


class DatabaseSide(ABC):
    """A database whose tables are mirrored.

    Used by one thread of the driver: `tables`, then `point`, then `parts` and `reader` of its
    tables, as often as needed; `close` at the end. What is read belongs to the newest point.
    """

    @abstractmethod
    def identity(self) -> str:
        """Name the database for messages, free of secrets."""

    @abstractmethod
    def tables(self) -> list[TableNames]:
        """Return the tables that are mirrored now.

        Raises:
            UnreachableError: nobody answers.
            RefusedError: credentials or permissions were refused.
        """

    @abstractmethod
    def is_fully_loaded(self, table: TableNames, mark: Offset) -> bool:
        """Return whether a table with this mark has had its first rows in full."""

    @abstractmethod
    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        """Fix the database as it is now, and tell what changed since the marks.

        Args:
            marks: up to where each mirrored table has the changes.
        """

    @abstractmethod
    def parts(self, table: SideTable, count: int) -> Sequence[Any]:
        """Cut a table into about `count` parts of similar size."""

    @abstractmethod
    def reader(self, table: SideTable) -> Reader:
        """Return what reads the parts of a table."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. May be called more than once."""


# Columns of `delete_mode: soft`, as `sinks/iceberg/upsert/mode.py` names them.
DELETED = "_is_deleted"
DELETED_AT = "_deleted_at"


@dataclass(frozen=True)
class LakeTable:
    """A table as it was when it was looked up.

    Attributes:
        name: its full name, the catalog's first.
        table: as PyIceberg loaded it.
        pipeline: who writes it.
        branch: what it writes to; None for the main one.
    """

    name: str
    table: Table
    pipeline: str
    branch: str | None = None

    @cached_property
    def mark(self) -> BatchMark | None:
        """The pipeline's newest mark in it."""
        return read_mark(self.table.properties, self.pipeline)

    @property
    def version(self) -> str:
        """What changes with each batch that the pipeline writes."""
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
        """The columns that tell of soft deletes, if it has both."""
        both = {DELETED, DELETED_AT} <= set(self.columns.names)
        return (DELETED, DELETED_AT) if both else ()

    def estimated_rows(self) -> int:
        """Return how many rows the snapshot's summary tells of; more than there are, with deletes.

        Good enough to choose how many chunks there are to be.
        """
        found = self.snapshot_id and self.table.snapshot_by_id(self.snapshot_id)
        summary: Any = found.summary if found else None
        return int(summary["total-records"] or 0) if summary is not None else 0

    def parts(self, count: int) -> list[tuple[FileScanTask, ...]]:
        """Return its files in at most `count` groups of similar size, large files first."""
        if self.snapshot_id is None:
            return []
        planned = self.table.scan(snapshot_id=self.snapshot_id).plan_files()
        files = sorted(planned, key=lambda one: -one.file.file_size_in_bytes)
        groups: list[list[FileScanTask]] = [[] for _ in range(min(count, len(files)))]
        sizes = [0] * len(groups)
        for file in files:
            smallest = sizes.index(min(sizes))
            groups[smallest].append(file)
            sizes[smallest] += file.file.file_size_in_bytes
        return [tuple(group) for group in groups]

    def reader(self, columns: Sequence[str]) -> LakeReader:
        """Return what reads columns of its files; rows that are deleted softly are left out."""
        soft = DELETED if self.soft_delete_columns else None
        names = [*columns, *([soft] if soft else [])]
        # By the newest columns, whichever a snapshot was written with.
        projection = self.table.schema().select(*names)
        return LakeReader(self.table.metadata, self.table.io, projection, soft)


@dataclass(frozen=True)
class LakeReader(Reader):
    """Reads data files with the deletes that belong to them.

    Attributes:
        metadata: the table's.
        io: reaches its files.
        columns: what is read.
        soft: the column that tells whether a row is deleted; None if there is none.
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
                    gone = pc.fill_null(batch.column(self.soft), False)
                    yield batch.filter(pc.invert(gone))
