"""A Kafka Connect worker with the Iceberg sink connector of the Iceberg project."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import TYPE_CHECKING

from tests.fixtures.installing import copy_from_maven, installed
from tests.fixtures.missing import require
from tests.fixtures.ports import free_port

from bench import lake
from bench.contenders.contender import Command, Contender

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.fixtures.kafka import KafkaBroker

    from bench.stream import Stream

KAFKA = "3.9.1"
ICEBERG = "1.11.0"
HADOOP = "3.4.1"
TASKS = 2
COMMIT_INTERVAL_MS = 5_000
FLUSH_INTERVAL_MS = 500
STARTED = re.compile(r"^(\S+ \S+) .*Creating connector \S+ of type", re.MULTILINE)
LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSSZ",
    "-Dorg.slf4j.simpleLogger.log.org.reflections=error",
)


def _install(folder: Path) -> None:
    copy_from_maven(
        folder,
        [
            f"org.apache.kafka:connect-runtime:{KAFKA}",
            f"org.apache.kafka:connect-json:{KAFKA}",
            f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG}",
            f"org.apache.iceberg:iceberg-kafka-connect-events:{ICEBERG}",
            # It does not start without ORC, whatever the format of its files.
            *(
                f"org.apache.iceberg:iceberg-{part}:{ICEBERG}"
                for part in ("core", "data", "parquet", "orc")
            ),
            f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
            f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
            "org.xerial:sqlite-jdbc:3.53.4.0",
            "org.slf4j:slf4j-simple:1.7.36",
        ],
    )


class KafkaConnect(Contender):
    """One standalone worker, two tasks, a commit every five seconds.

    It goes on for ever, so the harness ends it once the table has every row.
    """

    name = "kafka_connect"
    ends_itself = False

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker

    def versions(self) -> dict[str, str]:
        return {"kafka-connect": KAFKA, "iceberg-kafka-connect": ICEBERG}

    def prepare(self, stream: Stream, folder: Path) -> Command:
        libs = installed("kafka-connect-iceberg", f"{KAFKA}-{ICEBERG}", _install)
        self.lake(folder).create_table()
        write_properties(folder / "worker.properties", self._worker(stream, folder))
        write_properties(folder / "connector.properties", self._connector(stream, folder))
        java = require("java", "apt-get install openjdk-17-jre-headless")
        return Command(
            [
                *(java, "-Xms256m", "-Xmx2g", "-cp", f"{libs}/*"),
                *LOGGING,
                "org.apache.kafka.connect.cli.ConnectStandalone",
                *(str(folder / "worker.properties"), str(folder / "connector.properties")),
            ]
        )

    def started_at(self, folder: Path) -> float:
        found = STARTED.search((folder / "log").read_text(errors="replace"))
        if found is None:
            raise RuntimeError("the worker's log does not tell when the connector was made")
        return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f%z").timestamp()

    def _worker(self, stream: Stream, folder: Path) -> dict[str, object]:
        return {
            "bootstrap.servers": stream.bootstrap,
            "listeners": f"http://127.0.0.1:{free_port()}",
            "offset.storage.file.filename": folder / "offsets",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            # A task without records looks at the control topic only this often; with the default
            # of a minute, the last commit comes up to a minute after the last record.
            "offset.flush.interval.ms": FLUSH_INTERVAL_MS,
        }

    def _connector(self, stream: Stream, folder: Path) -> dict[str, object]:
        mine = self.lake(folder)
        return {
            # A name, and with it a group, of its own: a group remembers how far it read.
            "name": f"events-{uuid.uuid4().hex[:12]}",
            "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
            "tasks.max": TASKS,
            "topics": stream.topic,
            "iceberg.tables": f"{lake.NAMESPACE}.{lake.TABLE}",
            "iceberg.control.topic": self._broker.new_topic("control"),
            "iceberg.control.commit.interval-ms": COMMIT_INTERVAL_MS,
            "iceberg.catalog": lake.CATALOG,
            "iceberg.catalog.type": "jdbc",
            "iceberg.catalog.uri": f"jdbc:sqlite:{mine.database}",
            "iceberg.catalog.jdbc.schema-version": "V1",
            "iceberg.catalog.warehouse": f"file://{mine.warehouse}",
            "consumer.override.auto.offset.reset": "earliest",
            "consumer.override.max.poll.records": 20_000,
        }


def write_properties(path: Path, settings: Mapping[str, object]) -> None:
    """Write settings in the form that Java reads."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
