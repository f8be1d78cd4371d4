"""Changes from Kafka into an Iceberg table by `MERGE INTO`, in hand-written PySpark.

Run as a module: bench.jobs.pyspark_upsert SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql.functions import col, from_json, row_number

from bench.jobs.plain_spark import open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

MERGE = """\
MERGE INTO {table} t USING changes u ON t.id = u.id
WHEN MATCHED AND u.op = 'd' THEN DELETE
WHEN MATCHED THEN UPDATE SET value = u.value, note = u.note, ts = u.ts
WHEN NOT MATCHED AND u.op <> 'd' THEN INSERT (id, value, note, ts)
  VALUES (u.id, u.value, u.note, u.ts)
"""


def merging(table: str) -> Callable[[DataFrame, int], None]:
    # A key stays in one partition of the topic, where offsets show what is newer.
    newest_first = Window.partitionBy("id").orderBy(col("offset").desc())

    def merge(batch: DataFrame, _epoch: int) -> None:
        newest = batch.withColumn("rank", row_number().over(newest_first)).where("rank = 1")
        newest.createOrReplaceTempView("changes")
        batch.sparkSession.sql(MERGE.format(table=table))

    return merge


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    spark = open_session(job)
    started = time.time()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .option("subscribe", job["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", job["rows_a_batch"])
        # Spark's default of 500 records a poll costs about a tenth of the rate.
        .option("kafka.max.poll.records", 20_000)
        .load()
    )
    parsed = records.select(
        "offset", from_json(col("value").cast("string"), job["schema"]).alias("record")
    )
    query = (
        parsed.select("offset", "record.*")
        .writeStream.foreachBatch(merging(job["table"]))
        .trigger(availableNow=True)
        .option("checkpointLocation", job["checkpoint"])
        .start()
    )
    query.awaitTermination()
    Path(sys.argv[2]).write_text(json.dumps({"started": started, "ended": time.time()}))
    for progress in query.recentProgress:
        print(json.dumps(progress["durationMs"]), progress["numInputRows"], file=sys.stderr)
    spark.stop()


if __name__ == "__main__":
    main()
