"""SQL expressions bound to columns without a JVM; tests/spark compares them with Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.contracts.columns import UNKNOWN_COLUMNS, Columns, ColumnType
from icestream.schemas.expressions import (
    CONDITION_EXAMPLE,
    ITEM_EXAMPLE,
    QUERY_EXAMPLE,
    bind_condition,
    bind_expression,
    bind_items,
    bind_query,
)
from icestream.schemas.sql_syntax import SPLIT

COLUMNS = Columns.of(
    pa.schema(
        [
            ("id", pa.int64()),
            ("Amount", pa.decimal128(10, 2)),
            ("active", pa.bool_()),
            (
                "who",
                pa.struct([("name", pa.string()), ("address", pa.struct([("zip", pa.int32())]))]),
            ),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
            ("labels", pa.map_(pa.string(), pa.string())),
            ("odd.name", pa.string()),
        ]
    )
)
THEY_HAVE = "They have: id, Amount, active, who, lines, labels, odd.name."


@pytest.mark.parametrize(
    "text",
    [
        "amount > 0",
        "AMOUNT > 0 AND who.Address.ZIP = 1",
        "exists(lines, id -> id.sku = 'x')",
        "exists(lines, Line -> line.sku = 'x' AND exists(lines, other -> other.sku = LINE.sku))",
        "transform(lines, l -> concat(l.sku, who.name)) IS NOT NULL",
        "labels.anything = 'x'",
        "labels['x'] = 'y' AND lines.sku IS NOT NULL",
        "`odd.name` = 'x'",
        "timediff(HOUR, current_timestamp, current_date) > 0",
        "user = 'x'",
        "id IN (SELECT other FROM elsewhere)",
        "v:path.to.field = 1",
        "id AS select",
        "id >>> 2 = 1",
        "id !< 5 OR id !> 5",
        "cast(who.name AS string COLLATE unicode) = 'x'",
        "who.name COLLATE unicode = 'x'",
    ],
)
def test_condition_that_spark_may_accept_has_no_problem(text: str) -> None:
    assert bind_condition(text, COLUMNS) == []


@pytest.mark.parametrize(
    ("text", "what", "todo"),
    [
        ("amoutn > 0", "the rows have no column 'amoutn'", f"Did you mean 'Amount'? {THEY_HAVE}"),
        ("upper(nope) = 'X'", "the rows have no column 'nope'", THEY_HAVE),
        ("exists(lines, l -> l.sku = nope)", "the rows have no column 'nope'", THEY_HAVE),
        ("odd.name = 'x'", "the rows have no column 'odd'", THEY_HAVE),
        (
            "who.nam = 'x'",
            "'who' has no field 'nam'",
            "Did you mean 'name'? It has: name, address.",
        ),
        (
            "who.address.zap = 1",
            "'who.address' has no field 'zap'",
            "Did you mean 'zip'? It has: zip.",
        ),
        (
            "id.x = 1",
            "'id' is a bigint, and has no field 'x'",
            "Only a struct, or an array of structs, has fields.",
        ),
        (
            "amount",
            "a condition must be true or false, found a decimal(10,2): 'amount'",
            CONDITION_EXAMPLE,
        ),
        (
            "cast(id AS bigin) > 0",
            "no type is called 'bigin'",
            "Did you mean 'bigint'? Write a type of Spark SQL, e.g. `bigint`, `decimal(10,2)` or "
            "`array<string>`.",
        ),
    ],
)
def test_unknown_name_is_reported_with_the_closest_one(text: str, what: str, todo: str) -> None:
    assert bind_condition(text, COLUMNS) == [(what, todo)]
    known = [*COLUMNS.known]
    assert bind_condition(text, Columns(tuple(known), is_complete=False)) == (
        [] if "rows have no column" in what else [(what, todo)]
    )


def test_every_unknown_name_of_an_expression_is_reported() -> None:
    found = bind_condition("nope > 0 AND nada > nope", COLUMNS)
    assert [problem.what for problem in found] == [
        "the rows have no column 'nope'",
        "the rows have no column 'nada'",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("amount >", "near '>' in column 8"),
        ("> 0", "near '>' in column 1"),
        ("amount > 0)", "near ')' in column 11"),
        ("(amount > 0", "'(' in column 1 is not closed"),
        ("labels['x'", "'[' in column 7 is not closed"),
        ("name = 'x", "a quote is not closed"),
        ("`id = 1", "a quote is not closed"),
        ("amount = = 0", "near '=' in column 10"),
        ("amount > 0; id > 0", "near ';' in column 11"),
        ("amount, id", "near ',' in column 7"),
        ("SELECT amount FROM rows", "near 'SELECT' in column 1"),
        ("WHERE amount > 0", "near 'WHERE' in column 1"),
        ("amount > 0 adn id > 0", "near 'adn' in column 12"),
        ("amount 0", "near '0' in column 8"),
        ("amount =< 0", "near '<' in column 9"),
        ("amount > 0 && id > 0", "near '&&' in column 12"),
        ("-- nothing", "it is empty"),
    ],
)
@pytest.mark.parametrize("columns", [COLUMNS, UNKNOWN_COLUMNS], ids=["known", "unknown"])
def test_broken_sql_is_reported_whatever_the_columns(
    columns: Columns, text: str, fault: str
) -> None:
    what = f"not a SQL expression, {fault}: {text!r}"
    todo = SPLIT if fault[5:8] in ("';'", "','") else ITEM_EXAMPLE
    assert bind_expression(text, columns) == [(what, todo)]


@pytest.mark.parametrize("text", ["amount > AND id > 0", "CASE WHEN id > 0 THEN 1"])
def test_keyword_without_its_operands_is_broken_unless_it_may_be_a_column(text: str) -> None:
    assert bind_expression(text, COLUMNS)
    assert bind_expression(text, UNKNOWN_COLUMNS) == []


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["id", "AMOUNT"], [("id", pa.int64()), ("AMOUNT", pa.decimal128(10, 2))]),
        (["who.address.zip"], [("zip", pa.int32())]),
        (["who.name AS n", "id new_name"], [("n", pa.string()), ("new_name", pa.int64())]),
        (["cast(id AS smallint) AS s", "id::string t"], [("s", pa.int16()), ("t", pa.string())]),
        (["amount > 0 AS positive", "'x' AS x"], [("positive", pa.bool_()), ("x", pa.string())]),
        (["amount * 2 AS twice", "twice + 1 AS more"], [("twice", None), ("more", None)]),
        (["* EXCEPT (who, LINES, labels, active, id, amount)"], [("odd.name", pa.string())]),
    ],
)
def test_items_give_names_and_the_types_that_are_certain(
    items: list[str], expected: list[tuple[str, pa.DataType | None]]
) -> None:
    problems, columns = bind_items(items, COLUMNS)
    assert problems == []
    assert columns.known == tuple(ColumnType(*column) for column in expected)
    assert columns.is_complete


@pytest.mark.parametrize(
    "item",
    ["upper(who.name)", "who.*", "explode(lines)", "v:path.x", "current_date", "+id", "arr[0].x"],
)
def test_item_without_a_certain_name_makes_the_columns_incomplete(item: str) -> None:
    _, columns = bind_items(["id", item], Columns((*COLUMNS.known, ColumnType("arr"))))
    assert columns.known == (ColumnType("id", pa.int64()),)
    assert not columns.is_complete


def test_problem_of_an_item_does_not_hide_the_next() -> None:
    problems, columns = bind_items(["idd", "nope", "idd AS again", "id +"], COLUMNS)
    assert [(number, problem.what) for number, problem in problems] == [
        (0, "the rows have no column 'idd'"),
        (1, "the rows have no column 'nope'"),
        (3, "not a SQL expression, near '+' in column 4: 'id +'"),
    ]
    assert columns.names == ["idd", "nope", "again"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM rows WHERE id IS NULL", []),
        ("SELECT r.id, count(*) AS n FROM rows r GROUP BY r.id HAVING n > 1 ORDER BY n", []),
        ("SELECT rows.* FROM rows", []),
        ("SELECT r.*, rows.id, who.* FROM rows r", []),
        ("SELECT nope.* FROM rows", [("the rows have no column 'nope'", THEY_HAVE)]),
        ("SELECT * FROM rows JOIN other ON rows.nope = other.nope", []),
        ("WITH x AS (SELECT nope FROM y) SELECT * FROM rows WHERE nope > 1", []),
        ("SELECT nope FROM lake.sales.rows", []),
        (
            "SELECT * FROM rows AS r WHERE r.idd IS NULL OR nope = 1 OR r.id = 1",
            [
                ("the rows have no column 'idd'", f"Did you mean 'id'? {THEY_HAVE}"),
                ("the rows have no column 'nope'", THEY_HAVE),
            ],
        ),
        (
            "SELECT * FROM rows WHERE (id IS NULL",
            [
                (
                    "not a SQL query, '(' in column 26 is not closed: 'SELECT * FROM rows WHERE "
                    "(id IS NULL'",
                    QUERY_EXAMPLE,
                )
            ],
        ),
    ],
)
def test_query_of_one_table_is_bound(query: str, expected: list[tuple[str, str]]) -> None:
    assert bind_query(query, "rows", COLUMNS) == expected
