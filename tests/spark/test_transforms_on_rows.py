from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icestream.contracts import registry
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, "5"), (2, "7")], "id int, `the.amount` string")


def applied(rows: DataFrame, kind: str, value: Any) -> list[tuple[Any, ...]]:
    transform = registry.find("transforms", kind)
    result: DataFrame = transform(transform.options_type.model_validate(value)).apply(rows)
    return [tuple(result.columns), *(tuple(row) for row in result.collect())]


def test_filter_keeps_rows(rows: DataFrame) -> None:
    assert applied(rows, "filter", "id > 1") == [("id", "the.amount"), (2, "7")]


def test_select_computes_columns(rows: DataFrame) -> None:
    assert applied(rows, "select", ["id + 1 AS next"]) == [("next",), (2,), (3,)]


def test_rename_renames_columns(rows: DataFrame) -> None:
    assert applied(rows, "rename", {"id": "key"})[0] == ("key", "the.amount")


def test_drop_removes_columns(rows: DataFrame) -> None:
    assert applied(rows, "drop", ["the.amount"]) == [("id",), (1,), (2,)]


def test_cast_changes_types(rows: DataFrame) -> None:
    assert applied(rows, "cast", {"the.amount": "int"})[1:] == [(1, 5), (2, 7)]


@pytest.mark.parametrize(
    ("kind", "value"), [("drop", ["no"]), ("rename", {"no": "x"}), ("cast", {"no": "int"})]
)
def test_missing_column_is_an_error(kind: str, value: Any, rows: DataFrame) -> None:
    with pytest.raises(SchemaMismatchError, match="the rows have no column 'no'"):
        applied(rows, kind, value)
