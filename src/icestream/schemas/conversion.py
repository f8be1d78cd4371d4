"""Arrow's columns as Iceberg's, and back, by the libraries that own the types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.schema import Schema, assign_fresh_schema_ids

from icestream.errors import SchemaMismatchError
from icestream.schemas.column_names import refuse_clashes

if TYPE_CHECKING:
    import pyarrow as pa

NEWEST_FORMAT = 3


def arrow_to_iceberg(columns: pa.Schema, format_version: int = NEWEST_FORMAT) -> Schema:
    """Return an Iceberg schema with fresh field ids for Arrow columns.

    Args:
        columns: the Arrow columns.
        format_version: of the table; before 3 there are no nanoseconds, and they are cut off.

    Raises:
        SchemaMismatchError: Iceberg has no such type, or names of columns clash.
    """
    from pyiceberg.io.pyarrow import (
        UnsupportedPyArrowTypeException,
        _pyarrow_to_schema_without_ids,
    )

    refuse_clashes(columns)
    try:
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


def iceberg_to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow columns of a table, without field ids."""
    from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, schema_to_pyarrow

    return _pyarrow_schema_ensure_small_types(schema_to_pyarrow(schema, include_field_ids=False))
