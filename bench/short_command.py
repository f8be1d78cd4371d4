"""Times a command that starts nothing and ends soon."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from bench.harness import RunError
from bench.process_tree import Usage
from bench.results import Run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def time_command(arguments: Sequence[str], folder: Path) -> Run:
    """Run a command to its end; the kernel reports what it used.

    Raises:
        RunError: it ended with another exit code than 0.
    """
    log = folder / "command.log"
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            arguments, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, rusage = os.wait4(process.pid, 0)
        took = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        text = log.read_text(errors="replace")
        raise RunError(f"{' '.join(arguments)} ended with {process.returncode}:\n{text[-2000:]}")
    usage = Usage(rusage.ru_utime + rusage.ru_stime, rusage.ru_maxrss / 1024)
    return Run(took, took, usage)
