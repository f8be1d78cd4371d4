"""The Python workers that tasks run in."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from icestream.contracts.reports import run_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_worker_reads_no_archive_and_has_our_modules_loaded(spark: SparkSession) -> None:
    import pyspark

    # In here, so that it reaches the worker by value: tests are not installed there.
    def look(_: int) -> dict[str, Any]:
        import sys
        import zipimport

        import pyspark

        finders = sys.path_importer_cache.values()
        return {
            "archives": sum(isinstance(finder, zipimport.zipimporter) for finder in finders),
            "pyspark": pyspark.__file__,
            "loaded": "icestream.sinks.iceberg.writer" in sys.modules,
        }

    (found,) = run_in_tasks(spark, [0], look)
    assert found == {"archives": 0, "pyspark": pyspark.__file__, "loaded": True}


def test_spark_starts_python_without_its_archives(spark: SparkSession) -> None:
    started_by = spark.sparkContext.pythonExec
    assert started_by is not None
    assert started_by.endswith("icestream-worker")


def test_results_are_in_the_order_of_the_items(spark: SparkSession) -> None:
    assert run_in_tasks(spark, [3, 1, 2], pickle.dumps) == [pickle.dumps(n) for n in (3, 1, 2)]
    assert run_in_tasks(spark, [], pickle.dumps) == []
