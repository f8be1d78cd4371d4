"""icestream as a person uses it: a YAML file and `icestream run --once`."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from bench import lake
from bench.contenders.contender import Command, Contender
from icestream.spark import jars

if TYPE_CHECKING:
    from collections.abc import Mapping

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
{declared}sinks:
  lake:
    connector: iceberg
    config:
      namespace: {namespace}
{table}      compression: {codec}
      profile: high_throughput
{more}pipelines:
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


def run_once(installation: Path | None) -> list[str]:
    """Return the arguments that run a folder's file once, by this icestream or by another one."""
    return [str(installation or Path(sys.executable).with_name("icestream")), "run", "--once"]


def started_pipeline(folder: Path, pipeline: str) -> float:
    """Return when a pipeline began, in seconds since 1970."""
    # It takes its lock first of all, once Spark is there: before it looks at the table, at the
    # checkpoint or at Kafka.
    return (folder / ".icestream" / "pipelines" / pipeline / "lock").stat().st_mtime


class IcestreamRun(Contender):
    """Kafka into the embedded lake, with the `high_throughput` profile and a 2 GB driver."""

    name = "icestream"
    installation: Path | None = None
    table: str | None = lake.TABLE
    declares: bool = True
    sink_options: Mapping[str, str] = {}

    def versions(self) -> dict[str, str]:
        return icestream_versions()

    def prepare(self, stream: Stream, folder: Path) -> Command:
        config = CONFIG.format(
            bootstrap=stream.bootstrap,
            topic=stream.topic,
            declared=f'      schema: "{lake.SCHEMA}"\n' if self.declares else "",
            namespace=lake.NAMESPACE,
            table="" if self.table is None else f"      table: {self.table}\n",
            codec=lake.CODEC,
            more="".join(f"      {key}: {value}\n" for key, value in self.sink_options.items()),
            pipeline=PIPELINE,
        )
        (folder / "icestream.yaml").write_text(config)
        return Command(run_once(self.installation))

    def started_at(self, folder: Path) -> float:
        return started_pipeline(folder, PIPELINE)


class BaselineRun(IcestreamRun):
    """The same by another installation, such as that of the commit before a change."""

    name = "baseline"

    def __init__(self, installation: Path) -> None:
        self.installation = installation


class EvolvingRun(IcestreamRun):
    """The same into a table that is there, under a `schema_evolution` of its own."""

    def __init__(self, evolution: str, *, declares: bool = False) -> None:
        self.name = evolution
        self.declares = declares
        self.sink_options = {"schema_evolution": evolution}

    def prepare(self, stream: Stream, folder: Path) -> Command:
        self.lake(folder).create_table()
        return super().prepare(stream, folder)
