"""Kafka JSON into an Iceberg table, in hand-written PySpark.

A script: pyspark_kafka_append.py SETTINGS_JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

ROWS_A_BATCH = 1_500_000


def open_session(job: dict[str, Any]) -> SparkSession:
    catalog = f"spark.sql.catalog.{job['catalog']}"
    return (
        SparkSession.builder.master("local[2]")
        .appName("kafka-to-iceberg")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", ",".join(job["jars"]))
        .config("spark.sql.session.timeZone", "UTC")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{job['database']}")
        .config(f"{catalog}.jdbc.schema-version", "V1")
        .config(f"{catalog}.warehouse", f"file://{job['warehouse']}")
        .getOrCreate()
    )


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    spark = open_session(job)
    spark.sparkContext.setLogLevel("WARN")
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {job['namespace']}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {job['table']} ({job['schema']}) USING iceberg "
        f"TBLPROPERTIES ('write.parquet.compression-codec' = '{job['codec']}')"
    )
    started = time.time()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .option("subscribe", job["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_A_BATCH)
        # Spark's default of 500 records a poll costs about a tenth of the rate.
        .option("kafka.max.poll.records", 20_000)
        .load()
    )
    parsed = records.select(from_json(col("value").cast("string"), job["schema"]).alias("record"))
    query = (
        parsed.select("record.*")
        .writeStream.outputMode("append")
        .trigger(availableNow=True)
        .option("checkpointLocation", job["checkpoint"])
        .toTable(job["table"])
    )
    query.awaitTermination()
    times = {"started": started, "ended": time.time()}
    Path(job["times"]).write_text(json.dumps(times))
    for progress in query.recentProgress:
        print(json.dumps(progress["durationMs"]), progress["numInputRows"], file=sys.stderr)
    spark.stop()


if __name__ == "__main__":
    main()
