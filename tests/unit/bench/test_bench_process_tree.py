from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from bench.harness import RunError, running
from bench.short_command import time_command

if TYPE_CHECKING:
    from pathlib import Path

# Holds 64 MiB in a child of its own session's leader, and says when.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import sys
held = b"x" * (64 << 20)
for number in range(3_000_000):
    held[number % 10]
print("held", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
if sys.argv[1] == "collect":
    child.communicate()
"""


def test_usage_of_child_processes_is_counted(tmp_path: Path) -> None:
    with running([sys.executable, "-c", PARENT, "collect"], tmp_path) as measured:
        measured.wait_for_success("parent")
        usage = measured.watch.finish()

    assert usage.peak_rss_mb > 64
    assert usage.cpu_s > 0


def test_orphaned_child_process_is_killed(tmp_path: Path) -> None:
    with running([sys.executable, "-c", PARENT, "leave"], tmp_path) as measured:
        measured.wait_for_success("parent")

    assert measured.watch.living() == []


def test_failed_contender_is_an_error_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('no broker'); sys.exit(3)"]

    with (
        pytest.raises(RunError, match=r"^job ended with exit code 3:\nno broker\n$"),
        running(command, tmp_path) as measured,
    ):
        measured.wait_for_success("job")


def test_contender_that_exits_early_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match=r"^all rows: the process ended early:\n$"),
        running([sys.executable, "-c", ""], tmp_path) as measured,
    ):
        measured.wait_until(lambda: False, "all rows")


def test_short_command_is_timed(tmp_path: Path) -> None:
    run = time_command([sys.executable, "-c", "sum(range(10**6))"], tmp_path)

    assert run.seconds == run.wall_s > 0
    assert run.usage.cpu_s > 0
    assert run.usage.peak_rss_mb > 1


def test_failed_short_command_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('gone')"]

    with pytest.raises(RunError) as caught:
        time_command(command, tmp_path)
    assert str(caught.value) == f"{' '.join(command)} ended with 1:\ngone\n"
