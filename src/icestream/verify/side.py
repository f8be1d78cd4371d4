"""The contract of the other side: a database whose tables are mirrored, seen at one point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from icestream.contracts.offset import Position

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
class Changes:
    """What happened to a table between a position and the point.

    Attributes:
        keys: the keys of rows that came, went or changed; a table of the key's columns.
        rows: how many changes there were.
        is_emptied: whether all its rows went at once.
    """

    keys: pa.Table | None = None
    rows: int = 0
    is_emptied: bool = False


@dataclass(frozen=True)
class Point:
    """The database at one moment.

    Attributes:
        shown: the moment in the database's own words.
        tables: the tables that are mirrored.
        changes: what happened to each since the mirror's mark.
    """

    shown: str
    tables: Mapping[TableNames, SideTable]
    changes: Mapping[TableNames, Changes] = field(default_factory=dict)


class Side(ABC):
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
    def is_whole(self, table: TableNames, mark: Position) -> bool:
        """Tell whether a table with this mark has had its first rows in full."""

    @abstractmethod
    def point(self, marks: Mapping[TableNames, Position]) -> Point:
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
