"""`icestream plan`: shows what a run would do, without doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from icestream.cli.output import Printer, with_config_option

if TYPE_CHECKING:
    from pathlib import Path

DIFFERENCES = 4


@click.command("plan", short_help="Show what a run would create, change and start.")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this pipeline; repeatable."
)
@click.option("--offline", is_flag=True, help="Do not connect to the catalogs.")
@click.option(
    "--detailed-exitcode",
    is_flag=True,
    help=f"Exit with {DIFFERENCES} if a run would create or change anything.",
)
@with_config_option
def command(
    printer: Printer,
    path: Path,
    pipelines: tuple[str, ...],
    *,
    offline: bool,
    detailed_exitcode: bool,
) -> int:
    """Show what a run would create, change and start, with secrets hidden.

    `+` marks what would be created, `~` what would be changed, and `!` problems, including features
    that this version does not have; `run` and `check` refuse those.
    """
    from icestream.config import read
    from icestream.plan.describe import describe, render_text
    from icestream.plan.packages import find_missing_packages
    from icestream.plan.planner import build
    from icestream.plan.stores import resolve_stores

    config = read(path)
    plan = build(config, only=pipelines)
    if not offline:
        plan = resolve_stores(plan.export_environment())
    missing = find_missing_packages(plan, config)
    description = describe(plan, ask=not offline, missing=missing)
    printer.print_result(description, render_text(description))
    differs = description["counts"]["create"] or description["counts"]["change"]
    return DIFFERENCES if detailed_exitcode and differs else 0
