"""Runs a plan before a person's eyes: for `run` and `demo`."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from icestream.cli import render
from icestream.cli.live import BatchLog, is_live, live_view
from icestream.cli.screen import SEE_MORE, Screen, error_document, unexpected
from icestream.errors import ConnectorError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icestream.engine.run import Run, RunChoices
    from icestream.engine.runner import PipelineRunner
    from icestream.metrics.registry import PipelineMetrics
    from icestream.plan.plan import Plan

logger = logging.getLogger(__name__)

TICK_SECS = 0.2


def run_plan(
    plan: Plan,
    choices: RunChoices,
    screen: Screen,
    *,
    hint: str = "Ctrl-C finishes the batch in hand and stops.",
    tick: Callable[[Run], None] = lambda _: None,
) -> Run:
    """Run every pipeline of a plan to its end, showing how they do.

    Args:
        plan: what to run.
        choices: what the person who starts it chose.
        screen: where the view is shown.
        hint: what the live view says below.
        tick: called now and then while the pipelines run.
    """
    from icestream.engine.run import Run
    from icestream.metrics.registry import PipelineMetrics

    metrics = PipelineMetrics()
    live = is_live(screen)
    log = BatchLog(logging.DEBUG if live else logging.INFO)

    def emit(event: Any) -> None:
        metrics.observe(event)
        log.observe(event)

    run = Run(plan, choices, emit)
    # Set before Spark starts, for a signal that comes early, and again since Spark sets its own.
    run.stop_on_signals()
    with ExitStack() as stack:
        stack.enter_context(_endpoint(plan, metrics))
        if live:
            stack.enter_context(
                live_view(screen, lambda: [one.progress for one in run.runners], hint)
            )
        else:
            logger.info("starting Spark")
        run.start()
        run.stop_on_signals()
        run.wait(lambda: tick(run), TICK_SECS)
    return run


@contextmanager
def _endpoint(plan: Plan, metrics: PipelineMetrics) -> Iterator[None]:
    """Serve metrics while the block runs; a port that is taken is no reason not to run."""
    from icestream.metrics.endpoint import serve

    if plan.metrics_port == 0:
        yield
        return
    try:
        token = plan.metrics_token.get_secret_value() if plan.metrics_token else None
        endpoint = serve(metrics.registry, plan.metrics_host, plan.metrics_port, token=token)
    except ConnectorError as exc:
        logger.warning("%s", exc)
        yield
        return
    try:
        yield
    finally:
        endpoint.close()


def show_outcome(run: Run, screen: Screen) -> None:
    """Show how each pipeline ended: a line each on stdout, errors in full on stderr."""
    lines, errors = [], []
    for runner in run.runners:
        lines.append(summary_line(runner))
        if runner.error is not None:
            errors.append(runner.error)
            if not screen.is_json:
                screen.fail({}, _told(runner.plan.name, runner.error, screen))
    screen.show(_document(run, errors), "\n".join(lines))


def _told(pipeline: str, error: BaseException, screen: Screen) -> str:
    where = f"pipeline {pipeline!r}"
    if isinstance(error, IcestreamError):
        return str(error.at(where))
    logger.debug("%s: the error comes from here", where, exc_info=error)
    return f"{where}: {unexpected(error)}" + ("" if screen.verbose else f"\n  {SEE_MORE}")


def summary_line(runner: PipelineRunner) -> str:
    """Return how a pipeline ended, in one line."""
    progress = runner.progress
    parts = [
        f"{progress.pipeline}: {progress.state}",
        f"{render.count(progress.rows, 'row')} in "
        f"{render.count(progress.batches, 'batch').replace('batchs', 'batches')}",
    ]
    if progress.bad:
        parts.append(render.count(progress.bad, "bad record"))
    parts.append(f"table {progress.table}")
    if progress.snapshot_id is not None:
        parts.append(f"snapshot {progress.snapshot_id}")
    return ", ".join(parts)


def _document(run: Run, errors: list[BaseException]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "exit_code": run.exit_code(),
        "pipelines": [
            {
                **{key: value for key, value in runner.progress.to_json().items() if key != "pid"},
                "error": None if runner.error is None else error_document(runner.error),
            }
            for runner in run.runners
        ],
    }
    documents = [error_document(error) for error in errors]
    if documents:
        document["error"] = max(documents, key=lambda one: int(one["exit_code"]))
    return document
