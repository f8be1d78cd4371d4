"""Compares and changes the schemas of tables and streams, also as Spark DDL. Needs no JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UnknownType,
    UUIDType,
)

from icestream.contracts.catalog import quote_for_spark
from icestream.errors import SchemaMismatchError
from icestream.schemas.changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    SchemaChange,
    UpdateType,
    apply,
)
from icestream.schemas.comparison import (
    SchemaComparison,
    arrow_to_iceberg,
    can_widen,
    compare,
    diff,
    iceberg_to_arrow,
    is_compatible,
    renames_by_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


SQL_TYPES: dict[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INT",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimestampType: "TIMESTAMP_NTZ",
    TimestamptzType: "TIMESTAMP",
    StringType: "STRING",
    UUIDType: "STRING",
    BinaryType: "BINARY",
    FixedType: "BINARY",
    UnknownType: "VOID",
}


def to_sql(changes: Iterable[SchemaChange], table: str | Sequence[str]) -> list[str]:
    """Return one Spark DDL statement for each change.

    Args:
        changes: the changes, in the order to apply them.
        table: the table's name, as parts or joined by dots.

    Raises:
        SchemaMismatchError: Spark SQL does not support a type, such as `time`.
    """
    name = quote_for_spark(*(table.split(".") if isinstance(table, str) else table))
    return [f"ALTER TABLE {name} {_clause(change)}" for change in changes]


def _clause(change: SchemaChange) -> str:
    column = quote_for_spark(*change.path)
    if isinstance(change, AddColumn):
        comment = f" COMMENT {_text(change.doc)}" if change.doc else ""
        return f"ADD COLUMN {column} {_type(change.field_type, change.column)}{comment}"
    if isinstance(change, DropColumn):
        return f"DROP COLUMN {column}"
    if isinstance(change, RenameColumn):
        return f"RENAME COLUMN {column} TO {quote_for_spark(change.new_name)}"
    if isinstance(change, UpdateType):
        return f"ALTER COLUMN {column} TYPE {_type(change.new_type, change.column)}"
    assert isinstance(change, MakeOptional)  # noqa: S101 - there are five kinds
    return f"ALTER COLUMN {column} DROP NOT NULL"


def _type(kind: IcebergType, column: str) -> str:
    if isinstance(kind, DecimalType):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(_member(field, column) for field in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"ARRAY<{_type(kind.element_type, f'{column}.element')}>"
    if isinstance(kind, MapType):
        key = _type(kind.key_type, f"{column}.key")
        return f"MAP<{key}, {_type(kind.value_type, f'{column}.value')}>"
    name = SQL_TYPES.get(type(kind))
    if name is None:
        raise SchemaMismatchError(
            f"column {column!r} is {kind}, a type that Spark SQL does not support",
            todo="Let the pipeline change the table, or use Iceberg's API.",
        )
    return name


def _member(field: NestedField, column: str) -> str:
    not_null = " NOT NULL" if field.required else ""
    comment = f" COMMENT {_text(field.doc)}" if field.doc else ""
    kind = _type(field.field_type, f"{column}.{field.name}")
    return f"{quote_for_spark(field.name)}: {kind}{not_null}{comment}"


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


__all__ = [
    "AddColumn",
    "DropColumn",
    "MakeOptional",
    "RenameColumn",
    "SchemaChange",
    "SchemaComparison",
    "UpdateType",
    "apply",
    "arrow_to_iceberg",
    "can_widen",
    "compare",
    "diff",
    "iceberg_to_arrow",
    "is_compatible",
    "renames_by_id",
    "to_sql",
]
