"""`icestream snapshots`: a table's history, with the batches that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Screen, with_config
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.plan.plan import Plan
    from icestream.tables.snapshots import SnapshotInfo

HEAD = ("snapshot", "parent", "time (UTC)", "operation", "rows added", "pipeline", "epoch")


@click.command("snapshots", short_help="Show a table's history and the batches that made it.")
@click.argument("table", required=False)
@click.option("--pipeline", metavar="NAME", help="The table that this pipeline writes.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The most snapshots to show.",
)
@with_config
def command(screen: Screen, path: Path, table: str | None, pipeline: str | None, limit: int) -> int:
    """Show a table's history and the batches that made it, the newest first.

    TABLE is `namespace.table` or `catalog.namespace.table`; it may be left out when the file has
    one table. The current metadata file is shown too, for engines that read by location.
    """
    from icestream.config import load
    from icestream.plan.planner import build
    from icestream.tables.lookup import find_table
    from icestream.tables.snapshots import list_snapshots

    plan = build(load(path)).enter_environment()
    found = find_table(wanted_table(plan, table, pipeline).split("."), plan.catalogs)
    snapshots = list_snapshots(found.table, limit=limit)
    total = len(found.table.metadata.snapshots)
    document = {
        "table": found.name,
        "metadata_location": found.table.metadata_location,
        "snapshot_count": total,
        "snapshots": [one.to_json() for one in snapshots],
    }
    lines = [f"table     {found.name}", f"metadata  {found.table.metadata_location}", ""]
    lines.append(_table(snapshots) if snapshots else "There are no snapshots yet.")
    if total > len(snapshots):
        lines.append(f"... and {output.count(total - len(snapshots), 'older snapshot')}")
    screen.show(document, "\n".join(lines))
    return 0


def wanted_table(plan: Plan, table: str | None, pipeline: str | None) -> str:
    """Return the name of the table that a person means.

    Raises:
        PlanError: no pipeline has that name, or the file has no table, or several.
    """
    if table is not None and pipeline is not None:
        raise click.UsageError("give a table or --pipeline, not both")
    if table is not None:
        return table
    tables = {one.name: one.sink.identity() for one in plan.pipelines}
    if pipeline is None:
        return _only(plan)
    if pipeline not in tables:
        raise PlanError(
            f"no pipeline is named {pipeline!r}",
            where=str(plan.path),
            todo=f"There are: {', '.join(tables) or 'none'}.",
        )
    return tables[pipeline]


def _only(plan: Plan) -> str:
    names = list(dict.fromkeys(sink.identity() for sink in plan.sinks.values()))
    if len(names) == 1:
        return names[0]
    if not names:
        raise PlanError(
            "the file names no table", where=str(plan.path), todo="Name one: TABLE or --pipeline."
        )
    raise PlanError(
        f"the file names {len(names)} tables",
        where=str(plan.path),
        todo=f"Say which: {', '.join(names)}.",
    )


def _refs(snapshot: SnapshotInfo) -> str:
    """Return the branches and tags at a snapshot; the star tells of the main one."""
    names = [name for name in snapshot.refs if name != "main"]
    return f" ({', '.join(names)})" if names else ""


def _table(snapshots: list[SnapshotInfo]) -> str:
    rows: list[tuple[Any, ...]] = [
        (
            f"{one.snapshot_id}{' *' if one.is_current else ''}{_refs(one)}",
            one.parent_snapshot_id or "",
            output.moment_of(one.timestamp_ms).strftime("%Y-%m-%d %H:%M:%S"),
            one.operation,
            one.rows_added,
            one.pipeline,
            one.epoch,
        )
        for one in snapshots
    ]
    return output.table(HEAD, rows)
