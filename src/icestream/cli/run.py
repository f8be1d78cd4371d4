"""`icestream run`: runs pipelines until they end or are stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from icestream.cli.output import Printer, with_config_option
from icestream.errors import PlanError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.engine.recovery.reconcile import Choice


@click.command("run", short_help="Run the pipelines of the file.")
@click.option("--once", is_flag=True, help="Read to the current end of each source, then stop.")
@click.option(
    "--pipeline", "pipelines", multiple=True, metavar="NAME", help="Only this pipeline; repeatable."
)
@click.option(
    "--resume",
    is_flag=True,
    help="After losing the checkpoint or rows of the table: continue from the mark in the table. "
    "Lost rows are not restored.",
)
@click.option(
    "--start-over",
    is_flag=True,
    help="Start from the beginning, e.g. after losing the checkpoint. `postgres-cdc` replaces its "
    "tables; other sources may write rows twice.",
)
@click.option(
    "--reload",
    "reload_tables",
    is_flag=True,
    help="Reload mirrored tables that were dropped, replaced or rolled back.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Replace a hung process; commit fencing prevents duplicate writes.",
)
@with_config_option
def command(
    printer: Printer,
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

    Ctrl-C or SIGTERM finishes the current batch and stops; the next run resumes from there. A
    failed pipeline does not stop the others, but sets the exit code.
    """
    from icestream.cli.live import run_plan, show_outcome
    from icestream.config import read
    from icestream.engine.run import RunChoices
    from icestream.plan.packages import refuse_missing_packages
    from icestream.plan.planner import build_runnable

    if resume + start_over + reload_tables > 1:
        raise click.UsageError("--resume, --start-over and --reload are mutually exclusive")
    config = read(path)
    plan = build_runnable(config, only=pipelines, once=once)
    refuse_missing_packages(plan, config)
    if not plan.pipelines:
        raise PlanError(
            "no pipeline to run",
            where=str(path),
            todo="Add one under `pipelines`, or set `enabled: true`.",
        )
    beginning: Choice = "ask"
    if resume or start_over or reload_tables:
        beginning = "resume" if resume else "start-over" if start_over else "reload"
    run = run_plan(plan, RunChoices(once=once, take_over=take_over, recovery=beginning), printer)
    show_outcome(run, printer)
    return run.exit_code()
