"""`icestream status`: shows the state of each pipeline and its table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from pathlib import Path

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


@click.command("status", short_help="Show the state of each pipeline.")
@with_config_option
def command(printer: Printer, path: Path) -> int:
    """Show the state of each pipeline: whether it runs, its last commit, its lag and its table.

    `rows` counts the latest run. The table is read too, without Spark.
    """
    from icestream.config import read
    from icestream.plan.planner import build

    plan = build(read(path)).export_environment()
    reports = [_report(plan, pipeline) for pipeline in plan.pipelines]
    printer.print_result({"pipelines": reports}, _text(reports))
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
    """Return the table's current snapshot and the pipeline's newest mark in it."""
    from icestream.sinks.iceberg.ledger import read_mark
    from icestream.tables.lookup import load_table
    from icestream.tables.snapshots import current_snapshot, list_snapshots

    name = pipeline.sink.identity()
    report: dict[str, Any] = {
        "table": name,
        "branch": pipeline.sink.options.branch,
        "table_error": None,
        "table_rows": None,
        "snapshot_id": None,
        "last_commit_at": None,
        "mark": None,
    }
    if pipeline.sink.single_table() is None:
        # Loading hundreds of tables would take too long; use what the pipeline reported.
        return {**report, "last_commit_at": status.get("last_commit_at")}
    try:
        table = load_table(name.split("."), plan.catalogs)
        if table is None:
            return report
        mark = read_mark(table.properties, pipeline.name)
    except IcestreamError as exc:
        # A broken catalog must not hide the rest of the status.
        return {**report, "table_error": str(exc)}
    current = current_snapshot(table)
    ours = (one for one in list_snapshots(table) if one.pipeline == pipeline.name)
    newest = next(ours, None)
    return {
        **report,
        "table_rows": None if current is None else current.rows_total,
        "snapshot_id": None if current is None else current.snapshot_id,
        "last_commit_at": None
        if newest is None
        else output.iso_timestamp(output.utc_datetime(newest.timestamp_ms)),
        "mark": None
        if mark is None
        else {"epoch": mark.epoch, "query_id": mark.query_id, "rows": mark.rows, "end": mark.end},
    }


def _text(reports: list[dict[str, Any]]) -> str:
    if not reports:
        return "The file has no enabled pipeline."
    rows = [
        (
            one["pipeline"],
            one["state"],
            one["rows"],
            _age(one["last_commit_at"]),
            one["lag_rows"],
            one["table"] if one["branch"] == "main" else f"{one['table']} ({one['branch']})",
            one["table_rows"],
            one["snapshot_id"],
        )
        for one in reports
    ]
    reasons = [
        f"{one['pipeline']}: {message.splitlines()[0]}"
        for one in reports
        for message in (one["table_error"], (one["error"] or {}).get("message"))
        if message
    ]
    return "\n".join([output.format_table(HEADERS, rows), *reasons])


def _age(time: str | None) -> str:
    return output.format_age(None if time is None else datetime.fromisoformat(time))
