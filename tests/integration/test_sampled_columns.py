"""`check` infers the columns of a Kafka topic from its records, or from the schema registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from icestream.config import parse
from icestream.engine.column_check import column_steps
from icestream.errors import ConfigError
from icestream.plan import build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.schema_registry import SchemaRegistry

SINK = {
    "connector": "iceberg",
    "config": {
        "namespace": "sales",
        "table": "orders",
        "commit_mode": "upsert",
        "key_fields": ["order"],
    },
}


def checked(folder: Path, options: dict[str, Any]) -> list[str]:
    blocks = {
        "sources": {"orders": {"connector": "kafka", "config": options}},
        "sinks": {"lake": SINK},
        "pipelines": {"orders": {"source": "orders", "sink": "lake"}},
    }
    config = parse(json.dumps(blocks), folder / "a.yaml")
    plan = build(config)
    return [step.run() for step in column_steps(config, plan.pipelines[0], plan.state)]


def message(folder: Path, options: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(folder, options)
    return str(caught.value).partition("sinks.lake.config.")[2]


def test_columns_are_inferred_from_the_records_of_a_topic(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka_broker.new_topic(partitions=2)
    options = {"brokers": kafka_broker.bootstrap, "topics": [topic], "include": ["offset"]}
    assert checked(tmp_path, options) == ["only known during a run"]

    kafka_broker.produce(topic, ['{"order_id": 1}', '{"order_id": 2, "price": 1.5}', "broken"])

    assert message(tmp_path, options) == (
        "key_fields[0]: the rows have no column 'order'\n"
        "  Did you mean 'order_id'? They have: order_id, price, kafka_offset."
    )
    assert checked(tmp_path, {**options, "starting": "latest"}) == ["only known during a run"]

    kafka_broker.produce(topic, ['{"order_id": 1}'] * 10_000)
    assert checked(tmp_path, options) == ["3 columns, inferred from 10000 records"]


def test_columns_are_those_of_the_schema_registry(
    kafka_broker: KafkaBroker, schema_registry: SchemaRegistry, tmp_path: Path
) -> None:
    topic = kafka_broker.new_topic()
    field = {"name": "order_id", "type": "long"}
    schema = {"type": "record", "name": "order", "fields": [field]}
    schema_registry.register(f"{topic}-value", json.dumps(schema))
    registry = {"url": schema_registry.url}
    options = {"brokers": kafka_broker.bootstrap, "topics": [topic], "format": "avro"}

    assert message(tmp_path, {**options, "schema_registry": registry}) == (
        "key_fields[0]: the rows have no column 'order'\n"
        "  Did you mean 'order_id'? They have: order_id."
    )
