"""Compares the rows of a batch with the table, and says what must change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

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


def missing_columns(table: Schema, rows: Schema) -> list[NestedField]:
    """Return the columns that the rows have and the table has not.

    Raises:
        SchemaMismatchError: a column that both have can't be written to the table, or the table
            requires one that the rows lack.
    """
    names = set(table.column_names)
    problems = []
    for column in rows.fields:
        if column.name not in names:
            continue
        wanted = table.find_field(column.name).field_type
        if not _fits(column.field_type, wanted):
            problems.append(
                f"column {column.name!r} is {wanted} in the table and {column.field_type} "
                f"in the stream"
            )
    given = {column.name for column in rows.fields}
    problems += [
        f"column {column.name!r} is required by the table and missing in the stream"
        for column in table.fields
        if column.required and column.name not in given
    ]
    if problems:
        raise SchemaMismatchError(
            "; ".join(problems),
            todo="Convert the stream with a `cast` transform, or alter the table.",
        )
    return [column for column in rows.fields if column.name not in names]


def _fits(found: IcebergType, wanted: IcebergType) -> bool:
    if str(found) == str(wanted):
        return True
    if isinstance(found, PrimitiveType) and isinstance(wanted, PrimitiveType):
        try:
            return promote(found, wanted) == wanted
        except ResolveError:
            return False
    # Nested types are compared by shape; ids and docs differ between a stream and a table.
    return _shape(found) == _shape(wanted)


def _shape(kind: IcebergType) -> object:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return {column.name: _shape(column.field_type) for column in kind.fields}
    if isinstance(kind, ListType):
        return [_shape(kind.element_type)]
    if isinstance(kind, MapType):
        return (_shape(kind.key_type), _shape(kind.value_type))
    return str(kind)
