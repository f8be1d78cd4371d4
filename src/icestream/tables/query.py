"""Runs SQL over the tables of a file: PyIceberg reads them, DuckDB runs the query. Needs no JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.catalog import quote_for_duckdb
from icestream.errors import ConnectorError, IcestreamError
from icestream.tables.lookup import NamedTable, find_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    import duckdb
    import pyarrow as pa
    from sqlglot.expressions import Expr

    from icestream.contracts.catalog import Catalog
    from icestream.plan.pipeline_tables import PipelineTable


ROWS_PER_BLOCK = 10_000


@dataclass(frozen=True)
class QueryResult:
    """The result of a query.

    Attributes:
        columns: the names of the columns.
        rows: the rows, in the query's order.
        is_cut: whether the query had more rows than the limit.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    is_cut: bool = False


def query(
    sql: str,
    catalogs: Mapping[str, Catalog[Any]],
    *,
    limit: int | None = None,
    branch: str | None = None,
    known: Callable[[], Iterable[PipelineTable]] = tuple,
) -> QueryResult:
    """Run one SQL query in DuckDB's dialect.

    Tables are named `namespace.table` or `catalog.namespace.table`. Only the columns that the
    query names are read.

    Args:
        sql: the query.
        catalogs: the catalogs to look tables up in.
        limit: the most rows to return; None for all.
        branch: the branch or tag to read tables from; a table without it is read as usual.
        known: returns the tables of the file's pipelines, for suggestions.

    Raises:
        ConnectorError: a table does not exist, or none has the branch.
        IcestreamError: the SQL is wrong.
    """
    import duckdb

    # DuckDB would also look for tables among the variables of this process.
    with duckdb.connect(config={"python_enable_replacements": "false"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        _refuse_other_statements(connection, sql)
        tree = _parse(sql)
        tables = {parts: find_table(parts, catalogs, known) for parts in _table_names(tree)}
        snapshots = _snapshots(tables.values(), branch)
        try:
            # Against empty tables first, to report a misspelt column before anything is read.
            for parts, table in tables.items():
                _load_rows(connection, parts, table.table.schema().as_arrow().empty_table())
            connection.sql(sql)
            for parts, table in tables.items():
                columns = _columns_read(tree, table) or ("*",)
                scan = table.table.scan(
                    selected_fields=columns,
                    limit=_rows_needed(tree, limit),
                    snapshot_id=snapshots.get(table.name),
                )
                _load_rows(connection, parts, scan.to_arrow_batch_reader())
            names, rows = _fetch(connection.sql(sql), limit)
        except duckdb.Error as exc:
            raise _to_query_error(exc) from exc
    is_cut = limit is not None and len(rows) > limit
    return QueryResult(names, rows[:limit] if is_cut else rows, is_cut)


def _snapshots(tables: Collection[NamedTable], branch: str | None) -> dict[str, int]:
    """Return the head of the branch in each table that has it."""
    if branch is None:
        return {}
    heads = {
        table.name: reference.snapshot_id
        for table in tables
        if (reference := table.table.refs().get(branch)) is not None
    }
    if not heads:
        branches = sorted({name for table in tables for name in table.table.refs()})
        raise ConnectorError(
            f"no table of the query has a branch {branch!r}",
            where="query",
            todo=f"Available: {', '.join(branches) or 'none'}.",
        )
    return heads


def _fetch(
    result: duckdb.DuckDBPyRelation, limit: int | None
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return columns and rows, one row more than the limit if there are more."""
    # Through Arrow, since DuckDB's own rows need another package for timestamps with a time zone.
    reader: pa.RecordBatchReader = result.to_arrow_reader(ROWS_PER_BLOCK)
    rows: list[tuple[Any, ...]] = []
    for block in reader:
        rows += zip(*(column.to_pylist() for column in block.columns), strict=True)
        if limit is not None and len(rows) > limit:
            break
    return tuple(reader.schema.names), rows[: None if limit is None else limit + 1]


def _refuse_other_statements(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse everything but one query: other statements would not reach the tables."""
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as exc:
        raise _to_query_error(exc) from exc
    if len(statements) != 1:
        raise IcestreamError(
            f"expected one query, found {len(statements)}", where="query", todo="Run one at a time."
        )
    kind = statements[0].type.name
    if kind not in ("SELECT", "EXPLAIN"):
        raise IcestreamError(
            f"expected a query, found a statement of kind {kind}",
            where="query",
            todo="Start with SELECT or WITH; only pipelines change tables.",
        )


def _parse(sql: str) -> Expr:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return sqlglot.parse_one(sql, dialect="duckdb")
    except SqlglotError as exc:
        raise IcestreamError(
            f"cannot determine the tables of the query: {str(exc).splitlines()[0]}",
            where="query",
            todo="Simplify the SQL.",
        ) from exc


def _table_names(tree: Expr) -> list[tuple[str, ...]]:
    """Return the tables that a query names, each once, without its common table expressions."""
    from sqlglot import expressions as exp

    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    names: list[tuple[str, ...]] = []
    for table in tree.find_all(exp.Table):
        is_name = isinstance(table.this, exp.Identifier | exp.Dot)
        # DuckDB reads `FROM 'rows.csv'` from a file.
        is_file = len(table.parts) == 1 and not table.name.replace("_", "").isalnum()
        is_cte = len(table.parts) == 1 and table.name.lower() in ctes
        if is_name and not is_file and not is_cte:
            names.append(tuple(part.name for part in table.parts))
    return list(dict.fromkeys(names))


def _columns_read(tree: Expr, table: NamedTable) -> tuple[str, ...] | None:
    """Return the columns of a table that a query may need; None for all.

    Every identifier of the query that could be a column counts, whichever table it belongs to: too
    many columns cost time, too few would give wrong results.
    """
    from sqlglot import expressions as exp

    reads_all = any(
        not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)
    ) or any(join.args.get("method") == "NATURAL" for join in tree.find_all(exp.Join))
    if reads_all or not isinstance(tree, exp.Query) or tree.find(exp.Columns):
        return None
    identifiers = {identifier.name.lower() for identifier in tree.find_all(exp.Identifier)}
    columns = [field.name for field in table.table.schema().fields]
    names = tuple(name for name in columns if name.lower() in identifiers)
    # A table's own name used as a column means the whole row.
    whole_row = {column.name.lower() for column in tree.find_all(exp.Column)} & {
        source.alias_or_name.lower() for source in tree.find_all(exp.Table)
    }
    if whole_row - {name.lower() for name in columns}:
        return None
    return names or tuple(columns[:1])


def _rows_needed(tree: Expr, limit: int | None) -> int | None:
    """Return how many rows a plain `SELECT ... FROM t` needs of its table; None for all."""
    from sqlglot import expressions as exp

    if limit is None or not isinstance(tree, exp.Select):
        return None
    tables = list(tree.find_all(exp.Table))
    plain = {"kind", "expressions", "from", "from_", "limit"}
    has_more = any(value for key, value in tree.args.items() if key not in plain)
    if has_more or len(tables) != 1 or tree.find(exp.AggFunc, exp.Window, exp.Subquery, exp.Unnest):
        return None
    return limit + 1


def _load_rows(
    connection: duckdb.DuckDBPyConnection,
    parts: tuple[str, ...],
    rows: pa.Table | pa.RecordBatchReader,
) -> None:
    """Copy rows into the DuckDB table that the query reads, block by block."""
    name = _create_schema(connection, parts)
    connection.register("icestream_rows", rows)
    connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM icestream_rows")
    connection.unregister("icestream_rows")


def _create_schema(connection: duckdb.DuckDBPyConnection, parts: tuple[str, ...]) -> str:
    """Create the database and the schema in a table's name, and return the name quoted."""
    if len(parts) > 3:
        raise IcestreamError(
            f"{'.'.join(parts)!r} has {len(parts)} parts, and SQL allows three at most",
            where="query",
            todo="Omit the catalog. This command can't query a table in a deeper namespace; read "
            "it from Python or Spark.",
        )
    if len(parts) == 3:
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quote_for_duckdb(parts[0])}")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_for_duckdb(*parts[:-1])}")
    return quote_for_duckdb(*parts)


def _to_query_error(exc: Exception) -> IcestreamError:
    first, *rest = str(exc).strip().splitlines()
    todo = "\n".join(line for line in rest if line.strip())
    return IcestreamError(first, where="query", todo=todo)
