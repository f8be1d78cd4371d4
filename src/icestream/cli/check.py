"""`icestream check`: is everything that the file names there, and may we use it?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.deadline import OverdueError, within
from icestream.cli.output import Screen, error_document, with_config
from icestream.errors import IcestreamError, PlanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from icestream.contracts.faults import CheckStep
    from icestream.contracts.sink import Sink
    from icestream.contracts.source import Source
    from icestream.plan.plan import Plan

UNREACHABLE = 3
# Clients of other people try again for minutes.
STEP_SECS = 20.0
NAME_WIDTH = 20


@dataclass(frozen=True)
class StepReport:
    """What became of a step; `good` is None for one that was not asked."""

    name: str
    good: bool | None
    seconds: float = 0.0
    detail: str = ""
    error: IcestreamError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON shows it."""
        states = {True: "ok", False: "failed", None: "not asked"}
        return {
            "name": self.name,
            "state": states[self.good],
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
            "error": None if self.error is None else error_document(self.error),
        }


@dataclass
class PartReport:
    """The steps of a source, a sink or a pipeline."""

    name: str
    steps: list[StepReport] = field(default_factory=list)

    def errors(self) -> list[IcestreamError]:
        """Return what went wrong."""
        return [step.error for step in self.steps if step.error is not None]


@click.command("check", short_help="Look whether everything that the file names can be used.")
@click.option("--sink", "sinks", multiple=True, metavar="NAME", help="Only this sink; repeatable.")
@click.option(
    "--source", "sources", multiple=True, metavar="NAME", help="Only this source; repeatable."
)
@click.option("--offline", is_flag=True, help="Look at the file alone; connect to nothing.")
@click.option("--once", is_flag=True, help="For `run --once`: up to where each source ends now.")
@with_config
def command(
    screen: Screen,
    path: Path,
    sinks: tuple[str, ...],
    sources: tuple[str, ...],
    *,
    offline: bool,
    once: bool,
) -> int:
    """Look whether everything that the file names can be used.

    First the file itself, then each source and each sink, step by step: a tick with a detail, or
    the reason and what to do; then whether the rows of each pipeline fit its table. No Spark is
    started, no row is read or written, and an object that is written to try a store is removed.
    A server that takes the connection and is silent is given up after 20 s.
    """
    from icestream.config import load
    from icestream.plan.plan import refuse_endless
    from icestream.plan.planner import build, refuse_planned

    started = time.perf_counter()
    config = load(path)
    plan = build(config)
    chosen = _chosen(plan, sources, sinks)
    refuse_planned(plan)
    refuse_endless(plan, config, once=once)
    head = StepReport("configuration", True, time.perf_counter() - started, _contents(plan))
    screen.say(str(path))
    screen.say(_step_text(head))
    reports = [] if offline else _ask_all(plan, chosen, screen)
    errors = [error for report in reports for error in report.errors()]
    screen.show(_document(path, head, reports, errors), _closing(reports, errors, offline=offline))
    return _exit_code(errors)


def _chosen(
    plan: Plan, sources: tuple[str, ...], sinks: tuple[str, ...]
) -> dict[tuple[str, str], Source[Any] | Sink[Any]]:
    """Return the parts to ask, by role and name."""
    everything = not sources and not sinks
    parts: dict[tuple[str, str], Source[Any] | Sink[Any]] = {}
    for name in plan.sources if everything else sources:
        parts["source", name] = _named("source", name, plan.sources)
    for name in plan.sinks if everything else sinks:
        parts["sink", name] = _named("sink", name, plan.sinks)
    return parts


def _ask_all(
    plan: Plan, chosen: Mapping[tuple[str, str], Source[Any] | Sink[Any]], screen: Screen
) -> list[PartReport]:
    """Ask each part, and of each pipeline whose two parts are well whether they fit together."""
    from icestream.plan.table_changes import fit_steps

    plan.enter_environment()
    reports = {
        (role, name): _ask(f"{role} {name!r} ({part.identity()})", part.check, screen)
        for (role, name), part in chosen.items()
    }
    pairs = {}
    for pipeline in plan.pipelines:
        ends = [("source", pipeline.source_name), ("sink", pipeline.sink_name)]
        if all(end in reports and not reports[end].errors() for end in ends):
            steps = partial(fit_steps, pipeline)
            pairs["pipeline", pipeline.name] = _ask(f"pipeline {pipeline.name!r}", steps, screen)
    return [*reports.values(), *pairs.values()]


def _named(role: str, name: str, known: Mapping[str, Any]) -> Any:
    from difflib import get_close_matches

    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise PlanError(
        f"no {role} is named {name!r}", todo=f"{hint}There are: {', '.join(known) or 'none'}."
    )


def _ask(part: str, steps: Callable[[], Iterator[CheckStep]], screen: Screen) -> PartReport:
    report = PartReport(part)
    screen.say(part)
    failed = False
    for step in steps():
        done = StepReport(step.name, None) if failed else _run(step, part)
        failed = failed or done.good is False
        report.steps.append(done)
        screen.say(_step_text(done))
    return report


def _run(step: CheckStep, part: str = "") -> StepReport:
    started = time.perf_counter()
    try:
        detail = within(STEP_SECS, step.run)
    except OverdueError:
        error = UnreachableError(
            f"no answer within {STEP_SECS:g} s",
            where=part,
            todo="Is it up and well? Is the address that of the right service? Is a firewall or "
            "a proxy in between?",
        )
        return StepReport(step.name, False, time.perf_counter() - started, error=error)
    except IcestreamError as exc:
        return StepReport(step.name, False, time.perf_counter() - started, error=exc)
    return StepReport(step.name, True, time.perf_counter() - started, detail)


def _step_text(step: StepReport) -> str:
    sign = output.tick(good=step.good)
    if step.good is None:
        return f"  {sign} {step.name:{NAME_WIDTH}} not asked"
    line = f"  {sign} {step.name:{NAME_WIDTH}} {step.seconds:5.2f} s  {step.detail}".rstrip()
    if step.error is None:
        return line
    return "\n".join([line, *(f"      {text}" for text in str(step.error).splitlines())])


def _contents(plan: Plan) -> str:
    return ", ".join(
        output.count(len(parts), noun)
        for parts, noun in (
            (plan.sources, "source"),
            (plan.sinks, "sink"),
            (plan.pipelines, "pipeline"),
        )
    )


def _closing(reports: list[PartReport], errors: list[IcestreamError], *, offline: bool) -> str:
    if offline:
        return "The file is good. Nothing was connected to."
    if not errors:
        return "All is well." if reports else "The file is good, and names nothing to connect to."
    broken = sum(bool(report.errors()) for report in reports)
    return f"{broken} of {output.count(len(reports), 'part')} can't be used."


def _document(
    path: Path, head: StepReport, reports: list[PartReport], errors: list[IcestreamError]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "config": str(path),
        "ok": not errors,
        "configuration": head.to_json(),
        "parts": [
            {"name": report.name, "steps": [step.to_json() for step in report.steps]}
            for report in reports
        ],
    }
    if errors:
        code = _exit_code(errors)
        worst = next(error for error in errors if error.exit_code == code)
        document["error"] = error_document(worst)
    return document


def _exit_code(errors: list[IcestreamError]) -> int:
    codes = [error.exit_code for error in errors]
    return UNREACHABLE if UNREACHABLE in codes else max(codes, default=0)
