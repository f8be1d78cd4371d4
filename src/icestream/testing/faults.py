"""Runs `icestream run` as a separate process, and kills it at the worst moments.

The process can crash at a named point (`icestream.engine.crash_points`), or be killed from outside
at any moment, as by a power cut.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.engine.crash_points import AFTER_TABLE, POINTS, VARIABLE

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

__all__ = ["AFTER_TABLE", "POINTS", "RunProcess"]


class RunProcess:
    """One `icestream run`, with its output.

    Args:
        folder: its working directory, which holds `icestream.yaml`.
        arguments: the arguments of `run`.
        crash_at: a crash point, and at which visit to it the process crashes.
    """

    def __init__(
        self, folder: Path, *arguments: str, crash_at: tuple[str, int] | None = None
    ) -> None:
        environment = dict(os.environ)
        environment.pop(VARIABLE, None)
        if crash_at is not None:
            point, times = crash_at
            points = (*POINTS, AFTER_TABLE)
            if point not in points:
                raise ValueError(
                    f"no crash point is called {point!r}; there are {', '.join(points)}"
                )
            environment[VARIABLE] = f"{point}:{times}"
        self.lines: deque[str] = deque(maxlen=10_000)
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [Path(sys.executable).with_name("icestream"), "run", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Its own session, so that Ctrl-C in the test's terminal does not reach it.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> RunProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def count(self, words: str) -> int:
        """Return how many lines contain the words."""
        return sum(words in line for line in list(self.lines))

    def await_lines(self, words: str, times: int = 1, secs: float = 120) -> None:
        """Block until that many lines contain the words."""
        self._await(lambda: self.count(words) >= times, f"{words!r} {times} times", secs)

    def kill(self) -> None:
        """Kill the process, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def wait(self, secs: float = 180) -> int:
        """Block until the process ends by itself, and return its exit code."""
        code = self.process.wait(secs)
        self._reader.join(10)
        return code

    def _await(self, condition: Callable[[], Any], what: str, secs: float) -> None:
        deadline = time.monotonic() + secs
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                code = self.process.poll()
                end = f"timed out after {secs} s" if code is None else f"it exited with {code}"
                raise AssertionError(f"waited for {what}, {end}:\n{self.output}")
            time.sleep(0.05)

    def _read(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
