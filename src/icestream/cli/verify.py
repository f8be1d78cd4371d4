"""`icestream verify`: compares tables with their database, or with the marks of their batches."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icestream.verify.comparison import RowDifference, SideReport, TableReport
    from icestream.verify.offsets import OffsetReport

DIFFERENCES = 4
MARKS = {"missing": "-", "extra": "+", "different": "~", "doubled": "+"}
LABELS = {
    "missing": "missing in the lake",
    "extra": "only in the lake",
    "different": "different",
    "doubled": "more than once in the lake",
}


@click.command("verify", short_help="Verify tables against their source.")
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
    help="Maximum number of differing rows or problems to list per table.",
)
@with_config_option
def command(
    printer: Printer, path: Path, pipelines: tuple[str, ...], tables: tuple[str, ...], limit: int
) -> int:
    """Verify that each table holds what its source has sent, and list what differs.

    A mirror is compared with its database, row by row: Spark reads both sides in full. Other
    tables are verified by the marks of their batches, without Spark and without the source: the
    offset ranges of successive batches have no gap and no overlap, and row counts match. The exit
    code is 4 if anything differs or can't be compared.
    """
    from icestream.config import read
    from icestream.engine.run import open_plan_session
    from icestream.plan.planner import build, refuse_planned
    from icestream.verify.offsets import OffsetReport
    from icestream.verify.pipelines import skipped_pipelines
    from icestream.verify.verify import verify

    plan = build(read(path), only=pipelines)
    refuse_planned(plan)
    plan.export_environment()

    @cache
    def spark() -> SparkSession:
        printer.print_note("Reading both sides in Spark ...")
        return open_plan_session(plan)

    is_same = True
    documents: dict[str, list[dict[str, Any]]] = {"tables": [], "offsets": []}
    for report in verify(plan, spark, tables=tables, limit=limit):
        is_same = is_same and report.is_same
        if isinstance(report, OffsetReport):
            documents["offsets"].append(report.to_json())
            printer.print_text(offset_text(report, limit))
        else:
            documents["tables"].append(report.to_json())
            printer.print_text(report_text(report))
    for pipeline, reason in (skipped := skipped_pipelines(plan)).items():
        printer.print_note(f"pipeline {pipeline!r} was not verified: {reason}")
    if printer.is_json:
        printer.print_result({"is_same": is_same, **documents, "left_out": skipped}, "")
    return 0 if is_same else DIFFERENCES


def offset_text(report: OffsetReport, limit: int = 20) -> str:
    """Return the report of a table that was verified by its marks."""
    count = output.format_count
    head = f"{output.status_mark(passed=report.is_same)} {report.source} -> {report.table}: "
    if report.reason:
        return f"{head}{report.status}\n    {report.reason}"
    label = "no gap, no overlap" if report.is_same else report.status
    batches = "1 batch" if report.batches == 1 else f"{report.batches:,} batches"
    lines = [f"{head}{label}, {batches}"]
    if report.rows is None:
        lines.append("    rows are not compared: upserts replace rows of earlier batches")
    else:
        lines[0] += f", {count(report.rows, 'row')}"
    if not report.is_from_first and report.start:
        lines.append(f"    verified from {report.start} on; older snapshots have expired")
    if report.unlinked:
        lines.append(
            f"    {count(report.unlinked, 'snapshot')} of an older version, without start offsets: "
            "not verified"
        )
    lines += [f"    {problem.what}" for problem in report.problems[:limit]]
    if len(report.problems) > limit:
        lines.append(f"    and {len(report.problems) - limit:,} more")
    return "\n".join([*lines, *_offset_counts(report)])


def _offset_counts(report: OffsetReport) -> list[str]:
    """Return a line for each count that explains why rows and offsets differ in number."""
    written = (report.rows or 0) + report.bad
    lines = {
        "bad, dropped or dead letters": report.bad,
        "left out by transforms": max(report.records - written, 0) if report.is_same else 0,
    }
    texts = [f"{output.format_count(n, 'record')} {what}" for what, n in lines.items() if n]
    if report.empty_offsets:
        offsets = output.format_count(report.empty_offsets, "offset")
        texts.append(f"{offsets} without a record: compacted, or markers of transactions")
    if report.replayed:
        texts.append(f"{output.format_count(report.replayed, 'row')} of replayed dead letters")
    for name, rows in report.other_writers.items():
        writer = f"pipeline {name!r}" if name else "other tools"
        texts.append(f"{output.format_count(rows, 'row')} of {writer}")
    return [f"    {text}" for text in texts]


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
    lines += [f"    column not compared: {name}: {why}" for name, why in report.left_out.items()]
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
