"""Which columns a pipeline may drop: those that it declared itself."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg.migration import (
    declared_columns_json,
    droppable_columns,
    is_shared,
    property_key,
    read_declared_columns,
)

POINT = pa.struct([("x", pa.int64())])
TABLE = arrow_to_iceberg(pa.schema([("id", pa.int64()), ("note", pa.string()), ("at", POINT)]))
OURS = {1: "id", 2: "note", 3: "at", 4: "at.x"}
ID = arrow_to_iceberg(pa.schema([("id", pa.int64())]))


def test_declared_columns_are_read_back_from_the_property() -> None:
    stream = arrow_to_iceberg(pa.schema([("at", POINT), ("id", pa.int64()), ("later", pa.int64())]))
    text = declared_columns_json(TABLE, stream)

    assert text == '{"1":"id","3":"at","4":"at.x"}'
    assert read_declared_columns({property_key("shop"): text}, "shop") == {
        1: "id",
        3: "at",
        4: "at.x",
    }
    assert read_declared_columns({property_key("shop"): text}, "other") == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "b"}', "null"])
def test_corrupt_property_lets_nothing_be_dropped(text: str) -> None:
    assert read_declared_columns({property_key("shop"): text}, "shop") == {}


def test_declared_columns_may_be_dropped() -> None:
    assert droppable_columns(TABLE, OURS, ID) == {"note", "at", "at.x"}
    assert droppable_columns(TABLE, {}, ID) == set()


def test_column_with_a_member_added_by_another_tool_is_kept() -> None:
    assert droppable_columns(TABLE, {1: "id", 2: "note", 3: "at"}, ID) == {"note"}


def test_column_renamed_by_another_tool_is_kept() -> None:
    assert droppable_columns(TABLE, {**OURS, 2: "remark"}, ID) == {"at", "at.x"}


def test_column_that_the_stream_has_in_another_case_is_kept() -> None:
    stream = arrow_to_iceberg(pa.schema([("id", pa.int64()), ("Note", pa.string())]))
    assert droppable_columns(TABLE, OURS, stream) == {"at", "at.x"}


@pytest.mark.parametrize(
    ("key", "shared"),
    [
        ("icestream.mark.shop", False),
        ("icestream.mark.shop/dlq", False),
        ("icestream.columns.shop", False),
        ("icestream.mark.other", True),
        ("icestream.mark.other/dlq", True),
        ("icestream.columns.other", True),
        ("owner", False),
    ],
)
def test_table_is_shared_with_other_pipelines_only(key: str, shared: bool) -> None:
    assert is_shared({key: "{}"}, "shop") is shared
