"""Starts Spark's Python workers from installed files, with icestream's modules preloaded.

Spark puts its own archives first on a worker's path, and Python reads their indexes again at the
start of every task: 0.2 s of CPU, several times the work of a small batch. The same `pyspark` is
installed here, so the archives are not needed. Workers are forked from this process, so they get
its imported modules for free.
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
    "icestream.sinks.iceberg.upsert.writing",
)


def remove_archives() -> None:
    """Remove archives from the path and from Python's importer cache."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    for entry in list(sys.path_importer_cache):
        if ".zip" in entry or ".jar" in entry:
            del sys.path_importer_cache[entry]


def main() -> None:
    """Import what tasks need, then run Spark's worker daemon."""
    remove_archives()
    for module in PRELOADED:
        importlib.import_module(module)
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
