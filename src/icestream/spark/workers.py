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
class WarmUp:
    """Loads what a worker needs for its first batch; unpickling the sources loads their modules."""

    sources: list[Source[Any]]
    modules: list[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for module in self.modules:
            import_module(module)
        yield from batches


WORKER_COMMAND = "icestream-worker"
# The folder of commands may be that of several Pythons: the driver's own is meant.
PYTHON_VARIABLE = "ICESTREAM_PYTHON"


def worker_python() -> str:
    """Return the command by which Spark is to start Python on this machine."""
    script = Path(sysconfig.get_path("scripts"), WORKER_COMMAND)
    # A Spark that was chosen by hand may be another one than the installed `pyspark`.
    if "SPARK_HOME" in os.environ or not os.access(script, os.X_OK):
        return sys.executable
    os.environ[PYTHON_VARIABLE] = sys.executable
    return str(script)


def without_spark_archives(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose path has no archive of Spark's own."""
    home = Path(environment.get("SPARK_HOME", os.devnull))
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if entry and home not in Path(entry).parents]
    return {**environment, "PYTHONPATH": os.pathsep.join(kept)}


def main() -> None:
    """Become Python, with the arguments that Spark gave."""
    command = [os.environ.get(PYTHON_VARIABLE, sys.executable), *sys.argv[1:]]
    os.execve(command[0], command, without_spark_archives(os.environ))  # noqa: S606 - ourselves
