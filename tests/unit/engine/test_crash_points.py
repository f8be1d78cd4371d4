"""The harness that ends the process where a test asks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from icestream.engine.crash_points import POINTS, VARIABLE

PROGRAM = """
import sys
from icestream.engine.crash_points import crash_point
for point in sys.argv[1:]:
    crash_point(point)
    print(point, flush=True)
"""


def reach_all(wanted: str | None, *points: str) -> tuple[int, list[str]]:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if wanted is not None:
        environment[VARIABLE] = wanted
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *points],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout.split()


def test_nothing_happens_without_the_variable() -> None:
    assert reach_all(None, *POINTS) == (0, list(POINTS))


@pytest.mark.parametrize("point", POINTS)
def test_process_is_killed_at_the_named_point(point: str) -> None:
    before = list(POINTS[: POINTS.index(point)])

    assert reach_all(point, *POINTS) == (-signal.SIGKILL, before)


def test_process_is_killed_the_nth_time_it_reaches_the_point() -> None:
    times = ["before-commit", "after-commit"] * 4

    assert reach_all("before-commit:3", *times) == (-signal.SIGKILL, times[:4])
