from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from icestream.contracts import registry
from icestream.contracts.transform import require_columns
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Rows:
    """Stands in for a DataFrame of which only the column names are used."""

    columns = ("id", "Amount")


@pytest.mark.parametrize(
    ("kind", "short", "long"),
    [
        ("filter", "a > 0", {"expr": "a > 0"}),
        ("select", ["a", "b"], {"columns": ("a", "b")}),
        ("drop", ["a"], {"columns": ("a",)}),
        ("rename", {"a": "b"}, {"columns": {"a": "b"}}),
        ("rename", {"columns": "b"}, {"columns": {"columns": "b"}}),
        ("compute", {"a": "b + 1"}, {"columns": {"a": "b + 1"}}),
        ("compute", {"columns": "1"}, {"columns": {"columns": "1"}}),
        ("cast", {"a": "int"}, {"columns": {"a": "int"}}),
        ("cast", {"columns": "int"}, {"columns": {"columns": "int"}}),
    ],
)
def test_shorthand_equals_the_full_form(kind: str, short: Any, long: Any) -> None:
    options_type = registry.find("transforms", kind).options_type
    assert options_type.model_validate(short).model_dump() == long
    assert options_type.model_validate(long).model_dump() == long
    assert options_type(**long).model_dump() == long


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("filter", ""),
        ("filter", 5),
        ("filter", {"where": "x"}),
        ("select", []),
        ("select", "a"),
        ("drop", []),
        ("rename", {}),
        ("rename", ["a"]),
        ("rename", {"a": "x", "b": "X"}),
        ("rename", {"a": "x", "A": "y"}),
        ("cast", {"a": 5}),
        ("compute", {}),
        ("compute", {"a": "1", "A": "2"}),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        registry.find("transforms", kind).options_type.model_validate(value)


def test_columns_are_found_regardless_of_case() -> None:
    rows: DataFrame = Rows()  # type: ignore[assignment]
    require_columns(rows, ["ID", "amount"], "drop")


def test_missing_column_is_reported() -> None:
    rows: DataFrame = Rows()  # type: ignore[assignment]
    with pytest.raises(SchemaMismatchError) as caught:
        require_columns(rows, ["id", "price"], "drop")
    assert str(caught.value) == (
        "transform 'drop': the rows have no column 'price'\n  They have: id, Amount."
    )


@pytest.mark.parametrize(
    ("kind", "value", "name", "new"),
    [
        ("filter", "a > 0", "a", "a"),
        ("drop", ["A"], "a", None),
        ("drop", ["b"], "a", "a"),
        ("rename", {"A": "b"}, "a", "b"),
        ("rename", {"b": "c"}, "a", "a"),
        ("cast", {"a": "int"}, "a", None),
        ("cast", {"b": "int"}, "a", "a"),
        ("compute", {"A": "a"}, "a", None),
        ("compute", {"b": "a"}, "a", "a"),
        ("select", ["b", "a"], "a", "a"),
        ("select", ["`a` AS `b c`"], "a", "b c"),
        ("select", ["a b"], "A", "b"),
        ("select", ["*", "b + 1 AS c"], "a", "a"),
        ("select", ["a + 1 AS a"], "a", None),
        ("select", ["upper(a) AS a"], "a", None),
    ],
)
def test_step_tells_where_the_values_of_a_column_are(
    kind: str, value: Any, name: str, new: str | None
) -> None:
    transform = registry.find("transforms", kind)
    step = transform(transform.options_type.model_validate(value))
    assert step.is_row_by_row
    assert step.new_name(name) == new


def test_drop_fits_itself_to_the_columns_of_a_table() -> None:
    transform = registry.find("transforms", "drop")
    step = transform(transform.options_type.model_validate(["a", "b"]))
    assert step.fit(["x", "B"]).options.columns == ("b",)
    assert step.fit(["x"]) is None
