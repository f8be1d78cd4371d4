"""`icestream preview` reads Kafka and PostgreSQL, and leaves no trace in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.unit.formats.debezium_events import envelope

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.postgres import Postgres

KAFKA = """\
sources:
  orders:
    connector: kafka
    config: {{brokers: "{brokers}", topics: [{topic}], {more}}}
sinks:
  lake: {{connector: iceberg, config: {{namespace: sales{sink}}}}}
pipelines:
  orders: {{source: orders, sink: lake}}
"""


def write_kafka_file(
    folder: Path, broker: KafkaBroker, topic: str, more: str = "format: json", sink: str = ""
) -> None:
    text = KAFKA.format(brokers=broker.bootstrap, topic=topic, more=more, sink=sink)
    (folder / "icestream.yaml").write_text(text, encoding="utf-8")


def consumer_groups(broker: KafkaBroker) -> set[str]:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups(request_timeout=30).result()
    return {group.group_id for group in listed.valid}


def test_topic_is_previewed_without_a_consumer_group(
    icestream: Icestream, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic("orders", partitions=2)
    lines = [json.dumps({"id": number}) for number in range(1_000)]
    kafka_broker.produce(topic, ["{", *lines], partition=1)
    write_kafka_file(tmp_path, kafka_broker, topic, sink=", table: orders")
    groups = consumer_groups(kafka_broker)
    document = icestream("preview", "--output", "json").document
    assert document["records"] <= 102
    assert document["tables"][0]["columns"] == [{"name": "id", "type": "bigint"}]
    assert document["tables"][0]["rows"] == [{"id": number} for number in range(20)]
    assert [bad["position"] for bad in document["bad"]] == [f"{topic}[1]@0"]
    assert consumer_groups(kafka_broker) == groups
    assert [path.name for path in tmp_path.iterdir()] == ["icestream.yaml"]


def test_topic_read_from_its_end_has_no_rows_yet(
    icestream: Icestream, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic("orders")
    kafka_broker.produce(topic, ['{"id": 1}'])
    more = "format: json, starting: latest"
    write_kafka_file(tmp_path, kafka_broker, topic, more, sink=", table: orders")
    ended = icestream("preview")
    assert (ended.code, ended.out, ended.err) == (
        0,
        "",
        "No records: a new pipeline would wait here for the first one.\n",
    )


def test_debezium_events_are_shown_as_changes(
    icestream: Icestream, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic("shop")
    events = [
        envelope("c", after={"id": 1, "name": "ada"}),
        envelope("d", before={"id": 1, "name": "ada"}),
        envelope("c", after={"sku": "mug"}, table="products"),
    ]
    keys = ['{"id": 1}', '{"id": 1}', '{"sku": "mug"}']
    kafka_broker.produce(topic, [json.dumps(event) for event in events], keys=keys)
    write_kafka_file(tmp_path, kafka_broker, topic, "format: debezium-json")
    tables = icestream("preview", "--output", "json").document["tables"]
    found = {one["table"]: [row["_op"] for row in one["rows"]] for one in tables}
    assert found == {"lake.sales.orders": ["c", "d"], "lake.sales.products": ["c"]}


POSTGRES = """\
sources:
  shop:
    connector: postgres-cdc
    config:
      host: 127.0.0.1
      port: {port}
      database: {database}
      user: {user}
      password: {password}
      tables: ["public.*"]
      slot_name: {database}
sinks:
  lake: {{connector: iceberg}}
pipelines:
  shop: {{source: shop, sink: lake}}
"""


@pytest.fixture
def shop(tmp_path: Path, postgres: Postgres) -> str:
    """A database with two tables, and a file that mirrors it."""
    database = postgres.new_database()
    with psycopg.connect(postgres.dsn_of(database)) as connection:
        connection.execute(
            """
            CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10, 2), note text);
            INSERT INTO orders SELECT n, n, 'x' FROM generate_series(1000, 1, -1) AS n;
            CREATE TABLE log (what text);
            ALTER TABLE log REPLICA IDENTITY FULL;
            INSERT INTO log VALUES ('a'), ('a');
            """
        )
    text = POSTGRES.format(
        port=postgres.port, database=database, user=postgres.user, password=postgres.password
    )
    (tmp_path / "icestream.yaml").write_text(text, encoding="utf-8")
    return postgres.dsn_of(database)


def one(dsn: str, query: str) -> Any:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query).fetchone()
        return None if row is None else row[0]


def test_database_is_previewed_without_slot_and_publication(
    icestream: Icestream, tmp_path: Path, shop: str
) -> None:
    ended = icestream("preview", "--rows", "2", "--output", "json")
    assert ended.code == 0, ended.out
    document = ended.document
    orders, log = sorted(document["tables"], key=lambda table: str(table["table"]), reverse=True)
    assert orders["table"] == "lake.public.orders"
    assert orders["columns"] == [
        {"name": "id", "type": "int"},
        {"name": "amount", "type": "decimal(10,2)"},
        {"name": "note", "type": "string"},
    ]
    assert orders["rows"] == [
        {"id": 1, "amount": "1.00", "note": "x"},
        {"id": 2, "amount": "2.00", "note": "x"},
    ]
    assert orders["rows_read"] == 100
    assert [row["what"] for row in log["rows"]] == ["a", "a"]
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert one(shop, slots) == 0
    assert one(shop, "SELECT count(*) FROM pg_publication") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["icestream.yaml"]


def test_one_table_of_a_database_is_previewed(icestream: Icestream, shop: str) -> None:
    document = icestream("preview", "--table", "public.log", "--output", "json").document
    assert [table["table"] for table in document["tables"]] == ["lake.public.log"]
    assert document["records"] == 2
    source = icestream("preview", "--source", "shop", "--output", "json").document
    assert sorted(table["table"] for table in source["tables"]) == ["public.log", "public.orders"]
    assert one(shop, "SELECT count(*) FROM pg_publication") == 0


def test_columns_and_rows_of_an_existing_publication_apply(
    icestream: Icestream, tmp_path: Path, shop: str
) -> None:
    with psycopg.connect(shop) as connection:
        connection.execute("CREATE PUBLICATION theirs FOR TABLE orders (id, note) WHERE (id > 990)")
    path = tmp_path / "icestream.yaml"
    text = path.read_text(encoding="utf-8").replace(
        'tables: ["public.*"]', 'tables: ["public.orders"]\n      publication: theirs'
    )
    path.write_text(text, encoding="utf-8")
    document = icestream("preview", "--rows", "1", "--output", "json").document
    [orders] = document["tables"]
    assert (orders["rows"], orders["rows_read"]) == ([{"id": 991, "note": "x"}], 10)


def test_transforms_of_a_mirror_are_previewed(
    icestream: Icestream, tmp_path: Path, shop: str
) -> None:
    path = tmp_path / "icestream.yaml"
    text = path.read_text(encoding="utf-8").replace('["public.*"]', "[public.orders]")
    steps = "transforms: [{filter: 'id > 98'}, {drop: [note]}]"
    path.write_text(text.replace("sink: lake}", f"sink: lake, {steps}}}"), encoding="utf-8")
    ended = icestream("preview", "--rows", "2", "--output", "json")
    assert ended.code == 0, ended.out
    [orders] = ended.document["tables"]
    assert orders["rows"] == [{"id": 99, "amount": "99.00"}, {"id": 100, "amount": "100.00"}]
    assert ended.document["left_out"] == 98
    assert one(shop, "SELECT count(*) FROM pg_publication") == 0
