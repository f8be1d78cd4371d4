"""Upserts by `MERGE INTO`, a batch at a time, each batch measured; with or without a Bloom filter.

Run as a module: bench.jobs.merge_upserts SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs.batch_meter import BatchMeter
from bench.jobs.plain_spark import open_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# What lets Spark build a filter of the batch's keys and put it on the scan of the table.
BLOOM = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "9223372036854775807b",
}
# A condition that every key meets; Spark makes a filter only of rows that were chosen somehow.
ALWAYS = {"bigint": "> -9223372036854775808", "string": ">= ''"}


def merge(spark: SparkSession, table: str, keys: Mapping[str, str], source: str) -> None:
    join = " AND ".join(f"t.{key} = u.{key}" for key in keys)
    spark.sql(
        f"MERGE INTO {table} t USING {source} u ON {join} "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def upsert(spark: SparkSession, table: str, file: str, job: Mapping[str, Any]) -> None:
    changes = spark.read.parquet(file)
    if not job["bloom"]:
        changes.createOrReplaceTempView("changes")
        merge(spark, table, job["keys"], "changes")
        return
    kept = changes.persist()
    kept.count()
    kept.createOrReplaceTempView("changes")
    condition = " AND ".join(f"{key} {ALWAYS[kind]}" for key, kind in job["keys"].items())
    chosen = f"(SELECT * FROM changes WHERE {condition})"  # noqa: S608 - made above
    merge(spark, table, job["keys"], chosen)
    kept.unpersist()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    spark = open_session(job)
    if job["bloom"]:
        for key, value in BLOOM.items():
            spark.conf.set(key, value)
    meter = BatchMeter()
    files: dict[str, list[str]] = job["changes"]
    for file in files[job["warm_up"]][: job["warm_up_batches"]]:
        upsert(spark, f"{job['prefix']}{job['warm_up']}", file, job)
    for number in range(job["batches"]):
        for table in job["tables"]:
            with meter.batch(table):
                upsert(spark, f"{job['prefix']}{table}", files[table][number], job)
    Path(sys.argv[2]).write_text(json.dumps({"batches": meter.report(), "index_bytes": {}}))
    spark.stop()


if __name__ == "__main__":
    main()
