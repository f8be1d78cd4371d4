"""`icestream verify`: compares mirrored tables with their database."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.verify.comparison import RowDifference, SideReport, TableReport

DIFFERENCES = 4
MARKS = {"missing": "-", "extra": "+", "different": "~", "doubled": "+"}
LABELS = {
    "missing": "missing in the lake",
    "extra": "only in the lake",
    "different": "different",
    "doubled": "more than once in the lake",
}


@click.command("verify", short_help="Compare mirrored tables with their database.")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this pipeline; repeatable."
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME",
    help="Only this table, by its name in the database or in the lake; repeatable.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Maximum number of differing rows to list per table.",
)
@with_config_option
def command(
    printer: Printer, path: Path, pipelines: tuple[str, ...], tables: tuple[str, ...], limit: int
) -> int:
    """Compare each mirrored Iceberg table with its PostgreSQL table, and list the rows that differ.

    Spark reads both sides in full: row counts and checksums per chunk first, then the rows of
    chunks that differ. Rows that changed in the database after the newest batch are excluded, so
    the pipeline may keep running. The exit code is 4 if anything differs or can't be compared.
    """
    from icestream.config import read
    from icestream.engine.run import open_plan_session
    from icestream.plan.planner import build, refuse_planned
    from icestream.verify.verify import skipped_pipelines, verify

    plan = build(read(path), only=pipelines)
    refuse_planned(plan)
    plan.export_environment()

    @cache
    def spark() -> SparkSession:
        printer.print_note("Reading both sides in Spark ...")
        return open_plan_session(plan)

    reports = []
    for report in verify(plan, spark, tables=tables, limit=limit):
        reports.append(report)
        printer.print_text(report_text(report))
    is_same = all(report.is_same for report in reports)
    for pipeline, reason in (skipped := skipped_pipelines(plan)).items():
        printer.print_note(f"pipeline {pipeline!r} was not compared: {reason}")
    if printer.is_json:
        documents = [one.to_json() for one in reports]
        printer.print_result({"is_same": is_same, "tables": documents, "left_out": skipped}, "")
    return 0 if is_same else DIFFERENCES


def report_text(report: TableReport) -> str:
    """Return the report of a table as text: one line if both sides are the same."""
    mark = output.status_mark(passed=report.is_same)
    head = f"{mark} {report.source} -> {report.table}: {report.status}"
    if not report.point:
        return f"{head}\n    {report.reason}"
    lines = [
        head + (f", {output.format_count(report.in_lake.rows, 'row')}" if report.is_same else "")
    ]
    if report.changed_since:
        since = output.format_count(report.changed_since, "row")
        lines.append(f"    {since} changed since the newest batch, not compared")
    if report.only_in_lake:
        lines.append(
            f"    columns only in the lake, not compared: {', '.join(report.only_in_lake)}"
        )
    if report.only_in_source:
        lines.append(
            f"    columns only in the database, not compared: {', '.join(report.only_in_source)}"
        )
    if report.reason:
        lines.append(f"    {report.reason}")
    if not report.is_same:
        lines += _differences(report)
    return "\n".join(lines)


def _differences(report: TableReport) -> list[str]:
    lines = [
        f"    database  {_side(report.in_source)}",
        f"    lake      {_side(report.in_lake)}",
    ]
    if report.counts:
        counted = ", ".join(f"{number:,} {LABELS[kind]}" for kind, number in report.counts.items())
        lines.append(f"    {counted}; in {report.chunks_differing:,} of {report.chunks:,} chunks")
    lines += [line for row in report.rows for line in _row(row)]
    more = sum(report.counts.values()) - len(report.rows)
    if more > 0:
        lines.append(
            f"    and {output.format_count(more, 'more row').replace('more rows', 'more')}"
        )
    return lines


def _side(side: SideReport) -> str:
    rows = output.format_count(side.rows, "row")
    if side.first_key is None or side.last_key is None:
        return rows
    return f"{rows}, keys {', '.join(side.first_key)} to {', '.join(side.last_key)}"


def _row(row: RowDifference) -> list[str]:
    key = ", ".join(f"{name}={_printable_value(value)}" for name, value in row.key.items())
    lines = [f"    {MARKS[row.kind]} {key}  {LABELS[row.kind]}"]
    for name, values in row.columns.items():
        in_source, in_lake = map(_printable_value, values)
        lines.append(f"        {name}: {in_source} in the database, {in_lake} in the lake")
    return lines


def _printable_value(value: str | None) -> str:
    if value is None:
        return "null"
    # Escape line breaks and control sequences in the data; the terminal would interpret them.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
