"""The columns that transforms give, and their problems, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from icestream.contracts import registry
from icestream.contracts.columns import UNKNOWN_COLUMNS, Columns, OptionProblem

COLUMNS = Columns.of(pa.schema([("id", pa.int64()), ("name", pa.string())]))
THEY_HAVE = "They have: id, name."


def applied(kind: str, value: Any, columns: Columns = COLUMNS) -> tuple[Columns, list[Any]]:
    found = registry.find("transforms", kind)
    problems: list[OptionProblem] = []
    built = found(found.options_type.model_validate(value))
    return built.output_columns(columns, problems.append), problems


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (
            "filter",
            "nam = 'x'",
            (("expr",), "the rows have no column 'nam'", f"Did you mean 'name'? {THEY_HAVE}"),
        ),
        (
            "select",
            ["id", "idd + 1 AS x"],
            (("columns", 1), "the rows have no column 'idd'", f"Did you mean 'id'? {THEY_HAVE}"),
        ),
        *(
            (
                "select",
                items,
                (
                    ("columns", 1),
                    f"the name {items[1][-len('name') :]!r} is given twice; Spark SQL ignores case",
                    "Give it another name with AS. To replace a column and keep the others, use "
                    "`compute`.",
                ),
            )
            for items in (["*", "upper(name) AS name"], ["name", "name"], ["name", "id AS NAME"])
        ),
        ("drop", ["id", "x"], (("columns", 1), "the rows have no column 'x'", THEY_HAVE)),
        (
            "rename",
            {"x": "y"},
            (("columns", "x"), "the rows have no column 'x'", THEY_HAVE, True),
        ),
        (
            "rename",
            {"id": "NAME"},
            (
                ("columns", "id"),
                "column 'id' can't be renamed to 'NAME': that column already exists",
                "Rename that column too, or drop it first.",
            ),
        ),
        ("cast", {"x": "int"}, (("columns", "x"), "the rows have no column 'x'", THEY_HAVE, True)),
        (
            "cast",
            {"id": "strng"},
            (
                ("columns", "id"),
                "no type is called 'strng'",
                "Did you mean 'string'? Write a type of Spark SQL, e.g. `bigint`, `decimal(10,2)` "
                "or `array<string>`.",
            ),
        ),
    ],
)
def test_problem_names_the_option(kind: str, value: Any, problem: tuple[Any, ...]) -> None:
    assert applied(kind, value)[1] == [OptionProblem(*problem)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("filter", "anything > 0"),
        ("select", ["anything", "other AS x"]),
        ("select", ["*", "upper(name) AS name", "upper(id)", "upper(id)"]),
        ("drop", ["anything"]),
        ("rename", {"anything": "x"}),
        ("cast", {"anything": "int"}),
    ],
)
def test_unknown_columns_may_have_any_name(kind: str, value: Any) -> None:
    assert applied(kind, value, UNKNOWN_COLUMNS)[1] == []


def test_compute_uses_new_columns_that_are_listed_before() -> None:
    columns, problems = applied("compute", {"early": "late + 1", "late": "id + 1", "b": "LATE + 1"})
    what = "the rows have no column 'late'"
    assert problems == [OptionProblem(("columns", "early"), what, THEY_HAVE)]
    assert columns.names == ["id", "name", "early", "late", "b"]


def test_missing_column_does_not_hide_its_new_name() -> None:
    columns, problems = applied("rename", {"nam": "title"})
    assert len(problems) == 1
    assert applied("filter", "title = 'x'", columns)[1] == []


@pytest.mark.parametrize(
    ("items", "name", "is_removed"),
    [
        (["id"], "name", True),
        (["id", "upper(name) AS loud"], "name", True),
        (["id", "upper(name)"], "name", True),
        (["name"], "name", False),
        (["upper(id) AS name"], "name", False),
        (["*"], "name", False),
        (["* EXCEPT (id)"], "name", False),
        (["* EXCEPT (name)"], "name", True),
        (["who.*"], "name", False),
        (["id * 2"], "name", True),
    ],
)
def test_select_removes_what_it_does_not_give(
    items: list[str], name: str, is_removed: bool
) -> None:
    found = registry.find("transforms", "select")
    built = found(found.options_type.model_validate(items))
    assert built.removes(name) is is_removed
