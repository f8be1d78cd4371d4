"""Partition values as Iceberg's JSON has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import to_json
from pyiceberg.transforms import (
    DayTransform,
    IdentityTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    DateType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType, StructType


def transformed(column: pa.Array, kind: IcebergType, transform: Transform[Any, Any]) -> pa.Array:
    """Return the partition value of each value of a column."""
    is_nano = isinstance(kind, TimestampNanoType | TimestamptzNanoType)
    if is_nano and not isinstance(transform, IdentityTransform | VoidTransform):
        # PyIceberg has no hours of nanoseconds, and rounds those before 1970 up for a bucket.
        # Arrow's `floor_temporal` overflows for the earliest nanoseconds.
        nanos = column.cast(pa.int64()).fill_null(0).to_numpy()
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        micros = pa.array(nanos // 1_000, mask=is_null)
        column, kind = micros.cast(pa.timestamp("us")), TimestampType()
    result: pa.Array = transform.pyarrow_transform(kind)(column)
    return result


def partition_values(column: pa.Array) -> list[Any]:
    """Return partition values, dates and timestamps as numbers: Python lacks some of them."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def partition_json(spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values of a partition by field id, in the single-value form of the spec."""
    described: dict[str, Any] = {}
    for item, value in zip(spec.fields, values, strict=True):
        if value is None:
            continue
        if isinstance(item.transform, DayTransform):
            # Java's partition type of a day is a date, Arrow's transform gives a number.
            described[str(item.field_id)] = _iso(value, "D")
        elif isinstance(item.transform, IdentityTransform | TruncateTransform):
            source = schema.find_type(item.source_id)
            described[str(item.field_id)] = _to_json(source, value)
        else:
            described[str(item.field_id)] = value
    return described


def _to_json(kind: IcebergType, value: Any) -> Any:
    if isinstance(kind, DateType):
        return _iso(value, "D")
    if isinstance(kind, TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType):
        is_nano = isinstance(kind, TimestampNanoType | TimestamptzNanoType)
        has_zone = isinstance(kind, TimestamptzType | TimestamptzNanoType)
        return _iso(value, "ns" if is_nano else "us") + ("+00:00" if has_zone else "")
    return to_json(kind, value)  # type: ignore[arg-type]


def _iso(value: int, unit: Literal["D", "us", "ns"]) -> str:
    """Return a date or a timestamp as ISO 8601 has it, also outside of the years 1 to 9999."""
    text = str(np.datetime64(value, unit)).removesuffix(".000000")
    year, month, rest = text.rsplit("-", 2)
    # Java wants four digits at least, and a sign before more of them.
    sign = "-" if int(year) < 0 else "+" if int(year) > 9999 else ""
    return f"{sign}{abs(int(year)):04}-{month}-{rest}"


def path_to(struct: StructType, field_id: int) -> list[int]:
    """Return the way to a field through nested structs, as the index at each level."""
    from pyiceberg.types import StructType

    for index, column in enumerate(struct.fields):
        if column.field_id == field_id:
            return [index]
        if isinstance(column.field_type, StructType):
            rest = path_to(column.field_type, field_id)
            if rest:
                return [index, *rest]
    return []
