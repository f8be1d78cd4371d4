"""Runs contenders in turn, as processes of their own, and measures them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.fixtures.waiting import wait_until

from bench.process_tree import TreeWatch
from bench.results import Result, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.contenders.contender import Contender
    from bench.stream import Stream

PATIENCE_SECS = 1_800
ENDING_SECS = 20
LOG_END = 4_000


class RunError(Exception):
    """A contender ended with an error, or did not end."""


class Measured:
    """A running process under watch."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.watch = TreeWatch(process.pid)
        self._log = log

    def wait_for_success(self, what: str) -> None:
        """Wait until it ends; raises `RunError` if it ends badly or not at all."""
        try:
            code = self.process.wait(PATIENCE_SECS)
        except subprocess.TimeoutExpired as exc:
            raise RunError(f"{what} did not end in {PATIENCE_SECS} s:\n{self._end()}") from exc
        if code:
            raise RunError(f"{what} ended with exit code {code}:\n{self._end()}")

    def wait_until(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait for a condition; raises `RunError` if the process ends before it holds."""
        wait_until(
            lambda: self.process.poll() is not None or is_done(),
            what,
            secs=PATIENCE_SECS,
            pause=0.5,
        )
        if self.process.poll() is not None:
            raise RunError(f"{what}: the process ended early:\n{self._end()}")

    def _end(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_END:]


@contextmanager
def running(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Measured]:
    """Start a process in a folder, with its output in `log` there; nothing of it outlives us."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    measured = Measured(process, log)
    try:
        yield measured
    finally:
        _end_tree(measured)


def _end_tree(measured: Measured) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + ENDING_SECS
        for pid in measured.watch.living():
            _send(pid, number)
        while measured.watch.living() and time.monotonic() < deadline:
            # Also collects the process itself, which would stay in the table otherwise.
            measured.process.poll()
            time.sleep(0.05)
    measured.watch.finish()
    measured.process.poll()


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def measure(contender: Contender, stream: Stream, folder: Path) -> Run:
    """Let a contender move a stream into a table of its own, and verify the table.

    Raises:
        RunError: it ended with an error, or did not end.
        WrongRowsError: the table does not hold each record once.
    """
    folder.mkdir(parents=True)
    command = contender.prepare(stream, folder)
    lake = contender.lake(folder)
    began = time.time()
    with running(command.arguments, folder, command.env) as measured:
        if contender.ends_itself:
            measured.wait_for_success(contender.name)
            wall = time.time() - began
        else:
            measured.wait_until(
                lambda: lake.completed_at(stream.rows) is not None,
                f"{stream.rows} rows of {contender.name}",
            )
            wall = (lake.completed_at(stream.rows) or 0) - began
        usage = measured.watch.finish()
    lake.verify(stream.rows)
    completed = lake.completed_at(stream.rows)
    assert completed is not None  # noqa: S101 - verified above
    return Run(completed - contender.started_at(folder), wall, usage)


def race(
    case: str,
    contenders: Sequence[Contender],
    stream: Stream,
    folder: Path,
    *,
    rounds: int,
    keeps_tables: bool = False,
) -> list[Result]:
    """Run every contender once a round, so that a busy minute of the machine hits them all."""
    runs: dict[str, list[Run]] = {each.name: [] for each in contenders}
    for number in range(1, rounds + 1):
        # Nobody always comes right after the same other.
        order = contenders if number % 2 else [*reversed(contenders)]
        for contender in order:
            place = folder / f"{contender.name}-{number}"
            run = measure(contender, stream, place)
            runs[contender.name].append(run)
            print(
                f"{case}, round {number}, {contender.name}: {stream.rows / run.seconds:,.0f} rows/s"
                f" ({run.seconds:.1f} s of {run.wall_s:.1f} s, {run.usage.cpu_s:.0f} s CPU,"
                f" {run.usage.peak_rss_mb:,.0f} MiB)",
                file=sys.stderr,
                flush=True,
            )
            if not keeps_tables:
                shutil.rmtree(place, ignore_errors=True)
    return [
        Result.of_runs(case, each.name, runs[each.name], each.versions(), rows=stream.rows)
        for each in contenders
    ]
