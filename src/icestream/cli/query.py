"""`icestream query`: SQL over the tables of the file, without Spark."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Screen, with_config

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.tables.query import Answer


@click.command("query", short_help="Ask the tables in SQL.")
@click.argument("sql")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="The most rows to show.",
)
@click.option("--branch", metavar="NAME", help="Read the tables that have this branch from it.")
@with_config
def command(screen: Screen, path: Path, sql: str, limit: int, branch: str | None) -> int:
    """Ask the tables in SQL, in DuckDB's dialect.

    Tables are named `namespace.table` or `catalog.namespace.table`. No Spark is started.
    """
    from icestream.config import load
    from icestream.plan.planner import build
    from icestream.tables.query import query

    answer = query(sql, build(load(path)).enter_environment().catalogs, limit=limit, branch=branch)
    screen.show(document_of(answer), text_of(answer))
    if answer.is_cut and not screen.is_json:
        screen.note(f"Only the first {output.count(limit, 'row')} are shown; see --limit.")
    return 0


def document_of(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON shows it."""
    return {
        "columns": list(answer.columns),
        "rows": [
            {name: _plain(value) for name, value in zip(answer.columns, row, strict=True)}
            for row in answer.rows
        ],
        "is_cut": answer.is_cut,
    }


def text_of(answer: Answer) -> str:
    """Return an answer as a table."""
    return f"{output.table(answer.columns, answer.rows)}\n({output.count(len(answer.rows), 'row')})"


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold and a reader can tell: no number loses digits."""
    import math

    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value
