"""`icestream status`: how each pipeline is doing, told by its state and its table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Screen, with_config
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.plan import PipelinePlan, Plan

HEAD = ("pipeline", "state", "rows", "last commit", "lag rows", "table", "table rows", "snapshot")


@click.command("status", short_help="Show how each pipeline is doing.")
@with_config
def command(screen: Screen, path: Path) -> int:
    """Show how each pipeline is doing: running or not, its last commit, its lag, its table.

    `rows` are those of the latest run. The table itself is asked too, without Spark.
    """
    from icestream.config import load
    from icestream.plan.planner import build

    plan = build(load(path)).enter_environment()
    reports = [_report(plan, pipeline) for pipeline in plan.pipelines]
    screen.show({"pipelines": reports}, _text(reports))
    return 0


def _report(plan: Plan, pipeline: PipelinePlan) -> dict[str, Any]:
    from icestream.engine.state import PipelineState

    state = PipelineState(plan.state, pipeline.name)
    said = state.status() or {}
    is_running = state.is_running()
    error = said.get("error")
    return {
        "pipeline": pipeline.name,
        "state": _state(said, is_running=is_running),
        "is_running": is_running,
        "rows": said.get("rows", 0),
        "batches": said.get("batches", 0),
        "lag_rows": said.get("lag_rows"),
        "lag_secs": said.get("lag_secs"),
        "updated_at": said.get("updated_at"),
        "error": error,
        **_table(plan, pipeline, said),
    }


def _state(said: dict[str, Any], *, is_running: bool) -> str:
    """Tell a pipeline's state; what it said before it was killed is no longer true."""
    if is_running:
        return str(said.get("state", "starting"))
    if not said:
        return "never run"
    return str(said["state"]) if said["state"] in ("failed", "finished") else "stopped"


def _table(plan: Plan, pipeline: PipelinePlan, said: dict[str, Any]) -> dict[str, Any]:
    """Ask the table for its newest snapshot and the pipeline's newest mark in it."""
    from icestream.contracts.sink import ManyTables
    from icestream.sinks.iceberg.ledger import read_mark
    from icestream.tables.lookup import load_table
    from icestream.tables.snapshots import current_snapshot, list_snapshots

    name = pipeline.sink.identity()
    report: dict[str, Any] = {
        "table": name,
        "branch": getattr(getattr(pipeline.sink, "options", None), "branch", "main"),
        "table_error": None,
        "table_rows": None,
        "snapshot_id": None,
        "last_commit_at": None,
        "mark": None,
    }
    if isinstance(pipeline.sink, ManyTables):
        # Hundreds of tables are not asked: the pipeline itself has told.
        return {**report, "last_commit_at": said.get("last_commit_at")}
    try:
        table = load_table(name.split("."), plan.catalogs)
        if table is None:
            return report
        mark = read_mark(table.properties, pipeline.name)
    except IcestreamError as exc:
        # The catalog may be what is broken; the rest of the status matters all the more then.
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
        else output.iso(output.moment_of(newest.timestamp_ms)),
        "mark": None
        if mark is None
        else {"epoch": mark.epoch, "query_id": mark.query_id, "rows": mark.rows, "end": mark.end},
    }


def _text(reports: list[dict[str, Any]]) -> str:
    if not reports:
        return "The file has no pipeline that is switched on."
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
    return "\n".join([output.table(HEAD, rows), *reasons])


def _age(moment: str | None) -> str:
    return output.age(None if moment is None else datetime.fromisoformat(moment))
