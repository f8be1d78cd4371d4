"""`icestream run`: pipelines, until they end or are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from icestream.cli.output import Screen, with_config
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.engine.recovery.reconcile import Choice


@click.command("run", short_help="Run the pipelines of the file.")
@click.option("--once", is_flag=True, help="Go up to where each source ends now, then stop.")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this one; repeatable."
)
@click.option(
    "--resume",
    is_flag=True,
    help="When the checkpoint or rows of the table are gone: continue from the mark in the table, "
    "without these rows.",
)
@click.option(
    "--start-over",
    is_flag=True,
    help="Begin anew, e.g. when the checkpoint is gone. `postgres-cdc` replaces its tables; rows "
    "of other sources may be there twice.",
)
@click.option(
    "--reload",
    "reload_tables",
    is_flag=True,
    help="Load mirrored tables again that were dropped, replaced or rolled back.",
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
    reload_tables: bool,
    take_over: bool,
) -> int:
    """Run the pipelines of the file, each batch exactly once.

    Ctrl-C or SIGTERM finishes the batch in hand and stops; the next run goes on from there. A
    pipeline that fails does not stop the others; the exit code tells.
    """
    from icestream.cli.live import run_plan, show_outcome
    from icestream.config import load
    from icestream.engine.run import RunChoices
    from icestream.plan.plan import refuse_endless
    from icestream.plan.planner import build, refuse_planned

    if resume + start_over + reload_tables > 1:
        raise click.UsageError("--resume, --start-over and --reload exclude each other")
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
    beginning: Choice = "ask"
    if resume or start_over or reload_tables:
        beginning = "resume" if resume else "start-over" if start_over else "reload"
    run = run_plan(plan, RunChoices(once=once, take_over=take_over, beginning=beginning), screen)
    show_outcome(run, screen)
    return run.exit_code()
