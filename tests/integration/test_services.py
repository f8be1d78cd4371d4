"""Each service of the tests, really used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.waiting import wait_until

if TYPE_CHECKING:
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.postgres import Postgres
    from tests.fixtures.schema_registry import SchemaRegistry
    from tests.fixtures.spark_cluster import SparkCluster


def _consume(bootstrap: str, topic: str, partition: int, count: int) -> list[Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "services"})
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        found: list[Any] = []

        def is_complete() -> bool:
            found.extend(consumer.consume(100, 1))
            return len(found) >= count

        wait_until(is_complete, f"{count} records of {topic}")
        return found
    finally:
        consumer.close()


def test_kafka_returns_what_was_produced(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic("services", partitions=2)
    kafka_broker.produce(
        topic, ["a", None], partition=1, keys=["k", "l"], headers=[None, [("h", b"1")]]
    )

    first, second = _consume(kafka_broker.bootstrap, topic, partition=1, count=2)

    assert (first.key(), first.value(), first.headers()) == (b"k", b"a", None)
    assert (second.key(), second.value(), second.headers()) == (b"l", None, [("h", b"1")])


def test_deleted_kafka_topic_is_not_listed(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic("services")
    kafka_broker.delete_topic(topic)

    wait_until(lambda: topic not in kafka_broker.topics(), f"{topic} to go")


def test_own_kafka_keeps_its_records_after_a_kill(kafka_broker_own: KafkaBroker) -> None:
    topic = kafka_broker_own.new_topic("services")
    kafka_broker_own.produce(topic, ["before"])
    kafka_broker_own.kill()
    kafka_broker_own.start()
    kafka_broker_own.produce(topic, ["after"])

    found = _consume(kafka_broker_own.bootstrap, topic, partition=0, count=2)

    assert [record.value() for record in found] == [b"before", b"after"]


def test_postgres_decodes_changes_of_a_new_database(postgres: Postgres) -> None:
    import psycopg

    database = postgres.new_database()
    with psycopg.connect(postgres.dsn_of(database), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        slot = f"s_{database}"
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
        connection.execute("INSERT INTO t VALUES (7)")
        changes = connection.execute(
            "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL)", [slot]
        ).fetchall()
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])

    assert ("table public.t: INSERT: id[integer]:7",) in changes


def test_postgres_refuses_a_wrong_password(postgres: Postgres) -> None:
    import psycopg

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn, password="wrong")  # noqa: S106


def test_schema_registry_returns_a_schema_to_the_confluent_client(
    schema_registry: SchemaRegistry,
) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    schema = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    number = schema_registry.register("services-value", schema)

    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        found = client.get_schema(number)

    assert found.schema_type == "AVRO"
    assert json.loads(found.schema_str) == json.loads(schema)


def test_spark_cluster_runs_python_on_both_workers(spark_cluster: SparkCluster) -> None:
    # A process of its own: this one may hold a local session already.
    script = f"""
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master({spark_cluster.master!r})
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1")
    .getOrCreate()
)
numbers = spark.sparkContext.parallelize(range(8), 8)
print("sum", numbers.map(lambda number: number + 1).sum())
print("executors", spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1)
spark.stop()
"""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )

    assert done.stdout.split() == ["sum", "36", "executors", "2"], done.stderr[-3000:]
