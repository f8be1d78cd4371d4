"""`icestream run`: pipelines, until they end or are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from icestream.cli.screen import Screen, with_config
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path


@click.command("run", short_help="Run the pipelines of the file.")
@click.option("--once", is_flag=True, help="Go up to where each source ends now, then stop.")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this one; repeatable."
)
@click.option(
    "--resume",
    is_flag=True,
    help="When the checkpoint is gone: go on from the mark in the table.",
)
@click.option(
    "--start-over",
    is_flag=True,
    help="Begin anew, e.g. when the checkpoint is gone. `postgres-cdc` replaces its tables; rows "
    "of other sources may be there twice.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Go on in the place of another process that hangs; the table keeps the two apart.",
)
@with_config
def command(
    screen: Screen,
    path: Path,
    pipelines: tuple[str, ...],
    *,
    once: bool,
    resume: bool,
    start_over: bool,
    take_over: bool,
) -> int:
    """Run the pipelines of the file, each batch exactly once.

    Ctrl-C or SIGTERM finishes the batch in hand and stops; the next run goes on from there. A
    pipeline that fails does not stop the others; the exit code tells.
    """
    from icestream.cli.running import run_plan, show_outcome
    from icestream.config import load
    from icestream.engine.choices import RunChoices
    from icestream.plan.endless import refuse_endless
    from icestream.plan.planner import build, refuse_planned

    if resume and start_over:
        raise click.UsageError("--resume and --start-over exclude each other")
    config = load(path)
    plan = build(config, only=pipelines)
    refuse_planned(plan)
    refuse_endless(plan, config, once=once)
    if not plan.pipelines:
        raise PlanError(
            "there is no pipeline to run",
            where=str(path),
            todo="Add one under `pipelines`, or set `enabled: true`.",
        )
    beginning: Literal["ask", "resume", "start-over"] = "ask"
    if resume or start_over:
        beginning = "resume" if resume else "start-over"
    run = run_plan(plan, RunChoices(once=once, take_over=take_over, beginning=beginning), screen)
    show_outcome(run, screen)
    return run.exit_code()
