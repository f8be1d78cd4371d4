"""Starts Spark's Python workers on this machine: from installed files, with our modules loaded.

Spark puts its own archives before everything else on a worker's path, and lets Python read the
index of each anew at the start of every task: 0.2 s of CPU, several times the work of a small
batch. Here the same `pyspark` is installed, so the archives are left out. Workers are forked from
this process, so what it has loaded costs them nothing.
"""

from __future__ import annotations

import importlib
import sys

PRELOADED = (
    "pandas",
    "pyiceberg.io.pyarrow",
    "pyspark.sql.pandas.serializers",
    "icestream.engine.batch.tasks",
    "icestream.sinks.iceberg.writer",
    "icestream.sinks.iceberg.upsert.matching",
    "icestream.sinks.iceberg.upsert.rows",
)


def remove_archives() -> None:
    """Take archives off the path, and what Python remembers of them."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    for entry in list(sys.path_importer_cache):
        if ".zip" in entry or ".jar" in entry:
            del sys.path_importer_cache[entry]


def main() -> None:
    """Load what tasks need, and serve Spark."""
    remove_archives()
    for module in PRELOADED:
        importlib.import_module(module)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
