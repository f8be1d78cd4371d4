"""`icestream check`: validates the file and tests its connections."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.deadline import OverdueError, call_with_deadline
from icestream.cli.output import Printer, error_document, with_config_option
from icestream.errors import IcestreamError, PlanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from icestream.config import Config
    from icestream.contracts.faults import CheckStep
    from icestream.contracts.sink import Sink
    from icestream.contracts.source import Source
    from icestream.plan.plan import Plan

UNREACHABLE = 3
# Some client libraries retry for minutes.
STEP_TIMEOUT_SECS = 20.0
NAME_WIDTH = 20


@dataclass(frozen=True)
class StepReport:
    """The result of a step; `passed` is None for a step that was skipped."""

    name: str
    passed: bool | None
    seconds: float = 0.0
    detail: str = ""
    error: IcestreamError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the step as a JSON document."""
        states = {True: "ok", False: "failed", None: "skipped"}
        return {
            "name": self.name,
            "state": states[self.passed],
            "seconds": round(self.seconds, 3),
            "detail": self.detail,
            "error": None if self.error is None else error_document(self.error),
        }


@dataclass
class ComponentReport:
    """The steps of a source, a sink or a pipeline."""

    name: str
    steps: list[StepReport] = field(default_factory=list)

    def errors(self) -> list[IcestreamError]:
        """Return the errors of the failed steps."""
        return [step.error for step in self.steps if step.error is not None]


@click.command("check", short_help="Validate the file and test its connections.")
@click.option("--sink", "sinks", multiple=True, metavar="NAME", help="Only this sink; repeatable.")
@click.option(
    "--source", "sources", multiple=True, metavar="NAME", help="Only this source; repeatable."
)
@click.option("--offline", is_flag=True, help="Validate the file only; connect to nothing.")
@click.option(
    "--once", is_flag=True, help="Check for `run --once`, which stops at each source's current end."
)
@with_config_option
def command(
    printer: Printer,
    path: Path,
    sinks: tuple[str, ...],
    sources: tuple[str, ...],
    *,
    offline: bool,
    once: bool,
) -> int:
    """Validate the file and test its connections.

    Checks the file, then each source and sink step by step, then whether each pipeline's schema
    fits its table. A failed step shows the reason and what to do. Spark is not started and no row
    is written; a test object written to a store is removed. If the source declares no columns, up
    to 10,000 records are read to infer them. A server that accepts the connection but does not
    respond fails after 20 s.
    """
    from icestream.config import read
    from icestream.plan.packages import find_missing_packages, refuse_missing_packages
    from icestream.plan.planner import build_runnable

    started = time.perf_counter()
    config = read(path)
    plan = build_runnable(config, once=once)
    selected = _select_components(plan, sources, sinks)
    if not offline:
        refuse_missing_packages(plan, config)
    head = StepReport("configuration", True, time.perf_counter() - started, _component_counts(plan))
    printer.print_text(str(path))
    printer.print_text(_step_text(head))
    for missing in find_missing_packages(plan, config):
        printer.print_text(f"  ! {missing}")
    reports = [] if offline else _check_all(plan, config, selected, printer)
    errors = [error for report in reports for error in report.errors()]
    printer.print_result(
        _document(path, head, reports, errors), _summary(reports, errors, offline=offline)
    )
    return _exit_code(errors)


def _select_components(
    plan: Plan, sources: tuple[str, ...], sinks: tuple[str, ...]
) -> dict[tuple[str, str], Source[Any] | Sink[Any]]:
    """Return the components to check, by role and name."""
    everything = not sources and not sinks
    components: dict[tuple[str, str], Source[Any] | Sink[Any]] = {}
    for name in plan.sources if everything else sources:
        components["source", name] = _find_component("source", name, plan.sources)
    for name in plan.sinks if everything else sinks:
        components["sink", name] = _find_component("sink", name, plan.sinks)
    return components


def _check_all(
    plan: Plan,
    config: Config,
    selected: Mapping[tuple[str, str], Source[Any] | Sink[Any]],
    printer: Printer,
) -> list[ComponentReport]:
    """Check each component, then each pipeline whose source and sink both passed."""
    from icestream.engine.column_check import column_steps
    from icestream.plan.table_changes import compatibility_steps

    plan.export_environment()
    reports = {
        (role, name): _check_component(
            f"{role} {name!r} ({component.identity()})", component.check, printer
        )
        for (role, name), component in selected.items()
    }
    pairs = {}
    for pipeline in plan.pipelines:
        ends = [("source", pipeline.source_name), ("sink", pipeline.sink_name)]
        if all(end in reports and not reports[end].errors() for end in ends):
            steps = [
                *column_steps(config, pipeline, plan.state),
                *compatibility_steps(pipeline),
            ]
            pairs["pipeline", pipeline.name] = _check_component(
                f"pipeline {pipeline.name!r}", partial(iter, steps), printer
            )
    return [*reports.values(), *pairs.values()]


def _find_component(role: str, name: str, known: Mapping[str, Any]) -> Any:
    from difflib import get_close_matches

    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise PlanError(
        f"unknown {role} {name!r}", todo=f"{hint}Configured: {', '.join(known) or 'none'}."
    )


def _check_component(
    part: str, steps: Callable[[], Iterator[CheckStep]], printer: Printer
) -> ComponentReport:
    report = ComponentReport(part)
    printer.print_text(part)
    failed = False
    for step in steps():
        done = StepReport(step.name, None) if failed else _run_step(step, part)
        failed = failed or done.passed is False
        report.steps.append(done)
        printer.print_text(_step_text(done))
    return report


def _run_step(step: CheckStep, part: str = "") -> StepReport:
    started = time.perf_counter()
    try:
        detail = call_with_deadline(STEP_TIMEOUT_SECS, step.run)
    except OverdueError:
        error = UnreachableError(
            f"no answer within {STEP_TIMEOUT_SECS:g} s",
            where=part,
            todo="Check that the service is up, that the address is right, and that no firewall or "
            "proxy is in the way.",
        )
        return StepReport(step.name, False, time.perf_counter() - started, error=error)
    except IcestreamError as exc:
        return StepReport(step.name, False, time.perf_counter() - started, error=exc)
    return StepReport(step.name, True, time.perf_counter() - started, detail)


def _step_text(step: StepReport) -> str:
    sign = output.status_mark(passed=step.passed)
    if step.passed is None:
        return f"  {sign} {step.name:{NAME_WIDTH}} skipped"
    line = f"  {sign} {step.name:{NAME_WIDTH}} {step.seconds:5.2f} s  {step.detail}".rstrip()
    if step.error is None:
        return line
    return "\n".join([line, *(f"      {text}" for text in str(step.error).splitlines())])


def _component_counts(plan: Plan) -> str:
    return ", ".join(
        output.format_count(len(parts), noun)
        for parts, noun in (
            (plan.sources, "source"),
            (plan.sinks, "sink"),
            (plan.pipelines, "pipeline"),
        )
    )


def _summary(reports: list[ComponentReport], errors: list[IcestreamError], *, offline: bool) -> str:
    if offline:
        return "The file is valid. No connections were tested."
    if not errors:
        return (
            "All checks passed." if reports else "The file is valid, but has no sources or sinks."
        )
    failed = sum(bool(report.errors()) for report in reports)
    return f"{failed} of {output.format_count(len(reports), 'component')} failed."


def _document(
    path: Path, head: StepReport, reports: list[ComponentReport], errors: list[IcestreamError]
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
