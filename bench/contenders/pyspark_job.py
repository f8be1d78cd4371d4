"""The same job in hand-written PySpark: Spark's Kafka source, `from_json`, Iceberg's own sink."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fixtures.installing import copy_from_maven, installed

from bench import lake
from bench.contenders.contender import Command, Contender
from bench.jobs import pyspark_kafka_append
from icestream.contracts.jars import SQLITE
from icestream.spark import jars

if TYPE_CHECKING:
    from bench.stream import Stream

SPARK_KAFKA = "4.0.0"


def _install(folder: Path) -> None:
    # What else these need is among pyspark's own jars.
    copy_from_maven(
        folder,
        [
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_KAFKA}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_KAFKA}",
            "org.apache.kafka:kafka-clients:3.9.0",
            "org.apache.commons:commons-pool2:2.12.0",
        ],
        alone=True,
    )


def kafka_connector() -> list[str]:
    """Return the jars of Spark's Kafka source, installed when missing."""
    folder = installed("spark-sql-kafka", SPARK_KAFKA, _install)
    return [str(path) for path in sorted(folder.glob("*.jar"))]


def pyspark_versions() -> dict[str, str]:
    """Return the versions of Spark and of what it reads and writes with."""
    return {
        "pyspark": metadata.version("pyspark"),
        "iceberg": jars.iceberg_runtime().rpartition(":")[2],
        "spark-sql-kafka-0-10": SPARK_KAFKA,
    }


class PysparkJob(Contender):
    """`bench/jobs/pyspark_kafka_append.py`."""

    name = "pyspark"

    def versions(self) -> dict[str, str]:
        return pyspark_versions()

    def prepare(self, stream: Stream, folder: Path) -> Command:
        found = jars.resolve([jars.iceberg_runtime(), SQLITE])
        mine = self.lake(folder)
        mine.warehouse.mkdir(parents=True)
        settings = {
            "bootstrap": stream.bootstrap,
            "topic": stream.topic,
            "jars": [*map(str, found), *kafka_connector()],
            "database": str(mine.database),
            "warehouse": str(mine.warehouse),
            "catalog": lake.CATALOG,
            "table": f"{lake.CATALOG}.{lake.NAMESPACE}.{lake.TABLE}",
            "namespace": f"{lake.CATALOG}.{lake.NAMESPACE}",
            "schema": lake.SCHEMA,
            "codec": lake.CODEC,
            "checkpoint": str(folder / "checkpoint"),
            "times": str(folder / "times.json"),
        }
        (folder / "job.json").write_text(json.dumps(settings, indent=2))
        script = str(Path(pyspark_kafka_append.__file__))
        return Command([sys.executable, script, str(folder / "job.json")])

    def started_at(self, folder: Path) -> float:
        return float(json.loads((folder / "times.json").read_text())["started"])
