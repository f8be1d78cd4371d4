"""A name in SQL is that name, whatever is in it."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from sqlglot.expressions import Identifier

from icestream.contracts.quoting import quote_for_duckdb, quote_for_spark

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
def test_each_part_is_quoted_by_itself(parts: list[str], spark: str, standard: str) -> None:
    assert quote_for_spark(*parts) == spark
    assert quote_for_duckdb(*parts) == standard


@pytest.mark.parametrize("name", NAMES)
def test_duckdb_reads_a_quoted_name_as_one_name(name: str) -> None:
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT 1 AS {quote_for_duckdb(name)}").description

    assert [column[0] for column in found or ()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_of_spark_sql_reads_a_quoted_name_as_one_name(name: str) -> None:
    column = sqlglot.parse_one(quote_for_spark("t", name), dialect="spark")

    assert [part.name for part in column.find_all(Identifier)] == [name, "t"]
