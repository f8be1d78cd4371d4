"""The changes that a table needs for a stream, and the problems that no change fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
)

from icestream.errors import SchemaMismatchError
from icestream.tables.schema import (
    AddColumn,
    MakeOptional,
    arrow_to_iceberg,
    compare,
    diff,
    iceberg_to_arrow,
    is_compatible,
    renames_by_id,
)

if TYPE_CHECKING:
    from icestream.tables.schema import SchemaChange

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


def changes(*columns: tuple[str, pa.DataType], table: pa.Schema = TABLE) -> list[SchemaChange]:
    return diff(arrow_to_iceberg(table), pa.schema(list(columns)))


def words(changes: list[SchemaChange]) -> list[str]:
    return [str(change) for change in changes]


def test_columns_of_the_table_need_no_change_whatever_their_order() -> None:
    table = arrow_to_iceberg(TABLE)

    assert diff(table, table) == []
    assert is_compatible(table, table)
    assert changes(("ratio", pa.float64()), ("id", pa.int64())) == []


def test_narrower_types_fit_wider_columns() -> None:
    assert (
        changes(("id", pa.int32()), ("ratio", pa.float32()), ("price", pa.decimal128(5, 2))) == []
    )


def test_new_columns_are_added_at_every_depth() -> None:
    added = changes(
        ("new", pa.string()),
        ("at", pa.struct([("name", pa.string()), ("lon", pa.float64())])),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64())]))),
        ("by", pa.map_(pa.string(), pa.struct([("m", pa.int32())]))),
    )

    assert [change.path for change in added] == [
        ("new",),
        ("at", "lon"),
        ("items", "element", "qty"),
        ("by", "value", "m"),
    ]
    assert words(added) == [
        "add 'new' string",
        "add 'at.lon' double",
        "add 'items.element.qty' long",
        "add 'by.value.m' int",
    ]
    assert not is_compatible(arrow_to_iceberg(TABLE), pa.schema([("new", pa.string())]))


def test_struct_member_is_not_a_top_level_column() -> None:
    assert words(changes(("lat", pa.float64()))) == ["add 'lat' double"]


def test_wider_types_widen_columns_at_every_depth() -> None:
    table = pa.schema(
        [
            ("n", pa.int32()),
            ("f", pa.float32()),
            ("d", pa.decimal128(5, 2)),
            ("s", pa.struct([("n", pa.int32())])),
            ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.float32())),
        ]
    )
    widened = changes(
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("s", pa.struct([("n", pa.int64())])),
        ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.float64())),
        table=table,
    )

    assert words(widened) == [
        "widen 'n' from int to long",
        "widen 'f' from float to double",
        "widen 'd' from decimal(5, 2) to decimal(9, 2)",
        "widen 's.n' from int to long",
        "widen 'l.element' from int to long",
        "widen 'm.value' from float to double",
    ]


def test_column_that_the_stream_does_not_require_is_made_optional() -> None:
    table = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("gone", pa.int64(), nullable=False),
            ("at", pa.struct([pa.field("zone", pa.string(), nullable=False)])),
            ("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ]
    )
    result = changes(
        ("id", pa.int64()),
        ("at", pa.struct([("zone", pa.string())])),
        ("l", pa.list_(pa.int64())),
        table=table,
    )

    assert result == [
        MakeOptional(("id",)),
        MakeOptional(("at", "zone")),
        MakeOptional(("l", "element")),
        MakeOptional(("gone",), is_missing=True),
    ]


def test_only_a_declared_stream_drops_what_it_lacks() -> None:
    table = arrow_to_iceberg(TABLE)
    stream = pa.schema([("id", pa.int64()), ("at", pa.struct([("lat", pa.float64())]))])

    assert diff(table, stream) == []
    assert words(diff(table, stream, declared=True)) == [
        "drop 'at.name'",
        "drop 'price'",
        "drop 'ratio'",
        "drop 'name'",
        "drop 'items'",
        "drop 'by'",
    ]


def test_column_that_the_table_needs_is_not_dropped() -> None:
    table = arrow_to_iceberg(TABLE)
    comparison = compare(
        table,
        pa.schema([("ratio", pa.float64()), ("name", pa.string()), ("price", pa.decimal128(9, 2))]),
        declared=True,
        undroppable={"id": "partitions the table"},
        keep=["at.lat"],
    )

    assert words(list(comparison.changes)) == ["drop 'items'", "drop 'by'"]
    assert comparison.problems == (
        "column 'id' of the table partitions the table and is missing in the stream",
    )


def test_key_of_the_rows_stays_required_and_is_not_dropped() -> None:
    table = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "name", StringType(), required=True),
        identifier_field_ids=[1],
    )

    assert diff(table, pa.schema([("id", pa.int64()), ("name", pa.string())])) == [
        MakeOptional(("name",))
    ]
    for declared in (True, False):
        with pytest.raises(SchemaMismatchError) as caught:
            diff(table, pa.schema([("name", pa.string())]), declared=declared)
        assert caught.value.what == (
            "column 'id' of the table identifies its rows and is missing in the stream"
        )


def test_renamed_column_keeps_its_values() -> None:
    table = arrow_to_iceberg(TABLE)
    stream = pa.schema([("id", pa.int64()), ("title", pa.string())])

    result = diff(table, stream, renames={"name": "title", "never": "there"})
    assert words(result) == ["rename 'name' to 'title'"]
    deep = pa.schema([("at", pa.struct([("latitude", pa.float64())]))])
    for new in ("latitude", "at.latitude"):
        assert words(diff(table, deep, renames={"at.lat": new})) == [
            "rename 'at.lat' to 'latitude'"
        ]


def test_applied_rename_is_not_repeated() -> None:
    table = arrow_to_iceberg(pa.schema([("title", pa.string())]))

    assert diff(table, pa.schema([("title", pa.string())]), renames={"name": "title"}) == []


def test_rename_that_would_lose_something_is_refused() -> None:
    table = arrow_to_iceberg(TABLE)
    with pytest.raises(SchemaMismatchError) as caught:
        diff(
            table,
            pa.schema([("ratio", pa.float64()), ("price", pa.decimal128(9, 2))]),
            renames={"name": "ratio", "price": "cost"},
        )

    assert caught.value.what == (
        "column 'name' can't be renamed: the table already has a column 'ratio'; "
        "column 'price' can't be renamed to 'cost': the stream still has it"
    )


def test_renames_follow_from_column_ids() -> None:
    before, now = {1: "id", 2: "name", 3: "gone"}, {1: "id", 2: "title", 4: "new"}

    assert renames_by_id(before, now) == {"name": "title"}


@pytest.mark.parametrize(
    ("column", "kind", "what"),
    [
        ("id", pa.string(), "column 'id' is long in the table and string in the stream"),
        ("id", pa.float64(), "column 'id' is long in the table and double in the stream"),
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
        ("name", pa.binary(), "column 'name' is string in the table and binary in the stream"),
        (
            "at",
            pa.int64(),
            "column 'at' is struct<8: lat: optional double, 9: name: optional string> in the "
            "table and long in the stream",
        ),
    ],
)
def test_incompatible_type_is_reported(column: str, kind: pa.DataType, what: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        changes((column, kind))

    assert str(caught.value) == f"{what}\n  {TODO}"


@pytest.mark.parametrize(
    ("table", "stream", "what"),
    [
        (
            pa.map_(pa.int32(), pa.string()),
            pa.map_(pa.int64(), pa.string()),
            "column 'm.key' is int in the table and long in the stream",
        ),
        (
            pa.map_(pa.struct([("a", pa.int64())]), pa.string()),
            pa.map_(pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.string()),
            "column 'm.key.b' is missing in the table, and the key of a map can't gain members",
        ),
        (
            pa.map_(pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.string()),
            pa.map_(pa.struct([("a", pa.int64())]), pa.string()),
            "column 'm.key.b' of the table is part of a map's key and is missing in the stream",
        ),
    ],
)
def test_key_of_a_map_never_changes(table: pa.DataType, stream: pa.DataType, what: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        changes(("m", stream), table=pa.schema([("m", table)]))

    assert caught.value.what == what


def test_v3_promotions_that_no_engine_supports_are_refused() -> None:
    table = arrow_to_iceberg(pa.schema([("day", pa.date32())]))
    with pytest.raises(SchemaMismatchError) as caught:
        diff(table, pa.schema([("day", pa.timestamp("us"))]))

    assert caught.value.what == "column 'day' is date in the table and timestamp in the stream"


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        changes(("id", pa.string()), ("name", pa.int64()))

    assert caught.value.what == (
        "column 'id' is long in the table and string in the stream; "
        "column 'name' is string in the table and long in the stream"
    )


def test_new_column_keeps_its_comment() -> None:
    stream = Schema(NestedField(9, "n", IntegerType(), required=True, doc="how many"))

    assert diff(Schema(), stream) == [AddColumn(("n",), IntegerType(), "how many")]


def test_nanoseconds_need_format_3() -> None:
    columns = pa.schema([("at", pa.timestamp("ns"))])

    assert isinstance(arrow_to_iceberg(columns, 3).find_type("at"), TimestampNanoType)
    assert isinstance(arrow_to_iceberg(columns, 2).find_type("at"), TimestampType)


def test_unsupported_type_is_reported() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        arrow_to_iceberg(pa.schema([("span", pa.duration("s"))]))

    assert str(caught.value) == (
        "the rows have a type that Iceberg does not support: Column 'span' has an unsupported "
        "type: duration[s]\n  Cast the column with a `cast` transform, or give a `schema`."
    )


def test_columns_of_a_table_convert_back_to_arrow() -> None:
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

    assert iceberg_to_arrow(arrow_to_iceberg(columns)).equals(columns)
