"""Partition values as Iceberg's JSON has them."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import to_json
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import StructType

UNIX_DAY_ZERO = date(1970, 1, 1)


def partition_json(spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values of a partition by field id, in the single-value form of the spec."""
    described: dict[str, Any] = {}
    for item, value in zip(spec.fields, values, strict=True):
        if value is None:
            continue
        if isinstance(item.transform, DayTransform):
            # Java's partition type of a day is a date, Arrow's transform gives a number.
            described[str(item.field_id)] = (UNIX_DAY_ZERO + timedelta(days=value)).isoformat()
        elif isinstance(item.transform, IdentityTransform | TruncateTransform):
            source = schema.find_type(item.source_id)
            described[str(item.field_id)] = to_json(source, value)  # type: ignore[arg-type]
        else:
            described[str(item.field_id)] = value
    return described


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
