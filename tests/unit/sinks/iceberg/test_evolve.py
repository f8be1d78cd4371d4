"""What must change in a table for a batch, and what can't."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.types import TimestampNanoType, TimestampType

from icestream.errors import SchemaMismatchError
from icestream.sinks.iceberg.evolve import missing_columns, to_arrow, to_iceberg

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

TODO = "Convert the stream with a `cast` transform, or alter the table."
TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("ratio", pa.float64()),
        ("name", pa.string()),
        ("at", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
        ("items", pa.list_(pa.struct([("sku", pa.string())]))),
        ("by", pa.map_(pa.string(), pa.struct([("n", pa.int64())]))),
    ]
)


def iceberg(*columns: tuple[str, pa.DataType]) -> Schema:
    return to_iceberg(pa.schema(list(columns)), 3)


def missing(*columns: tuple[str, pa.DataType]) -> list[str]:
    return [str(each) for each in missing_columns(to_iceberg(TABLE, 3), iceberg(*columns))]


def test_columns_of_the_table_are_missing_nothing_whatever_their_order() -> None:
    table = to_iceberg(TABLE, 3)

    assert missing_columns(table, table) == []
    assert missing(("ratio", pa.float64()), ("id", pa.int64())) == []


def test_narrower_types_fit_wider_columns() -> None:
    assert (
        missing(("id", pa.int32()), ("ratio", pa.float32()), ("price", pa.decimal128(5, 2))) == []
    )


def test_new_columns_are_told_at_every_depth_with_their_parent() -> None:
    found = missing_columns(
        to_iceberg(TABLE, 3),
        iceberg(
            ("new", pa.string()),
            ("at", pa.struct([("name", pa.string()), ("lon", pa.float64())])),
            ("items", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64())]))),
            ("by", pa.map_(pa.string(), pa.struct([("m", pa.int32())]))),
        ),
    )

    assert [(each.parent, each.column.name) for each in found] == [
        (None, "new"),
        ("at", "lon"),
        ("items.element", "qty"),
        ("by.value", "m"),
    ]
    assert [str(each) for each in found] == [
        "'new' string",
        "'at.lon' double",
        "'items.element.qty' long",
        "'by.value.m' int",
    ]


def test_member_of_a_struct_is_no_column_of_its_own() -> None:
    assert missing(("lat", pa.float64())) == ["'lat' double"]


@pytest.mark.parametrize(
    ("column", "kind", "what"),
    [
        ("id", pa.string(), "column 'id' is long in the table and string in the stream"),
        (
            "price",
            pa.decimal128(10, 3),
            "column 'price' is decimal(10, 2) in the table and decimal(10, 3) in the stream",
        ),
        (
            "at",
            pa.struct([("lat", pa.string())]),
            "column 'at.lat' is double in the table and string in the stream",
        ),
        (
            "items",
            pa.list_(pa.struct([("sku", pa.int64())])),
            "column 'items.element.sku' is string in the table and long in the stream",
        ),
        (
            "by",
            pa.map_(pa.int64(), pa.struct([("n", pa.int64())])),
            "column 'by.key' is string in the table and long in the stream",
        ),
        (
            "name",
            pa.binary(),
            "column 'name' is string in the table and binary in the stream",
        ),
        (
            "at",
            pa.int64(),
            "column 'at' is struct<8: lat: optional double, 9: name: optional string> in the "
            "table and long in the stream",
        ),
    ],
)
def test_type_that_does_not_fit_is_told(column: str, kind: pa.DataType, what: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        missing((column, kind))

    assert str(caught.value) == f"{what}\n  {TODO}"


def test_every_problem_is_told_at_once() -> None:
    table = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("n", pa.int32()),
            ("at", pa.struct([pa.field("zone", pa.string(), nullable=False)])),
        ]
    )
    with pytest.raises(SchemaMismatchError) as caught:
        missing_columns(
            to_iceberg(table, 3),
            iceberg(("n", pa.int64()), ("at", pa.struct([("x", pa.int64())]))),
        )

    assert caught.value.what == (
        "column 'n' is int in the table and long in the stream; "
        "column 'at.zone' is required by the table and missing in the stream; "
        "column 'id' is required by the table and missing in the stream"
    )


def test_nanoseconds_are_a_type_from_format_3_on() -> None:
    columns = pa.schema([("at", pa.timestamp("ns"))])

    assert isinstance(to_iceberg(columns, 3).find_type("at"), TimestampNanoType)
    assert isinstance(to_iceberg(columns, 2).find_type("at"), TimestampType)


def test_type_that_iceberg_lacks_is_told() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        to_iceberg(pa.schema([("span", pa.duration("s"))]), 3)

    assert str(caught.value) == (
        "the rows have a type that Iceberg lacks: Column 'span' has an unsupported type: "
        "duration[s]\n  Cast the column with a `cast` transform, or give a `schema`."
    )


def test_columns_of_a_table_come_back_as_arrow() -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("where", pa.struct([("lat", pa.float64())])),
            ("by", pa.map_(pa.string(), pa.int32())),
        ]
    )

    assert to_arrow(to_iceberg(columns, 3)).equals(columns)
