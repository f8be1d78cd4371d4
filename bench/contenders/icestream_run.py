"""icestream as a person uses it: a YAML file and `icestream run --once`."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from bench import lake
from bench.contenders.contender import Command, Contender
from icestream.engine import jars

if TYPE_CHECKING:
    from bench.stream import Stream

PIPELINE = "events"
CONFIG = """\
version: "1.0"
sources:
  events:
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
      compression: {codec}
      profile: high_throughput
pipelines:
  {pipeline}: {{source: events, sink: lake}}
spark:
  master: "local[2]"
  conf: {{spark.driver.memory: 2g}}
metrics: {{port: 0}}
"""


def icestream_versions() -> dict[str, str]:
    """Return the versions of icestream and of what it runs on."""
    parts = ("icestream", "pyspark", "pyarrow", "confluent-kafka")
    iceberg = jars.iceberg_runtime().rpartition(":")[2]
    return {**{part: metadata.version(part) for part in parts}, "iceberg": iceberg}


class IcestreamRun(Contender):
    """Kafka into the embedded lake, with the `high_throughput` profile and a 2 GB driver."""

    name = "icestream"

    def versions(self) -> dict[str, str]:
        return icestream_versions()

    def prepare(self, stream: Stream, folder: Path) -> Command:
        config = CONFIG.format(
            bootstrap=stream.bootstrap,
            topic=stream.topic,
            schema=lake.SCHEMA,
            namespace=lake.NAMESPACE,
            table=lake.TABLE,
            codec=lake.CODEC,
            pipeline=PIPELINE,
        )
        (folder / "icestream.yaml").write_text(config)
        return Command([str(Path(sys.executable).with_name("icestream")), "run", "--once"])

    def started_at(self, folder: Path) -> float:
        # The pipeline takes its lock first of all, once Spark is there: before it looks at the
        # table, at the checkpoint or at Kafka.
        return (folder / ".icestream" / "pipelines" / PIPELINE / "lock").stat().st_mtime
