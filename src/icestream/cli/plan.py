"""`icestream plan`: what a run would do, before it does anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from icestream.cli.output import Screen, with_config

if TYPE_CHECKING:
    from pathlib import Path

DIFFERENCES = 4


@click.command("plan", short_help="Show what a run would create, change and start.")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this one; repeatable."
)
@click.option("--offline", is_flag=True, help="Don't ask the catalogs which tables exist.")
@click.option(
    "--detailed-exitcode",
    is_flag=True,
    help=f"Exit with {DIFFERENCES} if something would be created or changed.",
)
@with_config
def command(
    screen: Screen,
    path: Path,
    pipelines: tuple[str, ...],
    *,
    offline: bool,
    detailed_exitcode: bool,
) -> int:
    """Show what a run would create, change and start, with secrets hidden.

    `+` marks what would be created, `~` what would be changed. What the file names and this
    version does not have is marked too; `run` and `check` refuse it.
    """
    from icestream.config import load
    from icestream.plan.describe import describe, render_text
    from icestream.plan.planner import build

    plan = build(load(path), only=pipelines)
    description = describe(plan if offline else plan.enter_environment(), ask=not offline)
    screen.show(description, render_text(description))
    differs = description["counts"]["create"] or description["counts"]["change"]
    return DIFFERENCES if detailed_exitcode and differs else 0
