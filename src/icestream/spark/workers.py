"""Warms up Python workers while the driver starts."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from icestream.contracts.source import Source


@dataclass(frozen=True)
class WorkerWarmUp:
    """Imports what a worker needs for its first batch; unpickling sources imports their modules."""

    sources: list[Source[Any]]
    modules: list[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for module in self.modules:
            import_module(module)
        yield from batches


WORKER_COMMAND = "icestream-worker"
# Several Python installations may share the scripts folder; workers use the driver's.
PYTHON_VARIABLE = "ICESTREAM_PYTHON"


def worker_python() -> str:
    """Return the command that Spark starts Python workers with on this machine."""
    script = Path(sysconfig.get_path("scripts"), WORKER_COMMAND)
    # SPARK_HOME may name another version than the installed `pyspark`.
    if "SPARK_HOME" in os.environ or not os.access(script, os.X_OK):
        return sys.executable
    os.environ[PYTHON_VARIABLE] = sys.executable
    return str(script)


def without_spark_archives(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Spark's own archives in PYTHONPATH."""
    home = Path(environment.get("SPARK_HOME", os.devnull))
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    paths = [entry for entry in entries if entry and home not in Path(entry).parents]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def main() -> None:
    """Replace this process with Python, passing on Spark's arguments."""
    command = [os.environ.get(PYTHON_VARIABLE, sys.executable), *sys.argv[1:]]
    os.execve(command[0], command, without_spark_archives(os.environ))  # noqa: S606 - ourselves
