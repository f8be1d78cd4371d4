"""A name in SQL is that name, whatever is in it; no name of a table is a path."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from sqlglot.expressions import Identifier

from icestream.contracts.catalog import (
    folder_name,
    name_problem,
    quote_for_duckdb,
    quote_for_spark,
)

NAMES = ["plain", "a.b", "a b", "a`b", 'a"b', "`", '"', "select", "x; DROP TABLE y --", "größe"]


@pytest.mark.parametrize(
    ("parts", "spark", "standard"),
    [
        (["plain"], "`plain`", '"plain"'),
        (["a.b"], "`a.b`", '"a.b"'),
        (["a b"], "`a b`", '"a b"'),
        (["a`b"], "`a``b`", '"a`b"'),
        (['a"b'], '`a"b`', '"a""b"'),
        (["lake", "my db", "t.1"], "`lake`.`my db`.`t.1`", '"lake"."my db"."t.1"'),
    ],
)
def test_each_part_is_quoted_separately(parts: list[str], spark: str, standard: str) -> None:
    assert quote_for_spark(*parts) == spark
    assert quote_for_duckdb(*parts) == standard


@pytest.mark.parametrize("name", NAMES)
def test_duckdb_reads_a_quoted_name_as_one_name(name: str) -> None:
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT 1 AS {quote_for_duckdb(name)}").description

    assert [column[0] for column in found or ()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_spark_sql_reads_a_quoted_name_as_one_name(name: str) -> None:
    column = sqlglot.parse_one(quote_for_spark("t", name), dialect="spark")

    assert [part.name for part in column.find_all(Identifier)] == [name, "t"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("orders", None),
        ("my table", None),
        ("a.b", None),
        ("größe-1", None),
        ("x" * 255, None),
        ("", "it is empty"),
        (".", "it ends with a dot"),
        ("..", "it ends with a dot"),
        ("a/b", "it contains a path separator"),
        ("..\\x", "it contains a path separator"),
        ("a\x00", "it contains a control character"),
        ("a\n", "it contains a control character"),
        ("\ud800", "it contains a control character"),
        ("a?", "it contains '?' or '#', which cannot be part of a file location"),
        (" a", "it begins or ends with a space"),
        ("a\u00a0", "it begins or ends with a space"),
        ("ä" * 128, "it is longer than 255 bytes"),
    ],
)
def test_invalid_table_name_is_reported(name: str, problem: str | None) -> None:
    assert name_problem(name) == problem


def test_each_table_has_its_own_folder() -> None:
    tables = [
        ("s", "t.x"),
        ("s.t", "x"),
        ("s", "t", "x"),
        ("日" * 80, "本" * 80),
        ("日" * 80, "本" * 81),
    ]
    names = [folder_name(table) for table in tables]

    assert len(set(names)) == len(tables)
    assert all(len(name) < 255 and "/" not in name and name.strip(".") for name in names)
