"""`icestream snapshots`: shows a table's snapshots and the batches that wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyiceberg.table import Table

    from icestream.plan.pipeline_tables import PipelineTable, PipelineTables
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
    one table. Also shows the current metadata file, for engines that read by location. For a
    mirror or `route_by`, lists the tables; TABLE may then be the table's name in the source.
    """
    from icestream.config import read
    from icestream.plan.planner import build
    from icestream.tables.snapshots import list_snapshots

    found = select(build(read(path)).export_environment(), table, pipeline)
    if isinstance(found, list):
        print_listing(printer, "snapshots", found, _listed)
        return 0
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


def select(plan: Plan, table: str | None, pipeline: str | None) -> Any:
    """Return the table that the arguments select, or the tables to list."""
    from icestream.tables.selection import select_tables

    if table is not None and pipeline is not None:
        raise click.UsageError("use either TABLE or --pipeline, not both")
    return select_tables(plan, table, pipeline)


def print_listing(
    printer: Printer,
    command: str,
    listing: list[PipelineTables],
    describe: Callable[[Table], dict[str, Any]],
) -> None:
    """Print a line for each table of a mirror or fan-out, and how to see one of them.

    Args:
        printer: of the command.
        command: the command, for the hint.
        listing: the tables of each pipeline.
        describe: returns what to show of a table: by heading, or with `_` for JSON alone.
    """
    documents = [
        {
            "pipeline": found.pipeline,
            "table": one.name,
            "source": None if one.source is None else ".".join(one.source),
            "error": table_problem(one),
            **({} if one.table is None else describe(one.table)),
        }
        for found in listing
        for one in found.tables
    ]
    errors = [
        {"pipeline": found.pipeline, "message": str(found.error)}
        for found in listing
        if found.error is not None
    ]
    text = "\n".join(_listing_lines(command, listing, documents, errors))
    printer.print_result({"tables": documents, "errors": errors}, text)


def table_problem(one: PipelineTable) -> str | None:
    """Return why a table can't be shown; None if it can, or was not created yet."""
    from icestream.sinks.iceberg.multi.tables import DROPPED

    if one.error is not None:
        return str(one.error)
    return DROPPED if one.table is None and one.is_written else None


def _listing_lines(
    command: str,
    listing: list[PipelineTables],
    documents: list[dict[str, Any]],
    errors: list[dict[str, str]],
) -> Iterator[str]:
    shown = [one for one in documents if one["error"] is None]
    if shown:
        hidden = {"pipeline", "error"}
        names = list(dict.fromkeys(name for one in shown for name in one if name not in hidden))
        heads = [name.replace("_", " ") for name in names]
        yield output.format_table(heads, [[one.get(name) for name in names] for one in shown])
    yield from (f"{one['table']}: {one['error']}" for one in documents if one["error"])
    yield from (f"{one['pipeline']}: {one['message'].splitlines()[0]}" for one in errors)
    if shown:
        example = shown[0]["table"].partition(".")[2]
        yield f"Show one of them with `icestream {command} {example}`."
    for found in listing:
        if not found.tables and found.error is None:
            yield (
                f"Pipeline {found.pipeline!r} has no tables yet; `icestream plan` shows what a run "
                "would create."
            )


def _listed(table: Table) -> dict[str, Any]:
    from icestream.tables.snapshots import current_snapshot

    current = current_snapshot(table)
    time = None if current is None else output.utc_datetime(current.timestamp_ms)
    return {
        "rows": None if current is None else current.rows_total,
        "snapshots": len(table.metadata.snapshots),
        "current_snapshot": None if current is None else current.snapshot_id,
        "committed_at": output.iso_timestamp(time),
    }


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
