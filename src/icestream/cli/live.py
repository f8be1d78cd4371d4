"""Progress of running pipelines: a live view on a terminal, else a log line per batch."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from icestream.cli import output
from icestream.cli.output import VERBOSE_HINT, Printer, error_document, unexpected_error_text
from icestream.errors import ConnectorError, IcestreamError
from icestream.metrics.events import (
    BatchSkipped,
    BatchWritten,
    CommitFailed,
    ExpectationUnmet,
    LagMeasured,
    MultiTableBatchWritten,
    RecordsFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table
    from rich.text import Text

    from icestream.cli.output import Printer
    from icestream.engine.progress import Progress
    from icestream.engine.run import Run, RunChoices
    from icestream.engine.runner import PipelineRunner
    from icestream.metrics.registry import PipelineMetrics
    from icestream.plan.plan import Plan


logger = logging.getLogger(__name__)

COLORS = {"running": "green", "waiting": "yellow", "failed": "red", "starting": "cyan"}
REFRESHES_PER_SECOND = 4


class BatchLog:
    """Writes a log line for each batch; `observe` may be called from any thread.

    Args:
        level: log level for committed batches; lower on a terminal, where the live view shows them.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._lag_rows: dict[str, int] = {}

    def observe(self, event: object) -> None:
        """Log an event of the engine."""
        if isinstance(event, LagMeasured):
            self._lag_rows[event.pipeline] = event.rows
        elif isinstance(event, BatchWritten):
            # The lag when the batch began, less the rows it wrote.
            behind = max(self._lag_rows.get(event.pipeline, 0) - event.rows, 0)
            level = logging.DEBUG if event.of_many else self._level
            logger.log(level, "%s", batch_line(event, behind))
        elif isinstance(event, MultiTableBatchWritten):
            logger.log(self._level, "%s", multi_table_line(event))
        elif isinstance(event, BatchSkipped):
            level = logging.DEBUG if event.of_many else self._level
            table = event.table if event.of_many else "the table"
            logger.log(
                level, "%s: batch %d is already in %s, skipped", event.pipeline, event.epoch, table
            )
        elif isinstance(event, RecordsFailed):
            kept = f", {event.dead_letters:,} written to dead letters" if event.dead_letters else ""
            bad = output.format_count(event.count, "record")
            logger.warning("%s: %s rejected%s", event.pipeline, bad, kept)
        elif isinstance(event, ExpectationUnmet):
            bad = output.format_count(event.count, "record")
            logger.warning(
                "%s: expectation %r failed for %s", event.pipeline, event.expectation, bad
            )
        elif isinstance(event, CommitFailed):
            logger.debug("%s: commit refused: %s", event.pipeline, event.reason)


def batch_line(event: BatchWritten, lag_rows: int) -> str:
    """Return the log line of a committed batch."""
    table = f" of {event.table}" if event.of_many else ""
    retries = f", {output.format_count(event.retries, 'retry').replace('retrys', 'retries')}"
    return (
        f"{event.pipeline}: batch {event.epoch}{table}, "
        f"{output.format_count(event.rows, 'row')} in "
        f"{output.format_count(event.files, 'file')}, {output.format_bytes(event.bytes)}, "
        f"write {event.write_secs:.1f} s, commit {event.commit_secs:.1f} s"
        f"{retries if event.retries else ''}, lag {output.format_count(lag_rows, 'row')}"
    )


def multi_table_line(event: MultiTableBatchWritten) -> str:
    """Return the log line of a batch that was written to several tables."""
    held = f", {event.held:,} already had it" if event.held else ""
    return (
        f"{event.pipeline}: batch {event.epoch}, {output.format_count(event.rows, 'row')} in "
        f"{output.format_count(event.files, 'file')} of "
        f"{output.format_count(event.tables, 'table')}{held}, "
        f"stage {event.write_secs:.1f} s, commit {event.commit_secs:.1f} s"
    )


def is_live(printer: Printer) -> bool:
    """Tell whether to show the live view: on a terminal, without JSON output."""
    import os

    return not printer.is_json and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def live_view(
    printer: Printer, progresses: Callable[[], Sequence[Progress]], hint: str
) -> Iterator[None]:
    """Show a line per pipeline until the block ends, with log lines above.

    Args:
        printer: decides about colour.
        progresses: returns the current progress of each pipeline; none while Spark starts.
        hint: the caption below.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, no_color=not printer.wants_color(sys.stderr), highlight=False)

    def render() -> Table | Text:
        return _lines(progresses(), hint)

    with Live(get_renderable=render, console=console, refresh_per_second=REFRESHES_PER_SECOND):
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
    printer: Printer,
    *,
    hint: str = "Ctrl-C stops after the current batch.",
    tick: Callable[[Run], None] = lambda _: None,
) -> Run:
    """Run every pipeline of a plan to its end and show their progress.

    Args:
        plan: what to run.
        choices: the options of the run.
        printer: prints the live view.
        hint: the caption of the live view.
        tick: called repeatedly while the pipelines run.
    """
    from icestream.engine.run import Run
    from icestream.metrics.registry import PipelineMetrics

    metrics = PipelineMetrics()
    live = is_live(printer)
    log = BatchLog(logging.DEBUG if live else logging.INFO)

    def emit(event: Any) -> None:
        metrics.observe(event)
        log.observe(event)

    run = Run(plan, choices, emit)
    # Set before Spark starts, for early signals, and again afterwards since Spark replaces them.
    run.stop_on_signals()
    with ExitStack() as stack:
        stack.enter_context(_endpoint(plan, metrics))
        if live:
            stack.enter_context(
                live_view(printer, lambda: [one.progress for one in run.runners], hint)
            )
        else:
            logger.info("starting Spark")
        run.start()
        run.stop_on_signals()
        run.wait(lambda: tick(run), TICK_SECS)
    return run


@contextmanager
def _endpoint(plan: Plan, metrics: PipelineMetrics) -> Iterator[None]:
    """Serve metrics while the block runs; a port in use is only a warning."""
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


def show_outcome(run: Run, printer: Printer) -> None:
    """Print how each pipeline ended: a line on stdout, the full error on stderr."""
    lines, errors = [], []
    for runner in run.runners:
        lines.append(summary_line(runner))
        if runner.error is not None:
            errors.append(runner.error)
            if not printer.is_json:
                printer.print_error({}, _error_text(runner.plan.name, runner.error, printer))
    printer.print_result(_document(run, errors), "\n".join(lines))


def _error_text(pipeline: str, error: BaseException, printer: Printer) -> str:
    where = f"pipeline {pipeline!r}"
    if isinstance(error, IcestreamError):
        return str(error.at(where))
    logger.debug("%s: traceback of the error", where, exc_info=error)
    return f"{where}: {unexpected_error_text(error)}" + (
        "" if printer.verbose else f"\n  {VERBOSE_HINT}"
    )


def summary_line(runner: PipelineRunner) -> str:
    """Return a one-line summary of how a pipeline ended."""
    progress = runner.progress
    parts = [
        f"{progress.pipeline}: {progress.state}",
        f"{output.format_count(progress.rows, 'row')} in "
        f"{output.format_count(progress.batches, 'batch').replace('batchs', 'batches')}",
    ]
    if progress.bad:
        parts.append(output.format_count(progress.bad, "bad record"))
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
