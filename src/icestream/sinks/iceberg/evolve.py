"""Compares the rows of a batch with the table, and says what must change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)

from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa


def to_iceberg(columns: pa.Schema, format_version: int) -> Schema:
    """Return an Iceberg schema with fresh field ids for Arrow columns."""
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    try:
        # Nanoseconds are a type of their own from v3 on; v2 tables keep microseconds.
        schema = _pyarrow_to_schema_without_ids(
            columns,
            downcast_ns_timestamp_to_us=format_version < 3,
            format_version=format_version,  # type: ignore[arg-type]
        )
    except UnsupportedPyArrowTypeException as exc:
        raise SchemaMismatchError(
            f"the rows have a type that Iceberg lacks: {exc}",
            todo="Cast the column with a `cast` transform, or give a `schema`.",
        ) from exc
    return assign_fresh_schema_ids(schema)


def to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow columns of a table, without field ids."""
    from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types

    return _pyarrow_schema_ensure_small_types(schema_to_pyarrow(schema, include_field_ids=False))


class Missing(NamedTuple):
    """A column that the rows have and the table has not.

    Attributes:
        parent: the struct that it belongs to, as a path; None for a column of the table itself.
        column: its name, type and doc.
    """

    parent: str | None
    column: NestedField

    def __str__(self) -> str:
        return f"{_path(self.parent, self.column.name)!r} {self.column.field_type}"


def missing_columns(table: Schema, rows: Schema) -> list[Missing]:
    """Return the columns that the rows have and the table has not, those in structs included.

    Raises:
        SchemaMismatchError: a column that both have can't be written to the table, or the table
            requires one that the rows lack.
    """
    comparison = _Comparison()
    comparison.structs(None, rows.as_struct(), table.as_struct())
    if comparison.problems:
        raise SchemaMismatchError(
            "; ".join(comparison.problems),
            todo="Convert the stream with a `cast` transform, or alter the table.",
        )
    return comparison.missing


class _Comparison:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.missing: list[Missing] = []

    def structs(self, parent: str | None, found: StructType, wanted: StructType) -> None:
        known = {column.name: column for column in wanted.fields}
        for column in found.fields:
            match = known.get(column.name)
            if match is None:
                self.missing.append(Missing(parent, column))
            else:
                self.types(_path(parent, column.name), column.field_type, match.field_type)
        given = {column.name for column in found.fields}
        self.problems += [
            f"column {_path(parent, column.name)!r} is required by the table and missing in the "
            "stream"
            for column in wanted.fields
            if column.required and column.name not in given
        ]

    def types(self, path: str, found: IcebergType, wanted: IcebergType) -> None:
        if isinstance(found, StructType) and isinstance(wanted, StructType):
            self.structs(path, found, wanted)
        elif isinstance(found, ListType) and isinstance(wanted, ListType):
            self.types(f"{path}.element", found.element_type, wanted.element_type)
        elif isinstance(found, MapType) and isinstance(wanted, MapType):
            self.types(f"{path}.key", found.key_type, wanted.key_type)
            self.types(f"{path}.value", found.value_type, wanted.value_type)
        elif not _fits(found, wanted):
            self.problems.append(
                f"column {path!r} is {wanted} in the table and {found} in the stream"
            )


def _fits(found: IcebergType, wanted: IcebergType) -> bool:
    if found == wanted:
        return True
    if not isinstance(found, PrimitiveType) or not isinstance(wanted, PrimitiveType):
        return False
    if isinstance(found, BinaryType) and isinstance(wanted, StringType):
        return False  # PyIceberg would take any bytes for text.
    if isinstance(found, DecimalType) and isinstance(wanted, DecimalType):
        # PyIceberg looks at the precision alone.
        return found.scale == wanted.scale and found.precision <= wanted.precision
    try:
        return promote(found, wanted) == wanted
    except ResolveError:
        return False


def _path(parent: str | None, name: str) -> str:
    return name if parent is None else f"{parent}.{name}"
