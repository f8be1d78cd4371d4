"""Partition specs and sort orders from the terms of the file, and the partition of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import to_json
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    DateType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from icestream.errors import SchemaMismatchError
from icestream.sinks.iceberg.partition_terms import partition_field_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.partition_terms import PartitionTerm, SortTerm


AnyTransform: TypeAlias = Transform[Any, Any]
FIRST_PARTITION_ID = 1000
PLAIN_TRANSFORMS: dict[str, Callable[[], AnyTransform]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
    "identity": IdentityTransform,
    "void": VoidTransform,
}


def partition_spec(schema: Schema, terms: Sequence[PartitionTerm]) -> PartitionSpec:
    """Return the spec that partitions `schema` by `terms`."""
    fields = []
    for index, term in enumerate(terms):
        column = _column(schema, term.column, "partitioning")
        transform = _transform(term)
        if not transform.can_transform(column.field_type):
            raise SchemaMismatchError(
                f"partitioning: column {term.column!r} is a {column.field_type}, "
                f"which {term.transform!r} can't transform",
                todo="Use another transform, or another column.",
            )
        fields.append(
            PartitionField(
                source_id=column.field_id,
                field_id=FIRST_PARTITION_ID + index,
                transform=transform,
                name=partition_field_name(term, [item.name for item in schema.fields]),
            )
        )
    return PartitionSpec(*fields)


def describe_spec(spec: PartitionSpec, schema: Schema) -> str:
    """Return a spec in the notation of the file."""
    terms = []
    for field in spec.fields:
        column = schema.find_column_name(field.source_id)
        name, _, width = str(field.transform).rstrip("]").partition("[")
        inside = f"{width}, {column}" if width else column
        terms.append(f"{column}" if name == "identity" else f"{name}({inside})")
    return f"[{', '.join(terms)}]" if terms else "unpartitioned"


def sort_order(schema: Schema, terms: Sequence[SortTerm]) -> SortOrder:
    """Return the order that sorts `schema` by `terms`; the unsorted order for none."""
    fields = [
        SortField(
            source_id=_column(schema, term.column, "sort_order").field_id,
            transform=IdentityTransform(),
            direction=SortDirection.DESC if term.descending else SortDirection.ASC,
            null_order=NullOrder.NULLS_FIRST if term.nulls_first else NullOrder.NULLS_LAST,
        )
        for term in terms
    ]
    return SortOrder(*fields, order_id=1) if fields else SortOrder(order_id=0)


def _column(schema: Schema, name: str, option: str) -> NestedField:
    try:
        return schema.find_field(name)
    except ValueError as exc:
        raise SchemaMismatchError(
            f"{option}: the rows have no column {name!r}",
            todo=f"Their columns: {', '.join(schema.column_names)}.",
        ) from exc


def _transform(term: PartitionTerm) -> AnyTransform:
    if term.transform in PLAIN_TRANSFORMS:
        return PLAIN_TRANSFORMS[term.transform]()
    width = term.width or 1
    return BucketTransform(width) if term.transform == "bucket" else TruncateTransform(width)


Key = tuple[int, str]


class SpecChange(NamedTuple):
    """Partition fields to remove, by name, and to add, by name and term."""

    removed: tuple[str, ...] = ()
    added: tuple[tuple[str, PartitionTerm], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


def sets_partitioning(options: IcebergOptions) -> bool:
    """Tell whether the file sets the partitioning, so that the table's may be changed."""
    is_set = "partitioning" in options.model_fields_set
    return is_set and options.partitioning != "table_default"


def spec_change(
    schema: Schema,
    spec: PartitionSpec,
    specs: Iterable[PartitionSpec],
    terms: Sequence[PartitionTerm],
) -> SpecChange:
    """Return the change that partitions the table by `terms`; empty if it is, in any order.

    Args:
        schema: the table's columns.
        spec: its partition spec.
        specs: every spec that it ever had.
        terms: the partition fields of the file.

    Raises:
        SchemaMismatchError: a term does not fit the columns.
    """
    present = {_key(field): field for field in _active_fields(spec)}
    desired = partition_spec(schema, terms).fields
    keys = {_key(field) for field in desired}
    removed = tuple(field.name for key, field in present.items() if key not in keys)
    past = [field for older in specs for field in _active_fields(older)]
    added = tuple(
        (_free_name(field, term, past, schema), term)
        for field, term in zip(desired, terms, strict=True)
        if _key(field) not in present
    )
    return SpecChange(removed, added)


def _active_fields(spec: PartitionSpec) -> Iterator[PartitionField]:
    # Format v1 can't remove a field, and makes it void instead.
    return (field for field in spec.fields if not isinstance(field.transform, VoidTransform))


def _key(field: PartitionField) -> Key:
    return field.source_id, str(field.transform)


def _free_name(
    field: PartitionField, term: PartitionTerm, past: Sequence[PartitionField], schema: Schema
) -> str:
    """Return a name that no other field, current or former, and no column has.

    The metadata tables show the partitions of all specs side by side, by name. A field that the
    table had before gets its old name, so that Iceberg also gives it its old id.
    """
    used_names = {}
    for other in past:
        if _key(other) == _key(field):
            return other.name
        used_names[other.name] = other
    is_own_column = isinstance(field.transform, IdentityTransform)
    columns = {column.name: column.field_id for column in schema.fields}

    def is_free(name: str) -> bool:
        of_column = columns.get(name)
        is_clear = of_column is None or (is_own_column and of_column == field.source_id)
        return name not in used_names and is_clear

    candidates = [field.name]
    if term.width is not None:
        candidates.append(f"{field.name}_{term.width}")
    candidates += [f"{field.name}_{number}" for number in range(2, len(past) + len(columns) + 4)]
    return next(name for name in candidates if is_free(name))


def apply_transform(
    column: pa.Array, kind: IcebergType, transform: Transform[Any, Any]
) -> pa.Array:
    """Return the partition value of each value of a column."""
    is_nano = isinstance(kind, TimestampNanoType | TimestamptzNanoType)
    if is_nano and not isinstance(transform, IdentityTransform | VoidTransform):
        # PyIceberg has no `hour` for nanoseconds, and rounds those before 1970 up for `bucket`.
        # Arrow's `floor_temporal` overflows for the earliest nanoseconds.
        nanos = column.cast(pa.int64()).fill_null(0).to_numpy()
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        micros = pa.array(nanos // 1_000, mask=is_null)
        column, kind = micros.cast(pa.timestamp("us")), TimestampType()
    result: pa.Array = transform.pyarrow_transform(kind)(column)
    return result


def partition_values(column: pa.Array) -> list[Any]:
    """Return partition values, with dates and timestamps as numbers: Python can't hold them all."""
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
            # Java's partition type of a day is a date; Arrow's transform returns a number.
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
    """Return a date or a timestamp in ISO 8601, also outside of the years 1 to 9999."""
    text = str(np.datetime64(value, unit)).removesuffix(".000000")
    year, month, rest = text.rsplit("-", 2)
    # Java requires at least four digits, and a sign before more than four.
    sign = "-" if int(year) < 0 else "+" if int(year) > 9999 else ""
    return f"{sign}{abs(int(year)):04}-{month}-{rest}"


def field_path(struct: StructType, field_id: int) -> list[int]:
    """Return the path to a field through nested structs, as the index at each level."""
    for index, column in enumerate(struct.fields):
        if column.field_id == field_id:
            return [index]
        if isinstance(column.field_type, StructType):
            rest = field_path(column.field_type, field_id)
            if rest:
                return [index, *rest]
    return []
