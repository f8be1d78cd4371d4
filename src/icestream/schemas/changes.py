"""What can happen to a table's columns: one class a kind of change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

Path = tuple[str, ...]


@dataclass(frozen=True)
class SchemaChange:
    """One change of one column.

    Attributes:
        path: the way to the column from the top, as Iceberg names it: members of a list's element
            come after `element`, those of a map's value after `value`.
    """

    kind: ClassVar[str]
    path: Path

    @property
    def column(self) -> str:
        """The column's full name, its parts joined by dots."""
        return ".".join(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return the change as `icestream schema diff --output json` shows it."""
        return {"kind": self.kind, "column": self.column}


@dataclass(frozen=True)
class AddColumn(SchemaChange):
    """A column that the table lacks. It is optional: the rows that are there have no value."""

    kind: ClassVar[str] = "add_column"
    field_type: IcebergType
    doc: str | None = None

    def __str__(self) -> str:
        return f"add {self.column!r} {self.field_type}"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "type": str(self.field_type), "doc": self.doc}


@dataclass(frozen=True)
class DropColumn(SchemaChange):
    """A column that the stream no longer has."""

    kind: ClassVar[str] = "drop_column"

    def __str__(self) -> str:
        return f"drop {self.column!r}"


@dataclass(frozen=True)
class RenameColumn(SchemaChange):
    """A column that goes by another name, and keeps its values."""

    kind: ClassVar[str] = "rename_column"
    new_name: str

    def __str__(self) -> str:
        return f"rename {self.column!r} to {self.new_name!r}"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "new_name": self.new_name}


@dataclass(frozen=True)
class UpdateType(SchemaChange):
    """A column whose type becomes wider."""

    kind: ClassVar[str] = "update_type"
    old_type: IcebergType
    new_type: IcebergType

    def __str__(self) -> str:
        return f"widen {self.column!r} from {self.old_type} to {self.new_type}"

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "from": str(self.old_type), "to": str(self.new_type)}


@dataclass(frozen=True)
class MakeOptional(SchemaChange):
    """A column that need not have a value any more.

    Attributes:
        is_missing: whether the stream lacks the column; else it has it, without promising values.
    """

    kind: ClassVar[str] = "make_optional"
    is_missing: bool = False

    def __str__(self) -> str:
        return f"make {self.column!r} optional"
