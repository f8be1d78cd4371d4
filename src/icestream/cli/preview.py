"""`icestream preview`: the first rows of a source after its transforms, without writing any."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option
from icestream.cli.query import json_value
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from icestream.engine.dry_run.preview import Preview, PreviewTable
    from icestream.plan.plan import PipelinePlan, Plan

MAX_BAD = 10
MIN_WIDTH = 6
NO_ROWS = "No records: a new pipeline would wait here for the first one."


@click.command("preview", short_help="Show the first rows of a source, after its transforms.")
@click.argument("pipeline", required=False)
@click.option("--source", metavar="NAME", help="Preview a source by itself, without a pipeline.")
@click.option(
    "--rows",
    type=click.IntRange(min=1, max=10_000),
    default=20,
    show_default=True,
    help="Maximum number of rows to show, of each table.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME",
    help="Only this table of many, by its name in the source or in the lake; repeatable.",
)
@click.option(
    "--no-transforms", is_flag=True, help="Show the rows as the source has them, only decoded."
)
@with_config_option
def command(
    printer: Printer,
    path: Path,
    pipeline: str | None,
    source: str | None,
    rows: int,
    tables: tuple[str, ...],
    *,
    no_transforms: bool,
) -> int:
    """Show the first rows that a new pipeline would write, and write nothing.

    PIPELINE may be omitted if the file has one. The rows are read from where a pipeline without a
    checkpoint starts, decoded, transformed and checked by `expect`. Bad rows are listed with the
    reason. Spark starts only if the pipeline has transforms, `expect`, or an expression in
    `route_by`.
    """
    from icestream.config import read
    from icestream.engine.dry_run.dry_run import dry_run_session
    from icestream.engine.dry_run.preview import preview

    if pipeline is not None and source is not None:
        raise click.UsageError("PIPELINE and --source are mutually exclusive")
    config = read(path)
    plan, chosen = _choose(config, pipeline, source, no_transforms=no_transforms)
    announce = lambda: printer.print_note("Starting Spark ...")  # noqa: E731 - one line
    with dry_run_session(plan, announce) as open_spark:
        found = preview(chosen, open_spark, rows=rows, tables=tables)
    document = {
        "pipeline": None if source or no_transforms else chosen.name,
        "source": chosen.source_name,
        **preview_document(found),
    }
    printer.print_result(document, preview_text(found, _terminal_width()))
    if not found.records and not printer.is_json:
        printer.print_note(NO_ROWS)
    return 0


def _choose(
    config: Any, pipeline: str | None, source: str | None, *, no_transforms: bool
) -> tuple[Plan, PipelinePlan]:
    """Return the plan of the file, and the pipeline to preview."""
    from icestream.contracts.registry import did_you_mean
    from icestream.engine.dry_run.preview import source_plan
    from icestream.plan.planner import build, refuse_planned

    plan = build(config, only=(pipeline,) if pipeline else ())
    if source is not None:
        if source not in plan.sources:
            names = list(plan.sources)
            raise PlanError(
                f"no source is named {source!r}",
                where=str(config.path),
                todo=f"{did_you_mean(source, names)}Available: {', '.join(names) or 'none'}.",
            )
        return plan, source_plan(source, plan.sources[source])
    refuse_planned(plan)
    if len(plan.pipelines) != 1:
        names = [one.name for one in plan.pipelines]
        raise PlanError(
            f"the file has {len(names)} pipelines" if names else "the file has no pipeline",
            where=str(config.path),
            todo=f"Name one of them: {', '.join(names)}."
            if names
            else "Add one under `pipelines`, or preview a source with `--source NAME`.",
        )
    [chosen] = plan.pipelines
    if no_transforms:
        return plan, source_plan(chosen.source_name, chosen.source)
    return plan, chosen


def preview_document(found: Preview) -> dict[str, Any]:
    """Return a preview as a JSON document."""
    from icestream.schemas.spark_types import sql_type

    return {
        "records": found.records,
        "inferred": found.is_inferred,
        "tables": [
            {
                "table": table.name or None,
                "columns": [{"name": f.name, "type": sql_type(f.type)} for f in table.columns],
                "rows": [json_value(row) for row in table.rows],
                "rows_read": table.count,
            }
            for table in found.tables
        ],
        "left_out": found.left_out,
        "bad": [
            {"reason": bad.reason, "position": bad.position, "raw": _text(bad.raw)}
            for bad in found.bad
        ],
        "expectations_failed": [
            {"name": one.name, "expr": one.expr, "on_fail": one.on_fail, "rows": count}
            for one, count in found.unmet
        ],
    }


def preview_text(found: Preview, width: int | None) -> str:
    """Return a preview as text that fits a terminal of this width; None for any width."""
    parts = ["\n".join(_table_lines(table, width)) for table in found.tables]
    if found.records:
        parts.append("\n".join(_summary_lines(found)))
    return "\n\n".join(parts)


def _table_lines(table: PreviewTable, width: int | None) -> Iterator[str]:
    from icestream.schemas.spark_types import sql_type

    if table.name:
        yield click.style(table.name, bold=True)
    names = table.columns.names
    types = [sql_type(field.type) for field in table.columns]
    cells = [[_cell(row[name]) for name in names] for row in table.rows]
    numbers = [all(output.is_number(row[name]) for row in table.rows) for name in names]
    shown, left_out = fit_columns([names, types, *cells], width, numbers)
    head, *rows = shown
    yield output.format_table(head, rows)
    if left_out:
        yield f"{output.format_count(left_out, 'more column')}: {', '.join(names[-left_out:])}"
    if len(table.rows) < table.count:
        yield f"The first {len(table.rows):,} of {output.format_count(table.count, 'row')} read."


def _summary_lines(found: Preview) -> Iterator[str]:
    rows = sum(table.count for table in found.tables)
    records = output.format_count(found.records, "record")
    line = f"{records} read, {output.format_count(rows, 'row')}"
    if found.left_out:
        line += f", {found.left_out:,} left out by transforms"
    if found.bad:
        line += f", {len(found.bad):,} bad"
    yield line
    if found.is_inferred:
        yield f"columns inferred from {records}"
    for one, count in found.unmet:
        failed = f"fails for {output.format_count(count, 'row')}"
        yield f"{output.status_mark(passed=False)} expectation {one.name!r} {failed}: {one.expr}"
    for bad in found.bad[:MAX_BAD]:
        where = bad.position or "row"
        yield f"{output.status_mark(passed=False)} {where}: {bad.reason}"
    if len(found.bad) > MAX_BAD:
        yield f"and {len(found.bad) - MAX_BAD:,} more bad rows"


def _cell(value: Any) -> str:
    """Return a value as it is shown in a table, in one line."""
    import json

    if isinstance(value, dict | list):
        return json.dumps(json_value(value), ensure_ascii=False, default=str)
    if isinstance(value, bytes):
        return _text(value) or ""
    return output.format_cell(value)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def fit_columns(
    lines: Sequence[Sequence[str]], width: int | None, numbers: Sequence[bool]
) -> tuple[list[list[str]], int]:
    """Shorten cells so that the columns fit a width; return them and how many were left out.

    The widest columns are shortened first; the last ones are left out if that is not enough.

    Args:
        lines: the cells of each line.
        width: of the terminal; None for any.
        numbers: which columns are right-aligned.
    """
    columns = [list(column) for column in zip(*lines, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    left_out = 0
    if width is not None:
        while len(widths) > 1 and sum(min(w, MIN_WIDTH) + 2 for w in widths) - 2 > width:
            widths.pop()
            left_out += 1
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > MIN_WIDTH:
            widths[widths.index(max(widths))] -= 1
    kept = []
    for column, most, is_number in zip(columns, widths, numbers, strict=False):
        cut = [cell if len(cell) <= most else f"{cell[: most - 1]}…" for cell in column]
        kept.append([cell.rjust(most) for cell in cut] if is_number else cut)
    return [list(line) for line in zip(*kept, strict=True)], left_out


def _terminal_width() -> int | None:
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return None
