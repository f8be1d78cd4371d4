"""SQL over tables: what is read, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlglot
from tests.unit.cli.shop import make_table, plan_of, write_file

from icestream.errors import IcestreamError
from icestream.tables.lookup import find_table
from icestream.tables.query import QueryResult, _columns_read, _rows_needed, _table_names, query

if TYPE_CHECKING:
    from collections.abc import Callable

    from icestream.contracts.catalog import Catalog
    from icestream.tables.lookup import NamedTable


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Catalog[Any]]:
    folder = tmp_path_factory.mktemp("shop")
    write_file(folder)
    plan = plan_of(folder)
    make_table(plan)
    return dict(plan.catalogs)


@pytest.fixture
def run_query(catalogs: dict[str, Catalog[Any]]) -> Callable[[str], QueryResult]:
    return lambda sql: query(sql, catalogs)


@pytest.fixture
def events(catalogs: dict[str, Catalog[Any]]) -> NamedTable:
    return find_table(("demo", "events"), catalogs)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT count(*) FROM demo.events", ("id",)),
        ("SELECT PRICE FROM demo.events", ("price",)),
        ("SELECT sum(price) FROM demo.events WHERE product = 'mug'", ("product", "price")),
        ("SELECT a.id FROM demo.events a JOIN demo.events b USING (product)", ("id", "product")),
        ("SELECT * FROM demo.events", None),
        ("SELECT e.* FROM demo.events e", None),
        ("SELECT e FROM demo.events e", None),
        ("FROM demo.events", None),
        ("SELECT COLUMNS('p.*') FROM demo.events", None),
        ("SELECT id FROM demo.events NATURAL JOIN demo.events b", None),
        ("SUMMARIZE demo.events", None),
    ],
)
def test_only_columns_that_the_query_may_need_are_read(
    events: NamedTable, sql: str, columns: tuple[str, ...] | None
) -> None:
    assert _columns_read(sqlglot.parse_one(sql, dialect="duckdb"), events) == columns


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT * FROM demo.events", 11),
        ("SELECT id + 1 FROM demo.events LIMIT 5", 11),
        ("SELECT * FROM demo.events WHERE id > 3", None),
        ("SELECT count(*) FROM demo.events", None),
        ("SELECT DISTINCT product FROM demo.events", None),
        ("SELECT id FROM demo.events ORDER BY id DESC", None),
        ("SELECT id, row_number() OVER () FROM demo.events", None),
        ("SELECT id FROM demo.events UNION ALL SELECT id FROM demo.events", None),
        ("SELECT id FROM demo.events OFFSET 2", None),
    ],
)
def test_plain_query_reads_no_more_rows_than_the_limit_needs(sql: str, rows: int | None) -> None:
    assert _rows_needed(sqlglot.parse_one(sql, dialect="duckdb"), 10) == rows


def test_common_table_expressions_are_not_looked_up() -> None:
    sql = "WITH x AS (SELECT * FROM demo.events) SELECT * FROM x, 'rows.csv', range(3)"
    assert _table_names(sqlglot.parse_one(sql, dialect="duckdb")) == [("demo", "events")]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) FROM demo.events", [(6,)]),
        ("SELECT count(*) FROM lake.demo.events", [(6,)]),
        ("SELECT max(lake.demo.events.id) FROM lake.demo.events", [(5,)]),
        ("SELECT count(*) FROM demo.events a JOIN lake.demo.events b USING (id)", [(6,)]),
        ("WITH x AS (FROM demo.events) SELECT count(*) FROM x a, x b", [(36,)]),
        ("SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' IS NULL", [(False,)]),
    ],
)
def test_query_returns_the_rows(
    run_query: Callable[[str], QueryResult], sql: str, rows: list[Any]
) -> None:
    assert run_query(sql).rows == rows


def test_timestamps_with_a_time_zone_are_in_utc(run_query: Callable[[str], QueryResult]) -> None:
    ((timestamp,),) = run_query("SELECT TIMESTAMPTZ '2026-01-01 02:00:00+02'").rows
    assert timestamp.isoformat() == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT * FROM events",
            "no table is called 'events'\n"
            "  Did you mean 'demo.events'? Available: lake.demo.events.",
        ),
        (
            "DROP TABLE demo.events",
            "query: expected a query, found a statement of kind DROP\n"
            "  Start with SELECT or WITH; only pipelines change tables.",
        ),
        ("SELECT 1; SELECT 2", "query: expected one query, found 2\n  Run one at a time."),
        (
            "SELECT prise FROM demo.events",
            'query: Binder Error: Referenced column "prise" not found in FROM clause!\n'
            '  Candidate bindings: "price", "product"',
        ),
    ],
)
def test_wrong_query_is_explained(
    run_query: Callable[[str], QueryResult], sql: str, message: str
) -> None:
    with pytest.raises(IcestreamError) as caught:
        run_query(sql)
    assert str(caught.value) == message
