"""A Kafka topic of numbered rows, and a pipeline from it into the embedded lake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fixtures.short_lived import SHORT_LIVED

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import RunProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.kafka import KafkaBroker

# The start of a log line about a commit.
BATCH = "orders: batch "
FILE = (
    """
sources:
  orders:
    connector: kafka
    config:
      brokers: [{brokers}]
      topics: [{topic}]
      format: json
      schema: "id bigint, name string, amount double"
sinks:
  lake:
    connector: iceberg
    config:
      namespace: shop
      table: orders
      batch_size: 500
      flush_interval_secs: 0.3
      max_batch_rows: {max_batch_rows}
      {more}
pipelines:
  orders: {{source: orders, sink: lake}}
"""
    + SHORT_LIVED
)


class KafkaPipeline:
    """Rows 0, 1, 2, ... in a topic of three partitions, each with its number as `id`."""

    def __init__(
        self, folder: Path, broker: KafkaBroker, *, max_batch_rows: int = 2_000, more: str = ""
    ) -> None:
        self.folder = folder
        self.broker = broker
        self.topic = broker.new_topic("orders", partitions=3)
        self.produced = 0
        self.file = folder / "icestream.yaml"
        self.file.write_text(
            FILE.format(
                brokers=broker.bootstrap,
                topic=self.topic,
                max_batch_rows=max_batch_rows,
                more=more,
            )
        )

    def produce(self, rows: int) -> None:
        """Add rows to the topic."""
        numbers = range(self.produced, self.produced + rows)
        self.broker.produce(
            self.topic,
            [json.dumps({"id": n, "name": f"order {n}", "amount": n / 4}) for n in numbers],
        )
        self.produced += rows

    def finish(self) -> None:
        """Run up to the topic's end."""
        with RunProcess(self.folder, "--once") as run:
            assert run.wait() == 0, run.output

    def ids(self) -> list[int]:
        """Return the ids in the table, read by PyIceberg."""
        table: Any = embedded(self.folder / "lake").client().load_table(("shop", "orders"))
        found: list[int] = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        return sorted(found)

    def assert_each_row_once(self) -> None:
        assert self.ids() == list(range(self.produced))
