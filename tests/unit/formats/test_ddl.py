from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.errors import ConfigError, PlanError
from icestream.formats.ddl import parse_ddl

TODO = (
    "\n  Write columns as in Spark SQL, e.g. `id bigint, at timestamp, price decimal(10,2), "
    "tags array<string>, who struct<name:string>`."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bigint", pa.int64()),
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("smallint", pa.int32()),
        ("tinyint", pa.int32()),
        ("string", pa.string()),
        ("varchar(10)", pa.string()),
        ("boolean", pa.bool_()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("decimal(12,3)", pa.decimal128(12, 3)),
        ("decimal", pa.decimal128(10, 0)),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("binary", pa.binary()),
        ("array<string>", pa.list_(pa.string())),
        ("map<string, int>", pa.map_(pa.string(), pa.int32())),
        (
            "struct<b:int, c: array<double>>",
            pa.struct([("b", pa.int32()), ("c", pa.list_(pa.float64()))]),
        ),
    ],
)
def test_column_type_becomes_an_arrow_type(text: str, expected: pa.DataType) -> None:
    assert parse_ddl(f"a {text}") == pa.schema([("a", expected)])


def test_comment_and_not_null_are_kept() -> None:
    field = parse_ddl("id bigint NOT NULL COMMENT 'the id, of course'").field("id")

    assert not field.nullable
    assert field.metadata == {b"doc": b"the id, of course"}


def test_quoted_names_and_keywords_are_names() -> None:
    assert parse_ddl("`a b` string, `order` int, date date").names == ["a b", "order", "date"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schema: it lists no columns" + TODO),
        ("id foo", "schema: 'id foo' has the unknown type 'foo'" + TODO),
        (
            "id bigin",
            "schema: 'id bigin' has the unknown type 'bigin'\n  Did you mean 'bigint'? "
            + TODO.strip(),
        ),
        (
            "a array<strng>, b int, c",
            "schema: 'a array<strng>' has the unknown type 'strng'\n  Did you mean 'string'? "
            + TODO.strip()
            + "\nschema: 'c' is not a column with a type"
            + TODO,
        ),
        ("a int, id", "schema: 'id' is not a column with a type" + TODO),
        ("a int, , b int", "schema: '' is not a column with a type" + TODO),
        ("a int, a int", "schema: column 'a' is listed twice"),
        ("a interval", "schema: 'a interval' has the unknown type 'INTERVAL'" + TODO),
        ("a array", "schema: 'a array' has 'ARRAY' without its element types" + TODO),
        (
            "a decimal(50,2)",
            "schema: 'a decimal(50,2)' has decimal(50,2), which Iceberg does not support"
            "\n  The precision is 1 to 38, the scale at most the precision.",
        ),
        (
            "a int PRIMARY KEY",
            "schema: 'a int PRIMARY KEY' has 'PRIMARY KEY', which is not supported here"
            "\n  Only NOT NULL and COMMENT may follow a column's type.",
        ),
        (
            "price decimal(10,2)), at timestamp",
            "schema: 'price decimal(10,2)), at timestamp' is not a column with a type" + TODO,
        ),
        (
            "id bigint) USING x (b int",
            "schema: 'id bigint) USING x (b int' is not a column with a type" + TODO,
        ),
    ],
)
def test_error_names_the_wrong_column(
    text: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((PlanError, ConfigError)) as caught:
        parse_ddl(text)
    assert str(caught.value) == message
    assert caplog.messages == []
