"""Who applies a topic of changes to a table: icestream from a YAML file, hand-written PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import change_stream, lake
from bench.change_stream import ChangedLake
from bench.contenders.contender import Command, Contender
from bench.contenders.icestream_run import icestream_versions, run_once, started_pipeline
from bench.contenders.pyspark_job import kafka_connector, pyspark_versions
from bench.contenders.upserters import spark_settings
from bench.table_files import NAMESPACE, ROOT, job_command, make_tables, read_answer

if TYPE_CHECKING:
    from pathlib import Path

    from bench.change_stream import Expected
    from bench.stream import Stream
    from bench.table_files import Files

ROWS_A_BATCH = 100_000
PIPELINE = "changes"
JOB = "pyspark_upsert"
CONFIG = """\
version: "1.0"
sources:
  changes:
    connector: kafka
    config:
      brokers: [{bootstrap}]
      topics: [{topic}]
      format: json
      schema: "{schema}"
sinks:
  lake:
    connector: iceberg
    config:
      namespace: {namespace}
      table: {table}
      commit_mode: upsert
      key_fields: [id]
      op_field: op
      batch_size: {rows}
      max_batch_rows: {rows}
pipelines:
  {pipeline}: {{source: changes, sink: lake}}
spark:
  master: "local[2]"
  conf: {{spark.driver.memory: 2g}}
metrics: {{port: 0}}
"""


class ChangeApplier(Contender):
    """Starts from a table that is there; what makes it is not measured."""

    def __init__(self, files: Files, expected: Expected) -> None:
        self._files = files
        self._expected = expected

    def lake(self, folder: Path) -> ChangedLake:
        return ChangedLake(folder, self._expected)

    def prepare(self, stream: Stream, folder: Path) -> Command:
        tables = {change_stream.TABLE: self._files}
        make_tables(change_stream.KIND, tables, self.lake(folder).warehouse, folder / "made")
        return self.command(stream, folder)

    def command(self, stream: Stream, folder: Path) -> Command:
        raise NotImplementedError


class IcestreamUpsert(ChangeApplier):
    """`icestream run --once` with `commit_mode: upsert`, and a driver of 2 GB."""

    name = "icestream"
    installation: Path | None = None

    def versions(self) -> dict[str, str]:
        return icestream_versions()

    def command(self, stream: Stream, folder: Path) -> Command:
        config = CONFIG.format(
            bootstrap=stream.bootstrap,
            topic=stream.topic,
            schema=change_stream.SCHEMA,
            namespace=NAMESPACE,
            table=change_stream.TABLE,
            rows=ROWS_A_BATCH,
            pipeline=PIPELINE,
        )
        (folder / "icestream.yaml").write_text(config)
        return Command(run_once(self.installation))

    def started_at(self, folder: Path) -> float:
        return started_pipeline(folder, PIPELINE)


class BaselineUpsert(IcestreamUpsert):
    """The same by another installation, such as that of the commit before a change."""

    name = "baseline"

    def __init__(self, files: Files, expected: Expected, installation: Path) -> None:
        super().__init__(files, expected)
        self.installation = installation


class PysparkUpsert(ChangeApplier):
    """`bench/jobs/pyspark_upsert.py`, with a driver of 4 GB."""

    name = "pyspark"

    def versions(self) -> dict[str, str]:
        return pyspark_versions()

    def command(self, stream: Stream, folder: Path) -> Command:
        found = spark_settings(self.lake(folder))
        settings = {
            **found,
            "jars": [*found["jars"], *kafka_connector()],
            "bootstrap": stream.bootstrap,
            "topic": stream.topic,
            "schema": change_stream.SCHEMA,
            "table": f"{lake.CATALOG}.{NAMESPACE}.{change_stream.TABLE}",
            "rows_a_batch": ROWS_A_BATCH,
            "checkpoint": str(folder / "checkpoint"),
        }
        return Command(job_command(JOB, settings, folder), {"PYTHONPATH": str(ROOT)})

    def started_at(self, folder: Path) -> float:
        return float(read_answer(JOB, folder)["started"])
