"""`icestream snapshots`: shows a table's snapshots and the batches that wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.plan import Plan
    from icestream.tables.snapshots import SnapshotInfo

HEADERS = ("snapshot", "parent", "time (UTC)", "operation", "rows added", "pipeline", "epoch")


@click.command("snapshots", short_help="Show a table's snapshots and the batches that wrote them.")
@click.argument("table", required=False)
@click.option("--pipeline", metavar="NAME", help="Use the table that this pipeline writes.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of snapshots to show.",
)
@with_config_option
def command(
    printer: Printer, path: Path, table: str | None, pipeline: str | None, limit: int
) -> int:
    """Show a table's snapshots and the batches that wrote them, newest first.

    TABLE is `namespace.table` or `catalog.namespace.table`; it may be omitted if the file has
    one table. Also shows the current metadata file, for engines that read by location.
    """
    from icestream.config import read
    from icestream.plan.planner import build
    from icestream.tables.lookup import find_table
    from icestream.tables.snapshots import list_snapshots

    plan = build(read(path)).export_environment()
    found = find_table(select_table(plan, table, pipeline).split("."), plan.catalogs)
    snapshots = list_snapshots(found.table, limit=limit)
    total = len(found.table.metadata.snapshots)
    document = {
        "table": found.name,
        "metadata_location": found.table.metadata_location,
        "snapshot_count": total,
        "snapshots": [one.to_json() for one in snapshots],
    }
    lines = [f"table     {found.name}", f"metadata  {found.table.metadata_location}", ""]
    lines.append(_snapshot_table(snapshots) if snapshots else "The table has no snapshots yet.")
    if total > len(snapshots):
        lines.append(f"... and {output.format_count(total - len(snapshots), 'older snapshot')}")
    printer.print_result(document, "\n".join(lines))
    return 0


def select_table(plan: Plan, table: str | None, pipeline: str | None) -> str:
    """Return the name of the table that the arguments select.

    Raises:
        PlanError: the pipeline is unknown, or the file has no table or several.
    """
    if table is not None and pipeline is not None:
        raise click.UsageError("use either TABLE or --pipeline, not both")
    if table is not None:
        return table
    tables = {one.name: one.sink.identity() for one in plan.pipelines}
    if pipeline is None:
        return _only_table(plan)
    if pipeline not in tables:
        raise PlanError(
            f"unknown pipeline {pipeline!r}",
            where=str(plan.path),
            todo=f"Pipelines: {', '.join(tables) or 'none'}.",
        )
    return tables[pipeline]


def _only_table(plan: Plan) -> str:
    names = list(dict.fromkeys(sink.identity() for sink in plan.sinks.values()))
    if len(names) == 1:
        return names[0]
    if not names:
        raise PlanError(
            "the file has no table", where=str(plan.path), todo="Pass TABLE or --pipeline."
        )
    raise PlanError(
        f"the file has {len(names)} tables",
        where=str(plan.path),
        todo=f"Pass one of them as TABLE: {', '.join(names)}.",
    )


def _refs(snapshot: SnapshotInfo) -> str:
    """Return the branches and tags at a snapshot; a star marks the main branch."""
    names = [name for name in snapshot.refs if name != "main"]
    return f" ({', '.join(names)})" if names else ""


def _snapshot_table(snapshots: list[SnapshotInfo]) -> str:
    rows: list[tuple[Any, ...]] = [
        (
            f"{one.snapshot_id}{' *' if one.is_current else ''}{_refs(one)}",
            one.parent_snapshot_id or "",
            output.utc_datetime(one.timestamp_ms).strftime("%Y-%m-%d %H:%M:%S"),
            one.operation,
            one.rows_added,
            one.pipeline,
            one.epoch,
        )
        for one in snapshots
    ]
    return output.format_table(HEADERS, rows)
