"""`icestream query`: SQL over the tables of the file, without Spark."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.tables.query import QueryResult


@click.command("query", short_help="Query tables with SQL.")
@click.argument("sql")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Maximum number of rows to show.",
)
@click.option("--branch", metavar="NAME", help="Read from this branch in tables that have it.")
@with_config_option
def command(printer: Printer, path: Path, sql: str, limit: int, branch: str | None) -> int:
    """Query tables with SQL, in DuckDB's dialect.

    Name tables as `namespace.table` or `catalog.namespace.table`. Spark is not started.
    """
    from icestream.config import read
    from icestream.plan.planner import build
    from icestream.tables.query import query
    from icestream.tables.selection import multi_tables

    plan = build(read(path)).export_environment()
    answer = query(sql, plan.catalogs, limit=limit, branch=branch, known=lambda: multi_tables(plan))
    printer.print_result(query_document(answer), query_text(answer))
    if answer.is_cut and not printer.is_json:
        printer.print_note(
            f"Showing the first {output.format_count(limit, 'row')}; use --limit for more."
        )
    return 0


def query_document(answer: QueryResult) -> dict[str, Any]:
    """Return a query result as a JSON document."""
    return {
        "columns": list(answer.columns),
        "rows": [
            {name: json_value(value) for name, value in zip(answer.columns, row, strict=True)}
            for row in answer.rows
        ],
        "is_cut": answer.is_cut,
    }


def query_text(answer: QueryResult) -> str:
    """Return a query result as a text table."""
    rows = output.format_count(len(answer.rows), "row")
    return f"{output.format_table(answer.columns, answer.rows)}\n({rows})"


def json_value(value: Any) -> Any:
    """Convert a value to one that JSON can represent without losing digits."""
    import math

    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value
