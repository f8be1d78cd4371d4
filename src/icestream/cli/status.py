"""`icestream status`: shows the state of each pipeline and its table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icestream.contracts.offset import BatchMark
    from icestream.plan.pipeline_tables import PipelineTable
    from icestream.plan.plan import PipelinePlan, Plan

HEADERS = (
    "pipeline",
    "state",
    "rows",
    "last commit",
    "lag rows",
    "table",
    "table rows",
    "snapshot",
)

# Of a mirror or fan-out with more tables, `--all` shows the others.
MAX_SHOWN_TABLES = 20
INDENT = "  "


@click.command("status", short_help="Show the state of each pipeline.")
@click.option("--all", "shows_all", is_flag=True, help="Show every table of a mirror or fan-out.")
@with_config_option
def command(printer: Printer, path: Path, *, shows_all: bool) -> int:
    """Show the state of each pipeline: whether it runs, its last commit, its lag and its tables.

    `rows` counts the latest run. The tables are read too, without Spark. Of a mirror or fan-out,
    the first tables are shown below its own row; `--all` and `--output json` show all of them.
    """
    from icestream.config import read
    from icestream.plan.planner import build

    plan = build(read(path)).export_environment()
    reports = [_report(plan, pipeline) for pipeline in plan.pipelines]
    printer.print_result({"pipelines": reports}, _text(reports, shows_all=shows_all))
    return 0


def _report(plan: Plan, pipeline: PipelinePlan) -> dict[str, Any]:
    from icestream.engine.state import PipelineState

    state = PipelineState(plan.state, pipeline.name)
    status = state.status() or {}
    is_running = state.is_running()
    error = status.get("error")
    return {
        "pipeline": pipeline.name,
        "state": _state(status, is_running=is_running),
        "is_running": is_running,
        "rows": status.get("rows", 0),
        "batches": status.get("batches", 0),
        "lag_rows": status.get("lag_rows"),
        "lag_secs": status.get("lag_secs"),
        "updated_at": status.get("updated_at"),
        "error": error,
        **_table_report(plan, pipeline, status),
    }


def _state(status: dict[str, Any], *, is_running: bool) -> str:
    """Return a pipeline's state; the one written before a kill is out of date."""
    if is_running:
        return str(status.get("state", "starting"))
    if not status:
        return "never run"
    return str(status["state"]) if status["state"] in ("failed", "finished") else "stopped"


def _table_report(plan: Plan, pipeline: PipelinePlan, status: dict[str, Any]) -> dict[str, Any]:
    """Return what the pipeline's tables hold: in all, and each of them."""
    from icestream.plan.pipeline_tables import find_pipeline_tables

    found = find_pipeline_tables(plan, pipeline)
    tables = [_one_table(pipeline, one) for one in found.tables]
    report = {"table": pipeline.sink.identity(), "branch": pipeline.sink.options.branch}
    if pipeline.sink.single_table() is not None:
        (one,) = tables
        facts = ("table_error", "table_rows", "snapshot_id", "last_commit_at", "mark")
        return {**report, **{name: one[name] for name in facts}, "tables": tables}
    rows = [one["table_rows"] for one in tables if one["table_rows"] is not None]
    commits = [one["last_commit_at"] for one in tables if one["last_commit_at"] is not None]
    return {
        **report,
        "table_error": None if found.error is None else str(found.error),
        "table_rows": sum(rows) if rows else None,
        "snapshot_id": None,
        "last_commit_at": status.get("last_commit_at") or max(commits, default=None),
        "mark": None,
        "tables": tables,
    }


def _one_table(pipeline: PipelinePlan, one: PipelineTable) -> dict[str, Any]:
    """Return a table's current snapshot and the pipeline's newest mark in it."""
    from icestream.cli.snapshots import table_problem
    from icestream.sinks.iceberg.ledger import read_mark
    from icestream.tables.snapshots import current_snapshot, list_snapshots

    is_many = pipeline.sink.single_table() is None
    report: dict[str, Any] = {
        "table": one.name,
        "source": None if one.source is None else ".".join(one.source),
        "table_error": table_problem(one) if is_many or one.error is not None else None,
        "table_rows": None,
        "snapshot_id": None,
        "last_commit_at": None,
        "mark": None,
    }
    if one.table is None:
        return report
    try:
        mark = read_mark(one.table.properties, pipeline.name)
    except IcestreamError as exc:
        return {**report, "table_error": str(exc)}
    current = current_snapshot(one.table)
    ours = (each for each in list_snapshots(one.table) if each.pipeline == pipeline.name)
    newest = next(ours, None)
    return {
        **report,
        "table_rows": None if current is None else current.rows_total,
        "snapshot_id": None if current is None else current.snapshot_id,
        "last_commit_at": None
        if newest is None
        else output.iso_timestamp(output.utc_datetime(newest.timestamp_ms)),
        "mark": None if mark is None else _mark_document(mark, with_end=not is_many),
    }


def _mark_document(mark: BatchMark, *, with_end: bool) -> dict[str, Any]:
    document = {"epoch": mark.epoch, "query_id": mark.query_id, "rows": mark.rows}
    # Each table of a mirror has the offset of all of them.
    return {**document, "end": mark.end} if with_end else document


def _text(reports: list[dict[str, Any]], *, shows_all: bool) -> str:
    if not reports:
        return "The file has no enabled pipeline."
    rows = [row for one in reports for row in _rows(one, shows_all=shows_all)]
    return "\n".join([output.format_table(HEADERS, rows), *_notes(reports, shows_all=shows_all)])


def _rows(report: dict[str, Any], *, shows_all: bool) -> Iterator[tuple[Any, ...]]:
    """Yield the row of a pipeline, and below it those of the tables of a mirror or fan-out."""
    branch = "" if report["branch"] == "main" else f" ({report['branch']})"
    yield (
        report["pipeline"],
        report["state"],
        report["rows"],
        _age(report["last_commit_at"]),
        report["lag_rows"],
        f"{report['table']}{branch}",
        report["table_rows"],
        report["snapshot_id"],
    )
    for one in _shown(report, shows_all=shows_all):
        age, facts = _age(one["last_commit_at"]), (one["table_rows"], one["snapshot_id"])
        yield "", "", None, age, None, f"{INDENT}{one['table']}{branch}", *facts


def _shown(report: dict[str, Any], *, shows_all: bool) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = report["tables"]
    if [one["table"] for one in tables] == [report["table"]]:
        return []
    return tables if shows_all else tables[:MAX_SHOWN_TABLES]


def _notes(reports: list[dict[str, Any]], *, shows_all: bool) -> Iterator[str]:
    """Yield how many tables are not shown, and the first line of each error."""
    for one in reports:
        hidden = len(one["tables"]) - MAX_SHOWN_TABLES
        if hidden > 0 and not shows_all:
            count = output.format_count(hidden, "more table")
            yield f"{one['pipeline']}: ... and {count}; use --all to show them"
        for message in (one["table_error"], (one["error"] or {}).get("message")):
            if message:
                yield f"{one['pipeline']}: {message.splitlines()[0]}"
        for table in one["tables"]:
            message = table["table_error"]
            if message and message != one["table_error"]:
                yield f"{table['table']}: {message.splitlines()[0]}"


def _age(time: str | None) -> str:
    return output.format_age(None if time is None else datetime.fromisoformat(time))
