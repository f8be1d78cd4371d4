"""`icestream verify` of tables that were filled from a real Kafka."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from tests.fixtures.command_line import Ended, run_icestream

from icestream.config import load
from icestream.plan.planner import build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.kafka import KafkaBroker

# Each run starts Spark, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(900)

FILE = """\
sources:
  orders:
    connector: kafka
    config:
      brokers: {brokers}
      topics: [{topic}]
      schema: id bigint, kind string
sinks:
  plain:
    connector: iceberg
    config:
      namespace: sales
      table: orders
      format_version: 2  # which PyIceberg can roll back
      on_error: dead_letter
      dead_letter: sales.bad
  routed: {{connector: iceberg, config: {{namespace: kinds, route_by: kind}}}}
pipelines:
  plain: {{source: orders, sink: plain, transforms: [{{filter: id <> 5}}]}}
  routed: {{source: orders, sink: routed}}
metrics: {{port: 0}}
"""


class Shop:
    """A topic with two partitions, and the folder of its tables."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.topic = broker.new_topic("orders", 2)
        text = FILE.format(brokers=broker.bootstrap, topic=self.topic)
        (folder / "icestream.yaml").write_text(text, encoding="utf-8")

    def produce(self, first: int, last: int) -> None:
        kinds = ("red", "blue")
        for partition in (0, 1):
            rows = [
                {"id": n, "kind": kinds[n % 2]} for n in range(first, last) if n % 2 == partition
            ]
            self.broker.produce(self.topic, [json.dumps(row) for row in rows], partition)

    def icestream(self, *arguments: str) -> Ended:
        return run_icestream(*arguments, folder=self.folder)

    def run(self, *arguments: str) -> None:
        ended = self.icestream("run", "--once", *arguments)
        assert ended.code == 0, ended.err

    def verify(self) -> tuple[int, dict[str, dict[str, Any]]]:
        ended = self.icestream("verify", "--output", "json")
        reports = {report["table"]: report for report in ended.document["offsets"]}
        assert ended.document["is_same"] == (ended.code == 0)
        return ended.code, reports

    def table(self) -> Any:
        plan = build(load(self.folder / "icestream.yaml"))
        return plan.catalogs["lake"].client().load_table(("sales", "orders"))


def test_tables_of_a_topic_are_verified(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(kafka_broker, tmp_path)
    shop.produce(0, 100)
    kafka_broker.produce(shop.topic, ['{"id": "no number", "kind": "red"}'], 0)
    with_transactions = {"transactional.id": uuid.uuid4().hex}
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, **with_transactions})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(shop.topic, '{"id": 100, "kind": "red"}', partition=0)
    producer.commit_transaction()
    shop.run("--pipeline", "plain")
    first = shop.table().current_snapshot().snapshot_id
    shop.produce(101, 151)
    shop.run("--pipeline", "plain")

    code, found = shop.verify()
    assert code == 4
    assert found["lake.kinds.*"]["status"] == "not compared"
    orders = found["lake.sales.orders"]
    assert (orders["status"], orders["problems"], orders["batches"]) == ("same", [], 2)
    assert (orders["records"], orders["rows"], orders["bad"]) == (152, 150, 1)
    assert (orders["empty_offsets"], orders["total"]) == (1, 150)

    ended = shop.icestream("verify", "--pipeline", "plain", "--color", "never")
    assert (ended.code, ended.out) == (
        0,
        f"✓ kafka {shop.topic} -> lake.sales.orders: no gap, no overlap, 2 batches, 150 rows\n"
        "    1 record bad, dropped or dead letters\n"
        "    1 record left out by transforms\n"
        "    1 offset without a record: compacted, or markers of transactions\n",
    )

    # A rollback, after which the pipeline goes on.
    shop.table().manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    ended = shop.icestream("verify", "--table", "orders", "--color", "never")
    assert (ended.code, ended.out.splitlines()[1]) == (
        4,
        f"    the mark is of batch 1, and the table holds this pipeline's rows up to batch 0 "
        f"(snapshot {first}): it was rolled back or replaced, or its mark was changed",
    )
    shop.produce(151, 161)
    shop.run("--pipeline", "plain", "--resume")
    code, found = shop.verify()
    (gap,) = found["lake.sales.orders"]["problems"]
    assert (code, gap["kind"]) == (4, "gap")
    assert gap["partitions"] == {f"{shop.topic}[0]": [53, 78], f"{shop.topic}[1]": [50, 75]}

    # Reading the topic again writes its rows twice.
    shop.run("--pipeline", "plain", "--start-over")
    code, found = shop.verify()
    kinds = [problem["kind"] for problem in found["lake.sales.orders"]["problems"]]
    assert (code, kinds) == (4, ["gap", "overlap"])


def test_tables_of_a_fan_out_are_verified(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(kafka_broker, tmp_path)
    shop.produce(0, 20)
    shop.run("--pipeline", "routed")
    # Only one of the tables gets rows of the second batch.
    kafka_broker.produce(shop.topic, ['{"id": 20, "kind": "red"}'], 0)
    shop.run("--pipeline", "routed")
    shop.produce(21, 23)
    shop.run("--pipeline", "routed")
    ended = shop.icestream("verify", "--pipeline", "routed", "--color", "never")
    assert (ended.code, ended.out) == (
        0,
        f"✓ kafka {shop.topic} -> lake.kinds.blue: no gap, no overlap, 2 batches, 11 rows\n"
        f"✓ kafka {shop.topic} -> lake.kinds.red: no gap, no overlap, 3 batches, 12 rows\n",
    )
