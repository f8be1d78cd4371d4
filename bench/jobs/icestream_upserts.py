"""Upserts by icestream's own write path, a batch at a time, each batch measured.

What the body of `foreachBatch` does in `icestream run`, on the same session, without the stream
around it. Run as a module: bench.jobs.icestream_upserts SETTINGS_JSON ANSWER_JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.jobs.batch_meter import BatchMeter
from icestream.config import load
from icestream.contracts.offset import BatchMark
from icestream.engine.batch.batch import write_once
from icestream.engine.batch.columns import StreamColumns
from icestream.engine.run import open_plan_session
from icestream.engine.state import PipelineState
from icestream.plan.planner import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icestream.contracts.offset import Offset
    from icestream.plan.plan import PipelinePlan


class Feed:
    """A pipeline, taken forward one batch at a time."""

    def __init__(self, spark: SparkSession, plan: PipelinePlan, state: Path) -> None:
        self.plan = plan
        self.cache = state / "pipelines" / plan.name / "cache"
        self._spark = spark
        self._columns = StreamColumns(plan, PipelineState(state, plan.name))
        self._epoch = 0
        self._at: Offset = plan.source.initial()
        plan.sink.open(spark, plan.name, self.cache)

    def next_batch(self) -> None:
        source = self.plan.source
        end = source.limit(self._at, source.latest(self._at), self.plan.batching.max_batch_rows)
        mark = BatchMark(
            self.plan.name, "bench", self._epoch, source.identity(), self._at, end, instance="bench"
        )
        done = write_once(self._spark, self.plan, self._columns, mark)
        if done is None or done.commit is None:
            raise RuntimeError(f"batch {self._epoch} of {self.plan.name} wrote nothing")
        self._at = end
        self._epoch += 1

    def index_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.cache.rglob("*") if path.is_file())


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    plan = build(load(Path(job["config"])))
    spark = open_plan_session(plan)
    feeds = {
        each.name.removeprefix("upsert_"): Feed(spark, each, plan.state) for each in plan.pipelines
    }
    meter = BatchMeter()
    for _ in range(job["warm_up_batches"]):
        feeds[job["warm_up"]].next_batch()
    for _ in range(job["batches"]):
        # Round and round, so that a JVM that grows warm favours no table.
        for table in job["tables"]:
            with meter.batch(table):
                feeds[table].next_batch()
    index = {table: feeds[table].index_bytes() for table in job["tables"]}
    Path(sys.argv[2]).write_text(json.dumps({"batches": meter.report(), "index_bytes": index}))
    spark.stop()


if __name__ == "__main__":
    main()
