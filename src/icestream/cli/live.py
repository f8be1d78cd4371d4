"""What a person sees while pipelines run: a live line each, or one log line a batch."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icestream.cli import render
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

    from icestream.cli.screen import Screen
    from icestream.engine.progress import Progress

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
            bad = render.count(event.count, "record")
            logger.warning("%s: %s could not be used%s", event.pipeline, bad, kept)
        elif isinstance(event, ExpectationUnmet):
            bad = render.count(event.count, "record")
            logger.warning(
                "%s: expectation %r is not met by %s", event.pipeline, event.expectation, bad
            )
        elif isinstance(event, CommitFailed):
            logger.debug("%s: commit refused: %s", event.pipeline, event.reason)


def batch_line(event: BatchWritten, lag_rows: int) -> str:
    """Return a batch in one line."""
    table = f" of {event.table}" if event.of_many else ""
    retries = f", {render.count(event.retries, 'retry').replace('retrys', 'retries')}"
    return (
        f"{event.pipeline}: batch {event.epoch}{table}, {render.count(event.rows, 'row')} in "
        f"{render.count(event.files, 'file')}, {render.size(event.bytes)}, "
        f"write {event.write_secs:.1f} s, commit {event.commit_secs:.1f} s"
        f"{retries if event.retries else ''}, lag {render.count(lag_rows, 'row')}"
    )


def spread_line(event: BatchSpread) -> str:
    """Return a batch that went to several tables in one line."""
    held = f", {event.held:,} held it already" if event.held else ""
    return (
        f"{event.pipeline}: batch {event.epoch}, {render.count(event.rows, 'row')} in "
        f"{render.count(event.files, 'file')} of {render.count(event.tables, 'table')}{held}, "
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
