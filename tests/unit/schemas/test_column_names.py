"""Columns whose names differ only in case, or clash otherwise."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from icestream.errors import SchemaMismatchError
from icestream.schemas.column_names import DIFFER_IN_CASE, case_clashes_within
from icestream.tables.schema import RenameColumn, arrow_to_iceberg, diff, is_compatible

TABLE = pa.schema([("id", pa.int64()), ("at", pa.struct([("zip", pa.string())]))])


def refusal(*columns: tuple[str, pa.DataType]) -> tuple[str, str | None]:
    with pytest.raises(SchemaMismatchError) as caught:
        diff(arrow_to_iceberg(TABLE), pa.schema(list(columns)))
    return caught.value.what, caught.value.todo


def test_new_column_that_clashes_with_the_table_is_reported() -> None:
    assert refusal(("Id", pa.int64())) == (
        "column 'Id' of the stream and column 'id' of the table differ only in case",
        DIFFER_IN_CASE,
    )
    assert not is_compatible(arrow_to_iceberg(TABLE), pa.schema([("Id", pa.int64())]))


def test_clashing_struct_member_is_reported_with_its_path() -> None:
    assert refusal(("at", pa.struct([("ZIP", pa.string())])))[0] == (
        "column 'at.ZIP' of the stream and column 'at.zip' of the table differ only in case"
    )


def test_clash_of_two_new_columns_is_reported_once() -> None:
    assert refusal(("new", pa.int64()), ("NEW", pa.int64()))[0] == (
        "columns 'NEW' and 'new' of the stream differ only in case"
    )


def test_clash_within_a_new_column_is_reported_at_every_depth() -> None:
    twins = pa.struct([("x", pa.int64()), ("X", pa.int64())])
    inside = pa.list_(pa.map_(pa.string(), twins))

    assert refusal(("new", inside))[0] == (
        "columns 'new.element.value.X' and 'new.element.value.x' of the stream differ only in case"
    )


def test_other_problems_come_first_and_determine_the_hint() -> None:
    what, todo = refusal(("ID", pa.int64()), ("at", pa.int64()))

    assert what.startswith("column 'at' is ")
    assert what.endswith("'ID' of the stream and column 'id' of the table differ only in case")
    assert todo == "Convert the stream with a `cast` transform, or alter the table."


def test_table_that_already_has_both_columns_is_accepted() -> None:
    both = pa.schema([("id", pa.int64()), ("ID", pa.int64())])

    assert diff(arrow_to_iceberg(both), both) == []


def test_rename_may_change_only_the_case() -> None:
    stream = pa.schema([("ID", pa.int64())])

    assert diff(arrow_to_iceberg(TABLE), stream, renames={"id": "ID"}) == [
        RenameColumn(("id",), "ID")
    ]


def test_names_in_different_structs_do_not_clash() -> None:
    columns = pa.schema([("a", pa.struct([("b", pa.int64())])), ("B", pa.int64())])

    assert case_clashes_within((), arrow_to_iceberg(columns).as_struct()) == []


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (
            [("a b", pa.int64()), ("a_x20b", pa.int64())],
            "column 'a_x20b' and column 'a b' have the same name in data files",
        ),
        (
            [("l", pa.list_(pa.struct([("_1", pa.int64()), ("1", pa.int64())])))],
            "column 'l.element.1' and column 'l.element._1' have the same name in data files",
        ),
        (
            [("s.b", pa.int64()), ("s", pa.struct([("b", pa.int64())]))],
            "columns 's' -> 'b' and 's.b' have the same full name",
        ),
        (
            [("l", pa.list_(pa.int64())), ("l.element", pa.int64())],
            "columns 'l.element' and 'l' -> 'element' have the same full name",
        ),
        (
            [("m", pa.map_(pa.string(), pa.int64())), ("m.key", pa.int64())],
            "columns 'm.key' and 'm' -> 'key' have the same full name",
        ),
        (
            [("m", pa.map_(pa.string(), pa.int64())), ("m.value", pa.int64())],
            "columns 'm.value' and 'm' -> 'value' have the same full name",
        ),
        (
            [("m", pa.map_(pa.string(), pa.struct([("a b", pa.int64()), ("a_x20b", pa.int64())])))],
            "column 'm.value.a_x20b' and column 'm.value.a b' have the same name in data files",
        ),
        (
            [("l", pa.large_list(pa.struct([("1", pa.int64()), ("_1", pa.int64())])))],
            "column 'l.element._1' and column 'l.element.1' have the same name in data files",
        ),
        ([("", pa.int64())], "a field has no name"),
    ],
)
def test_columns_with_clashing_names_are_refused(columns: list[Any], problem: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        arrow_to_iceberg(pa.schema(columns))

    assert str(caught.value) == (
        f"{problem}\n  Rename one of the columns with a `rename` transform, or leave one out with "
        "the source's `schema`."
    )
