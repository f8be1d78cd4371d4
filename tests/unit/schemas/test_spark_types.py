from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.errors import PlanError
from icestream.schemas.spark_types import EXAMPLE, parse_spark_type


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BIGINT", pa.int64()),
        (" string ", pa.string()),
        ("decimal", pa.decimal128(10, 0)),
        ("dec(5)", pa.decimal128(5, 0)),
        ("numeric(12, 2)", pa.decimal128(12, 2)),
        ("varchar(10)", pa.string()),
        ("array<map<string,int>>", pa.list_(pa.map_(pa.string(), pa.int32()))),
        ("struct<a:int, `b c` date>", pa.struct([("a", pa.int32()), ("b c", pa.date32())])),
        ("struct<>", pa.struct([])),
        ("timestamp_ntz", pa.timestamp("us")),
        ("interval day to second", None),
        ("variant", None),
        ("string collate UNICODE", None),
        ("struct<a: int COMMENT 'x', b: bigin>", None),
    ],
)
def test_types_of_spark_are_read(text: str, kind: pa.DataType | None) -> None:
    assert parse_spark_type(text) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bigin", f"no type is called 'bigin'\n  Did you mean 'bigint'? {EXAMPLE}"),
        ("array<Strng>", f"no type is called 'Strng'\n  Did you mean 'string'? {EXAMPLE}"),
        ("frobnicate", f"no type is called 'frobnicate'\n  {EXAMPLE}"),
        ("decimal(10,2", f"not a type: 'decimal(10,2'\n  {EXAMPLE}"),
        ("decimal(a)", f"not a type: 'decimal(a)'\n  {EXAMPLE}"),
        ("varchar", f"not a type: 'varchar'\n  {EXAMPLE}"),
        ("int(5)", f"not a type: 'int(5)'\n  {EXAMPLE}"),
        ("array", f"not a type: 'array'\n  {EXAMPLE}"),
        ("array<int", f"not a type: 'array<int'\n  {EXAMPLE}"),
        ("map<int>", f"not a type: 'map<int>'\n  {EXAMPLE}"),
        ("", f"not a type: ''\n  {EXAMPLE}"),
        (
            "decimal(50,2)",
            "decimal(50,2) is not a type\n  The precision is 1 to 38, the scale at most the "
            "precision.",
        ),
    ],
)
def test_text_that_spark_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_spark_type(text)
    assert str(caught.value) == message
