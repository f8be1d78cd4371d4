"""Names in SQL: every name that reaches a query is quoted here, and nowhere else."""

from __future__ import annotations


def quote_for_spark(*parts: str) -> str:
    """Return a name for Spark SQL, also for `DataFrame` lookups, where a dot leads into a struct.

    Args:
        *parts: the name from the outside in, e.g. catalog, namespace and table.
    """
    return _quoted(parts, "`")


def quote_for_duckdb(*parts: str) -> str:
    """Return a name for DuckDB, and for every other SQL that keeps to the standard's quotes.

    Args:
        *parts: the name from the outside in, e.g. database, schema and table.
    """
    return _quoted(parts, '"')


def _quoted(parts: tuple[str, ...], mark: str) -> str:
    return ".".join(mark + part.replace(mark, mark * 2) + mark for part in parts)
