"""Columns that the options of a sink name, checked before any row is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts.columns import Columns, ColumnType
from icestream.errors import SchemaMismatchError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg.column_checks import check_columns, table_columns
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.partition_terms import PartitionTerm
from icestream.sinks.iceberg.partitioning import partition_spec

if TYPE_CHECKING:
    from icestream.contracts.columns import OptionProblem

TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "small": pa.int32(),
    "flag": pa.bool_(),
    "price": pa.decimal128(10, 2),
    "ratio": pa.float64(),
    "single": pa.float32(),
    "kind": pa.string(),
    "raw": pa.binary(),
    "uid": pa.binary(16),
    "day": pa.date32(),
    "clock": pa.time64("us"),
    "at": pa.timestamp("us", tz="UTC"),
    "local": pa.timestamp("us"),
    "nanos": pa.timestamp("ns", tz="UTC"),
    "tags": pa.list_(pa.string()),
    "labels": pa.map_(pa.string(), pa.string()),
    "who": pa.struct([("name", pa.string()), ("born", pa.date32())]),
}
ROWS = Columns.of(pa.schema(list(TYPES.items())))
THEY_HAVE = f"They have: {', '.join(TYPES)}."
UPSERT = {"commit_mode": "upsert", "key_fields": ["id"]}


def set_apart(name: str) -> list[str]:
    return [other for other in TYPES if other != name]


def problems(rows: Columns = ROWS, **options: Any) -> list[tuple[Any, ...]]:
    found: list[OptionProblem] = []
    check_columns(IcebergOptions.model_validate(options), rows, found.append)
    return [(one.path, one.what, one.todo) for one in found]


@pytest.mark.parametrize("column", TYPES)
@pytest.mark.parametrize(
    "transform", ["identity", "year", "month", "day", "hour", "bucket", "truncate"]
)
def test_partition_transforms_take_the_types_that_iceberg_takes(
    transform: str, column: str
) -> None:
    width = 4 if transform in ("bucket", "truncate") else None
    term = PartitionTerm(transform, width, column)
    text = f"{transform}({column})" if width is None else f"{transform}({width}, {column})"
    schema = arrow_to_iceberg(pa.schema(list(TYPES.items())), 3)
    try:
        partition_spec(schema, [term])
        is_refused = False
    except SchemaMismatchError:
        is_refused = True

    assert bool(problems(partitioning=[text])) == is_refused


@pytest.mark.parametrize(
    ("options", "path", "what", "todo"),
    [
        (
            {"commit_mode": "upsert", "key_fields": ["kind", "ID"]},
            ("key_fields", 1),
            "the rows have no column 'ID'",
            f"Did you mean 'id'? {THEY_HAVE}",
        ),
        (
            {**UPSERT, "key_fields": ["ratio"]},
            ("key_fields", 0),
            "column 'ratio' is a double, which can't be part of a key",
            "Use a column of whole numbers, dates, times, text or bytes.",
        ),
        (
            {**UPSERT, "sequence_field": "att"},
            ("sequence_field",),
            "the rows have no column 'att'",
            f"Did you mean 'at'? {THEY_HAVE}",
        ),
        (
            {**UPSERT, "sequence_field": "kind"},
            ("sequence_field",),
            "column 'kind' is a string, which can't be compared by age",
            "Use a column of whole numbers, dates, times or timestamps.",
        ),
        (
            {**UPSERT, "op_field": "op"},
            ("op_field",),
            "the rows have no column 'op'",
            THEY_HAVE,
        ),
        (
            {"partitioning": "time", "partition_fields": ["at", "locl"]},
            ("partition_fields", 1),
            "the rows have no column 'locl'",
            f"Did you mean 'local'? {THEY_HAVE}",
        ),
        (
            {"partitioning": "time", "partition_fields": ["price"]},
            ("partition_fields", 0),
            "column 'price' is a decimal(10,2), which 'day' can't transform",
            "It takes a date or a timestamp. Use another transform, or another column.",
        ),
        *(
            (
                {**UPSERT, "op_field": "kind", "sequence_field": "at", option: ["id", "kind"]},
                (option, 1),
                "the table has no column 'kind': it is the `op_field`, which is not stored",
                f"Use a column of the table: {', '.join(set_apart('kind'))}.",
            )
            for option in ("partitioning", "sort_order")
        ),
        (
            {"partitioning": ["who"]},
            ("partitioning", 0),
            "column 'who' is a struct, which 'identity' can't transform",
            "It takes any type that is not nested. Use another transform, or another column.",
        ),
        (
            {"partitioning": ["days(clock)"]},
            ("partitioning", 0),
            "column 'clock' is a time, which 'day' can't transform",
            "It takes a date or a timestamp. Use another transform, or another column.",
        ),
        (
            {"partitioning": ["who.nam"]},
            ("partitioning", 0),
            "the rows have no column 'who.nam'",
            "Did you mean 'who.name'? They have: who.name, who.born.",
        ),
        (
            {"partitioning": ["hours(who.born)"]},
            ("partitioning", 0),
            "column 'who.born' is a date, which 'hour' can't transform",
            "It takes a timestamp. Use another transform, or another column.",
        ),
        (
            {"sort_order": ["id", "knd desc"]},
            ("sort_order", 1),
            "the rows have no column 'knd'",
            f"Did you mean 'kind'? {THEY_HAVE}",
        ),
        (
            {"route_by": "knd"},
            ("route_by",),
            "the rows have no column 'knd'",
            f"Did you mean 'kind'? {THEY_HAVE}",
        ),
        (
            {"route_by": "lower(knd)"},
            ("route_by",),
            "the rows have no column 'knd'",
            f"Did you mean 'kind'? {THEY_HAVE}",
        ),
        (
            {"route_by": "tags"},
            ("route_by",),
            "column 'tags' must be text, found an array",
            "Use a column of text, or a Spark SQL expression that gives text.",
        ),
        (
            {"expect": [{"name": "a", "expr": "prize > 0"}]},
            ("expect", 0, "expr"),
            "the rows have no column 'prize'",
            f"Did you mean 'price'? {THEY_HAVE}",
        ),
        (
            {
                "commit_mode": "overwrite_partitions",
                "partitioning": "none",
                "overwrite_partitions": ["kind=a"],
            },
            ("overwrite_partitions", 0),
            "the table is unpartitioned, so it has no partition 'kind=a'",
            "Add `partitioning`, or use `commit_mode: overwrite_table`.",
        ),
        (
            {
                "commit_mode": "overwrite_partitions",
                "partitioning": ["days(at)"],
                "overwrite_partitions": ["at_day=2024-01-01", "kind=a"],
            },
            ("overwrite_partitions", 1),
            "partition 'kind=a': the table has no partition field 'kind'",
            "Its partition fields: at_day.",
        ),
    ],
)
def test_option_that_names_a_wrong_column_is_reported(
    options: dict[str, Any], path: tuple[Any, ...], what: str, todo: str
) -> None:
    assert problems(**options) == [(path, what, todo)]


@pytest.mark.parametrize(
    "options",
    [
        {**UPSERT, "delete_mode": "soft", "partitioning": ["_is_deleted", "days(_deleted_at)"]},
        {**UPSERT, "sequence_field": "at", "op_field": "kind", "sort_order": ["who.name"]},
        {"partitioning": ["bucket(4, who.name)", "void(tags)"]},
        {"route_by": "who.name"},
        {"route_by": "concat(kind, '_', year(at))"},
        {"commit_mode": "overwrite_partitions", "overwrite_partitions": ["kind=a"]},
        {
            "commit_mode": "overwrite_partitions",
            "partitioning": ["days(at)"],
            # A table that exists may have a partition field of this name.
            "overwrite_partitions": ["event_date=2024-01-01"],
        },
    ],
)
def test_option_that_may_be_right_is_not_reported(options: dict[str, Any]) -> None:
    assert problems(**options) == []


def test_unknown_columns_may_have_any_name_and_type() -> None:
    rows = Columns((ColumnType("at", None),), is_complete=False)
    options: dict[str, Any] = {**UPSERT, "partitioning": ["days(at)", "kind"]}
    assert problems(rows, **options) == []


def test_columns_of_a_new_table_are_without_the_operation_and_with_soft_deletes() -> None:
    rows = Columns.of(pa.schema([("id", pa.int64()), ("op", pa.string())]))
    options = IcebergOptions.model_validate({**UPSERT, "op_field": "op", "delete_mode": "soft"})
    assert table_columns(options, rows).names == ["id", "_is_deleted", "_deleted_at"]
    assert table_columns(IcebergOptions(), rows) == rows
