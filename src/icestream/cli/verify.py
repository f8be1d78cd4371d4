"""`icestream verify`: is each mirrored table what its database has?"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import click

from icestream.cli import output
from icestream.cli.output import Screen, with_config

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.verify.comparison import RowDifference, SideReport, TableReport

DIFFERENCES = 4
SIGNS = {"missing": "-", "extra": "+", "different": "~", "doubled": "+"}
WORDS = {
    "missing": "missing in the lake",
    "extra": "only in the lake",
    "different": "different",
    "doubled": "more than once in the lake",
}


@click.command("verify", short_help="Compare mirrored tables with their database.")
@click.option("--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this pipeline.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME",
    help="Only this table, by its name in the database or in the lake; may be repeated.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="The most rows that are named, of each table.",
)
@with_config
def command(
    screen: Screen, path: Path, pipelines: tuple[str, ...], tables: tuple[str, ...], limit: int
) -> int:
    """Compare each mirrored Iceberg table with its PostgreSQL table, and name rows that differ.

    Both sides are read in full, in Spark: counts and checksums of chunks first, then the rows of
    chunks that differ. Rows that changed in the database after the newest batch are left out, so
    the pipeline may run meanwhile. The exit code is 4 if anything differs or can't be compared.
    """
    from icestream.config import load
    from icestream.engine.run import open_plan_session
    from icestream.plan.planner import build, refuse_planned
    from icestream.verify.verify import left_out, verify

    plan = build(load(path), only=pipelines)
    refuse_planned(plan)
    plan.enter_environment()

    @cache
    def spark() -> SparkSession:
        screen.note("Reading both sides in Spark ...")
        return open_plan_session(plan)

    reports = []
    for report in verify(plan, spark, tables=tables, limit=limit):
        reports.append(report)
        screen.say(told(report))
    good = all(report.is_same for report in reports)
    for pipeline, reason in (passed_over := left_out(plan)).items():
        screen.note(f"pipeline {pipeline!r} was not compared: {reason}")
    if screen.is_json:
        told_of = [one.to_json() for one in reports]
        screen.show({"is_same": good, "tables": told_of, "left_out": passed_over}, "")
    return 0 if good else DIFFERENCES


def told(report: TableReport) -> str:
    """Return what is said of a table: one line if it is the same."""
    head = f"{output.tick(good=report.is_same)} {report.source} -> {report.table}: {report.status}"
    if not report.point:
        return f"{head}\n    {report.reason}"
    lines = [head + (f", {output.count(report.in_lake.rows, 'row')}" if report.is_same else "")]
    if report.changed_since:
        since = output.count(report.changed_since, "row")
        lines.append(f"    {since} changed since the newest batch, not compared")
    if report.only_in_lake:
        lines.append(
            f"    columns of the lake alone, not compared: {', '.join(report.only_in_lake)}"
        )
    if report.only_in_source:
        lines.append(
            f"    columns of the database alone, not compared: {', '.join(report.only_in_source)}"
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
        counted = ", ".join(f"{number:,} {WORDS[kind]}" for kind, number in report.counts.items())
        lines.append(f"    {counted}; in {report.chunks_differing:,} of {report.chunks:,} chunks")
    lines += [line for row in report.rows for line in _row(row)]
    more = sum(report.counts.values()) - len(report.rows)
    if more > 0:
        lines.append(f"    and {output.count(more, 'more row').replace('more rows', 'more')}")
    return lines


def _side(side: SideReport) -> str:
    rows = output.count(side.rows, "row")
    if side.first_key is None or side.last_key is None:
        return rows
    return f"{rows}, keys {', '.join(side.first_key)} to {', '.join(side.last_key)}"


def _row(row: RowDifference) -> list[str]:
    key = ", ".join(f"{name}={_shown(value)}" for name, value in row.key.items())
    lines = [f"    {SIGNS[row.kind]} {key}  {WORDS[row.kind]}"]
    for name, (ours, theirs) in row.columns.items():
        lines.append(
            f"        {name}: {_shown(ours)} in the database, {_shown(theirs)} in the lake"
        )
    return lines


def _shown(value: str | None) -> str:
    if value is None:
        return "null"
    # A line break or an escape sequence in the data must not reach the terminal as such.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
