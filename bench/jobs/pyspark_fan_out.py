"""One Kafka topic into many Iceberg tables, in hand-written PySpark.

A cached batch, then a filtered append for each table, four at a time. Run as a module:
bench.jobs.pyspark_fan_out SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col, from_json

from bench.jobs.plain_spark import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROWS_A_BATCH = 1_500_000
APPENDS_AT_ONCE = 4


def create_tables(spark: SparkSession, job: dict[str, Any]) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {job['namespace']}")
    for table in job["tables"]:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {job['namespace']}.{table} ({job['schema']}) "
            f"USING iceberg TBLPROPERTIES ('write.parquet.compression-codec' = '{job['codec']}', "
            "'format-version' = '3')"
        )


def appending(job: dict[str, Any]) -> Callable[[DataFrame, int], None]:
    def append(batch: DataFrame, _epoch: int) -> None:
        kept = batch.persist()
        kept.count()

        def append_to(table: str) -> None:
            kept.where(col("kind") == table).writeTo(f"{job['namespace']}.{table}").append()

        with ThreadPoolExecutor(APPENDS_AT_ONCE) as pool:
            list(pool.map(append_to, job["tables"]))
        kept.unpersist()

    return append


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    spark = open_session(job)
    started = time.time()
    create_tables(spark, job)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .option("subscribe", job["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_A_BATCH)
        .option("kafka.max.poll.records", 20_000)
        .load()
    )
    parsed = records.select(from_json(col("value").cast("string"), job["schema"]).alias("record"))
    query = (
        parsed.select("record.*")
        .writeStream.foreachBatch(appending(job))
        .trigger(availableNow=True)
        .option("checkpointLocation", job["checkpoint"])
        .start()
    )
    query.awaitTermination()
    Path(sys.argv[2]).write_text(json.dumps({"started": started, "ended": time.time()}))
    spark.stop()


if __name__ == "__main__":
    main()
