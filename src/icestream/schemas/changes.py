"""Changes to a table's columns: one class for each kind of change."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyiceberg.types import IcebergType

    Edit = Callable[[NestedField], NestedField | None]


Path = tuple[str, ...]


@dataclass(frozen=True)
class SchemaChange:
    """One change of one column.

    Attributes:
        path: the column's path from the top, as Iceberg names it: members of a list's element come
            after `element`, those of a map's value after `value`.
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
    """A column that the table lacks. It is optional, since existing rows have no value."""

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
    """A column that gets another name and keeps its values."""

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
    """A required column that becomes optional.

    Attributes:
        is_missing: whether the stream lacks the column; else it has the column as an optional one.
    """

    kind: ClassVar[str] = "make_optional"
    is_missing: bool = False

    def __str__(self) -> str:
        return f"make {self.column!r} optional"


def apply(
    schema: Schema, changes: Iterable[SchemaChange], *, last_column_id: int | None = None
) -> Schema:
    """Return the schema with the changes applied in order.

    Columns keep their field ids. New ones get ids above `last_column_id`, the highest that the
    table has ever assigned, and above those of the schema.

    Raises:
        ValueError: a change names a column that does not exist, or adds one that does.
    """
    fields = schema.as_struct()
    ids = count(1 + max(last_column_id or 0, schema.highest_field_id))
    for change in changes:
        fields = _apply_change(fields, change, ids)
    field_ids = Schema(*fields.fields).field_ids
    identifiers = [key for key in schema.identifier_field_ids if key in field_ids]
    return Schema(*fields.fields, schema_id=schema.schema_id, identifier_field_ids=identifiers)


def _apply_change(fields: StructType, change: SchemaChange, ids: Iterator[int]) -> StructType:
    if isinstance(change, AddColumn):
        return _add_column(fields, change, ids)

    def edit(field: NestedField) -> NestedField | None:
        if isinstance(change, DropColumn):
            return None
        if isinstance(change, RenameColumn):
            return _with(field, name=change.new_name)
        if isinstance(change, UpdateType):
            return _with(field, field_type=change.new_type)
        assert isinstance(change, MakeOptional)  # noqa: S101 - there are five kinds
        return _with(field, required=False)

    return _in_struct(fields, change.path, edit)


def _add_column(fields: StructType, change: AddColumn, ids: Iterator[int]) -> StructType:
    *parent, name = change.path
    own_id = next(ids)
    # Despite its signature, it also takes a type.
    kind: Any = assign_fresh_schema_ids(change.field_type, lambda: next(ids))
    new_field = NestedField(
        field_id=own_id,
        name=name,
        field_type=kind,
        required=False,
        doc=change.doc,
    )

    def append(struct: StructType) -> StructType:
        if any(field.name == name for field in struct.fields):
            raise ValueError(f"column {change.column!r} already exists")
        return StructType(*struct.fields, new_field)

    if not parent:
        return append(fields)

    def edit(field: NestedField) -> NestedField:
        if not isinstance(field.field_type, StructType):
            raise ValueError(f"column {'.'.join(parent)!r} is not a struct")
        return _with(field, field_type=append(field.field_type))

    return _in_struct(fields, tuple(parent), edit)


def _in_struct(struct: StructType, path: Path, edit: Edit) -> StructType:
    if all(field.name != path[0] for field in struct.fields):
        raise ValueError(f"there is no column {path[0]!r}")
    edited = [
        _edit_field(field, path[1:], edit) if field.name == path[0] else field
        for field in struct.fields
    ]
    return StructType(*(field for field in edited if field is not None))


def _edit_field(field: NestedField, rest: Path, edit: Edit) -> NestedField | None:
    if not rest:
        return edit(field)
    return _with(field, field_type=_in_type(field.field_type, rest, edit))


def _in_type(kind: IcebergType, path: Path, edit: Edit) -> IcebergType:
    if isinstance(kind, StructType):
        return _in_struct(kind, path, edit)
    if isinstance(kind, ListType) and path[0] == "element":
        element = _require_field(_edit_field(kind.element_field, path[1:], edit), path)
        return ListType(kind.element_id, element.field_type, element.required)
    if isinstance(kind, MapType) and path[0] == "value":
        value = _require_field(_edit_field(kind.value_field, path[1:], edit), path)
        return MapType(kind.key_id, kind.key_type, kind.value_id, value.field_type, value.required)
    raise ValueError(f"there is no column {path[0]!r}")


def _require_field(field: NestedField | None, path: Path) -> NestedField:
    if field is None:
        raise ValueError(f"{path[0]!r} can't be dropped from its list or map")
    return field


def _with(
    field: NestedField,
    *,
    name: str | None = None,
    field_type: IcebergType | None = None,
    required: bool | None = None,
) -> NestedField:
    # A new field rather than a copy: PyIceberg's types cache their hash.
    return NestedField(
        field_id=field.field_id,
        name=field.name if name is None else name,
        field_type=field.field_type if field_type is None else field_type,
        required=field.required if required is None else required,
        doc=field.doc,
        initial_default=field.initial_default,
        write_default=field.write_default,
    )
