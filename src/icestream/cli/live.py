"""What a person sees while pipelines run: a live line each, or one log line a batch."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from icestream.cli import output
from icestream.cli.output import SEE_MORE, Screen, error_document, unexpected
from icestream.errors import ConnectorError, IcestreamError
from icestream.metrics.events import (
    BatchSkipped,
    BatchSpread,
    BatchWritten,
    CommitFailed,
    ExpectationUnmet,
    LagMeasured,
    RecordsFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table
    from rich.text import Text

    from icestream.cli.output import Screen
    from icestream.engine.progress import Progress
    from icestream.engine.run import Run, RunChoices
    from icestream.engine.runner import PipelineRunner
    from icestream.metrics.registry import PipelineMetrics
    from icestream.plan.plan import Plan


logger = logging.getLogger(__name__)

COLORS = {"running": "green", "waiting": "yellow", "failed": "red", "starting": "cyan"}
REFRESHES_A_SECOND = 4


class BatchLog:
    """Writes a log line for each batch; `observe` may be called from any thread.

    Args:
        level: how loud the lines of good batches are; on a terminal the live view shows them.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._lag_rows: dict[str, int] = {}

    def observe(self, event: object) -> None:
        """Take an event of the engine."""
        if isinstance(event, LagMeasured):
            self._lag_rows[event.pipeline] = event.rows
        elif isinstance(event, BatchWritten):
            # What waited when the batch began, less what it took.
            behind = max(self._lag_rows.get(event.pipeline, 0) - event.rows, 0)
            level = logging.DEBUG if event.of_many else self._level
            logger.log(level, "%s", batch_line(event, behind))
        elif isinstance(event, BatchSpread):
            logger.log(self._level, "%s", spread_line(event))
        elif isinstance(event, BatchSkipped):
            level = logging.DEBUG if event.of_many else self._level
            table = event.table if event.of_many else "the table"
            logger.log(
                level, "%s: batch %d is in %s already, skipped", event.pipeline, event.epoch, table
            )
        elif isinstance(event, RecordsFailed):
            kept = f", {event.dead_letters:,} kept as dead letters" if event.dead_letters else ""
            bad = output.count(event.count, "record")
            logger.warning("%s: %s could not be used%s", event.pipeline, bad, kept)
        elif isinstance(event, ExpectationUnmet):
            bad = output.count(event.count, "record")
            logger.warning(
                "%s: expectation %r is not met by %s", event.pipeline, event.expectation, bad
            )
        elif isinstance(event, CommitFailed):
            logger.debug("%s: commit refused: %s", event.pipeline, event.reason)


def batch_line(event: BatchWritten, lag_rows: int) -> str:
    """Return a batch in one line."""
    table = f" of {event.table}" if event.of_many else ""
    retries = f", {output.count(event.retries, 'retry').replace('retrys', 'retries')}"
    return (
        f"{event.pipeline}: batch {event.epoch}{table}, {output.count(event.rows, 'row')} in "
        f"{output.count(event.files, 'file')}, {output.size(event.bytes)}, "
        f"write {event.write_secs:.1f} s, commit {event.commit_secs:.1f} s"
        f"{retries if event.retries else ''}, lag {output.count(lag_rows, 'row')}"
    )


def spread_line(event: BatchSpread) -> str:
    """Return a batch that went to several tables in one line."""
    held = f", {event.held:,} held it already" if event.held else ""
    return (
        f"{event.pipeline}: batch {event.epoch}, {output.count(event.rows, 'row')} in "
        f"{output.count(event.files, 'file')} of {output.count(event.tables, 'table')}{held}, "
        f"put aside {event.write_secs:.1f} s, commit {event.commit_secs:.1f} s"
    )


def is_live(screen: Screen) -> bool:
    """Tell whether a live view can be shown: to a person at a terminal, beside no JSON."""
    import os

    return not screen.is_json and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def live_view(
    screen: Screen, progresses: Callable[[], Sequence[Progress]], hint: str
) -> Iterator[None]:
    """Show a line for each pipeline until the block ends, and log lines above them.

    Args:
        screen: tells about colours.
        progresses: gives the pipelines as they are at the moment; none while Spark starts.
        hint: what to say below.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, no_color=not screen.colors(sys.stderr), highlight=False)

    def picture() -> Table | Text:
        return _lines(progresses(), hint)

    with Live(get_renderable=picture, console=console, refresh_per_second=REFRESHES_A_SECOND):
        yield


def _lines(progresses: Sequence[Progress], hint: str) -> Table | Text:
    from rich.table import Table
    from rich.text import Text

    if not progresses:
        return Text("starting Spark ...", style="cyan")
    lines = Table(box=None, pad_edge=False, caption=hint, caption_justify="left")
    lines.add_column("pipeline")
    lines.add_column("state")
    for name in ("rows/s", "rows", "lag rows", "last commit"):
        lines.add_column(name, justify="right")
    lines.add_column("snapshot", no_wrap=True)
    for one in progresses:
        since = "-" if one.last_commit is None else f"{time.time() - one.last_commit:.0f} s ago"
        lines.add_row(
            Text(one.pipeline),
            Text(one.state, style=COLORS.get(one.state, "")),
            f"{one.rows_per_second():,.0f}",
            f"{one.rows:,}",
            f"{one.lag_rows:,}",
            since,
            "-" if one.snapshot_id is None else str(one.snapshot_id),
        )
        if one.error is not None:
            lines.add_row("", Text(str(one.error).splitlines()[0], style="red"))
    return lines


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
        f"{output.count(progress.rows, 'row')} in "
        f"{output.count(progress.batches, 'batch').replace('batchs', 'batches')}",
    ]
    if progress.bad:
        parts.append(output.count(progress.bad, "bad record"))
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
