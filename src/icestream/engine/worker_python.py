"""The command `icestream-worker`: Python as Spark starts it, without Spark's own archives.

Spark puts an archive of `pyspark` before everything else on the path of each Python process that
it starts, and such a process compiles all that it loads from there: a second of CPU, four times
over before the first batch of a pipeline. On the driver's machine the same `pyspark` is installed,
compiled already.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "icestream-worker"
# The folder of commands may be that of several Pythons: the driver's own is meant.
PYTHON = "ICESTREAM_PYTHON"


def worker_python() -> str:
    """Return the command by which Spark is to start Python on this machine."""
    script = Path(sysconfig.get_path("scripts"), NAME)
    # A Spark that was chosen by hand may be another one than the installed `pyspark`.
    if "SPARK_HOME" in os.environ or not os.access(script, os.X_OK):
        return sys.executable
    os.environ[PYTHON] = sys.executable
    return str(script)


def without_archives(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose path has no archive of Spark's own."""
    home = Path(environment.get("SPARK_HOME", os.devnull))
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if entry and home not in Path(entry).parents]
    return {**environment, "PYTHONPATH": os.pathsep.join(kept)}


def main() -> None:
    """Become Python, with the arguments that Spark gave."""
    command = [os.environ.get(PYTHON, sys.executable), *sys.argv[1:]]
    os.execve(command[0], command, without_archives(os.environ))  # noqa: S606 - ourselves
