"""Which changes of a table the options allow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.errors import SchemaMismatchError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.sinks.iceberg.migration import allowed_changes
from icestream.tables.schema import compare

TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int32()),
        ("at", pa.struct([pa.field("zone", pa.string(), nullable=False)])),
    ]
)
GROWN = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("at", pa.struct([("x", pa.int64())])),
        ("new", pa.string()),
    ]
)
CAST = "Convert the stream with a `cast` transform, or alter the table."
FULL = (
    "Use `schema_evolution: full`, convert the stream with a `cast` transform, or alter the table."
)

RENAME = (
    "Most engines treat such names as one column. Rename the stream's column with a `rename` "
    "transform; if both columns are in the stream, leave one out with the source's `schema`."
)


def allowed(stream: pa.Schema, evolution: str) -> list[str]:
    return [
        str(change)
        for change in allowed_changes(compare(arrow_to_iceberg(TABLE), stream), evolution)
    ]


def refusal(stream: pa.Schema, evolution: str) -> str:
    with pytest.raises(SchemaMismatchError) as caught:
        allowed(stream, evolution)
    return str(caught.value)


def test_full_allows_every_change() -> None:
    assert allowed(GROWN, "full") == [
        "widen 'n' from int to long",
        "make 'id' optional",
        "make 'at.zone' optional",
        "add 'at.x' long",
        "add 'new' string",
    ]


def test_columns_are_added_but_nothing_else_is_changed() -> None:
    more = TABLE.append(pa.field("new", pa.string()))

    assert allowed(more, "add_columns") == ["add 'new' string"]
    assert refusal(GROWN, "add_columns") == (
        "column 'n' is int in the table and long in the stream; "
        f"column 'at.zone' is required by the table and missing in the stream\n  {FULL}"
    )


def test_strict_shows_the_whole_difference() -> None:
    assert refusal(TABLE.append(pa.field("new", pa.string())), "strict") == (
        "the stream has columns that the table lacks: 'new' string\n"
        "  Use `schema_evolution: add_columns`, or alter the table."
    )
    assert refusal(GROWN, "strict") == (
        "column 'n' is int in the table and long in the stream; "
        "column 'at.zone' is required by the table and missing in the stream; "
        "the stream has columns that the table lacks: 'at.x' long, 'new' string\n"
        f"  {FULL}"
    )


@pytest.mark.parametrize("evolution", ["strict", "add_columns", "full"])
def test_incompatible_type_is_refused_in_every_mode(evolution: str) -> None:
    stream = pa.schema([pa.field("id", pa.string(), nullable=False)])

    assert refusal(stream, evolution).startswith(
        "column 'id' is long in the table and string in the stream"
    )
    assert refusal(stream, evolution).endswith(CAST)


@pytest.mark.parametrize("evolution", ["strict", "add_columns", "full"])
def test_column_that_differs_from_one_of_the_table_only_in_case_is_refused(evolution: str) -> None:
    stream = pa.schema([pa.field("ID", pa.int64()), *TABLE])

    assert refusal(pa.schema([TABLE.field("id"), ("N", pa.int32())]), evolution) == (
        f"column 'N' of the stream and column 'n' of the table differ only in case\n  {RENAME}"
    )
    assert refusal(stream, evolution) == (
        f"columns 'ID' and 'id' of the stream differ only in case\n  {RENAME}"
    )


@pytest.mark.parametrize("evolution", ["strict", "add_columns"])
def test_nullable_column_may_feed_a_required_one(evolution: str) -> None:
    assert allowed(pa.schema([("id", pa.int64()), ("n", pa.int32())]), evolution) == []
