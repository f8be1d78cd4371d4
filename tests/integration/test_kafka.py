from __future__ import annotations

import io
import json
import random
import struct
import time
import uuid
from datetime import datetime, timezone
from threading import Timer
from typing import TYPE_CHECKING, Any, ClassVar

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.fixtures.waiting import wait_until

from icestream.errors import BadRecordError, ConnectorError, RefusedError, SourceChangedError
from icestream.plan.plan import Batching
from icestream.sources.kafka import KafkaOptions, KafkaSource
from icestream.sources.kafka import source as kafka_source
from icestream.testing.source_suite import SourceSuite, System

if TYPE_CHECKING:
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.schema_registry import SchemaRegistry
    from tests.fixtures.spark import Lake

    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Split


def source_of(broker: KafkaBroker, *topics: str, **changes: Any) -> KafkaSource:
    settings = {"brokers": broker.bootstrap, "topics": topics, "format": "string", **changes}
    return KafkaSource(KafkaOptions.model_validate(settings))


def values(source: KafkaSource, start: Offset, end: Offset, slots: int = 2) -> list[Any]:
    return [
        value
        for split in source.splits(start, end, slots)
        for records in source.read(split)
        for value in records.values.to_pylist()
    ]


class KafkaTopic:
    """A topic of three partitions, as the suite wants it."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.topic = broker.new_topic("suite", partitions=3)
        self.written = 0

    def source(self) -> KafkaSource:
        return source_of(self.broker, self.topic, include=["key", "topic", "partition", "offset"])

    def add(self, rows: int) -> None:
        # Spread evenly, so that the share of each partition is known.
        for partition in range(3):
            mine = [str(self.written + i) for i in range(rows) if i % 3 == partition]
            self.broker.produce(self.topic, mine, partition=partition)
        self.written += rows


class TestKafka(SourceSuite):
    not_held = {"ordered": "order holds within a partition; partitions are read side by side"}

    @pytest.fixture
    def system(self, kafka_broker: KafkaBroker) -> System:
        return KafkaTopic(kafka_broker)


def test_missing_topic_is_reported_with_similar_names(kafka_broker: KafkaBroker) -> None:
    name = f"orders{uuid.uuid4().hex}"
    kafka_broker.create_topic(name)
    wrong = name.replace("orders", "ordres")

    with pytest.raises(ConnectorError) as caught:
        source_of(kafka_broker, wrong).initial()

    assert str(caught.value) == (
        f"source kafka {kafka_broker.bootstrap}: topic {wrong!r} does not exist\n"
        f"  Did you mean {name!r}? Create the topic, or correct `topics`."
    )


def test_check_counts_topics_and_partitions(kafka_broker: KafkaBroker) -> None:
    one, other = kafka_broker.new_topic(partitions=3), kafka_broker.new_topic(partitions=5)

    steps = {step.name: step.run() for step in source_of(kafka_broker, one, other).check()}

    assert list(steps) == ["reach brokers", "find topics"]
    assert steps["find topics"] == "2 topics, 8 partitions"


def test_refused_credentials_are_distinguished_from_a_timeout(kafka_broker: KafkaBroker) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hunter2",
    }

    with pytest.raises(RefusedError) as caught:
        source_of(kafka_broker, "orders", options=settings).initial()

    assert str(caught.value) == (
        f"source kafka {kafka_broker.bootstrap}: access denied (_AUTHENTICATION)\n"
        "  Check `security.protocol`, the `sasl.` and the `ssl.` settings in `options`, and the "
        "user's permissions."
    )


def test_starting_offsets_are_used(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ["a", "b", "c"], timestamps=[1000, 2000, 3000])

    def read_from(starting: Any) -> list[Any]:
        source = source_of(kafka_broker, topic, starting=starting)
        start = source.initial()
        return values(source, start, source.latest(start))

    assert read_from("earliest") == [b"a", b"b", b"c"]
    assert read_from("latest") == []
    assert read_from({"timestamp": 1500}) == [b"b", b"c"]
    assert read_from({"timestamp": "1970-01-01T00:00:03Z"}) == [b"c"]
    assert read_from({"timestamp": 9000}) == []
    assert read_from({"offsets": {topic: {0: 2}}}) == [b"c"]


def test_record_metadata_becomes_columns(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(
        topic,
        ["a", None],
        keys=[b"k", None],
        headers=[[("h", b"1"), ("h", b"2")], None],
        timestamps=[1000, 2500],
    )
    every = ["key", "headers", "timestamp", "topic", "partition", "offset"]
    source = source_of(kafka_broker, topic, include=every)
    start = source.initial()

    (split,) = source.splits(start, source.latest(start), 1)
    (records,) = source.read(split)

    assert records.values.to_pylist() == [b"a", None]
    assert source.extra_columns() == pa.schema([(n, a.type) for n, a in records.extra.items()])
    assert pa.table(dict(records.extra)).to_pylist() == [
        {
            "kafka_key": b"k",
            "kafka_headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}],
            "kafka_timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
            "kafka_topic": topic,
            "kafka_partition": 0,
            "kafka_offset": 0,
        },
        {
            "kafka_key": None,
            "kafka_headers": None,
            "kafka_timestamp": datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=timezone.utc),
            "kafka_topic": topic,
            "kafka_partition": 0,
            "kafka_offset": 1,
        },
    ]
    assert records.position(1) == f"{topic}[0]@1"


def test_pattern_picks_up_topics_and_partitions_created_later(kafka_broker: KafkaBroker) -> None:
    prefix = uuid.uuid4().hex
    kafka_broker.create_topic(f"{prefix}-a")
    kafka_broker.produce(f"{prefix}-a", ["1"])
    settings = {"topics": (), "topic_pattern": f"{prefix}-.*"}
    first = source_of(kafka_broker, **settings)
    end = first.latest(first.initial())

    kafka_broker.create_topic(f"{prefix}-b", partitions=2)
    later = source_of(kafka_broker, **settings)
    assert later.latest(end) == end, "a topic without records is no progress"
    kafka_broker.produce(f"{prefix}-b", ["2", "3"], partition=1)
    newest = source_of(kafka_broker, **settings).latest(end)

    assert values(later, end, newest) == [b"2", b"3"]
    assert newest["topics"][f"{prefix}-b"]["begins"] == {"1": 0}
    assert later.latest(newest) == newest


def test_recreated_topic_is_refused(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ["a"])
    source = source_of(kafka_broker, topic)
    end = source.latest(source.initial())
    old = end["topics"][topic]["id"]
    kafka_broker.delete_topic(topic)
    wait_until(lambda: topic not in kafka_broker.topics(), "the topic to go")
    kafka_broker.create_topic(topic)
    kafka_broker.produce(topic, ["x", "y"])
    anew = source_of(kafka_broker, topic)

    with pytest.raises(SourceChangedError) as caught:
        anew.latest(end)

    new = anew.initial()["topics"][topic]["id"]
    assert new != old
    assert str(caught.value) == (
        f"source kafka {kafka_broker.bootstrap}: topic {topic!r} was deleted and created again "
        f"since the checkpoint (id {old!r}, now {new!r})\n"
        "  Its offsets refer to different records now. Restore the old topic, or read the new one "
        "from the start with `icestream run --start-over`."
    )


class RecreatedTopic(KafkaSource):
    """A source whose topic is recreated at one point of the second batch."""

    moment = ""
    broker: ClassVar[KafkaBroker]

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaSource, (self.options,)  # tasks know nothing of this module

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        if self.moment == "admission" and offset_of(start):
            self._recreate()
        return super().limit(start, end, max_rows)

    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        if self.moment == "read" and offset_of(start):
            self._recreate()
        return super().splits(start, end, slots)

    def verify_offsets(self, start: Offset, end: Offset) -> None:
        super().verify_offsets(start, end)
        if self.moment == "after the first check" and offset_of(start):
            self._recreate()

    def _recreate(self) -> None:
        RecreatedTopic.moment = ""
        recreate(self.broker, self.options.topics[0])


def offset_of(position: Offset) -> int:
    return sum(kafka_source.partition_offsets(position).values())


@pytest.mark.parametrize("moment", ["admission", "read", "after the first check"])
def test_topic_recreated_while_the_pipeline_runs_is_refused(
    kafka_broker: KafkaBroker, lake: Lake, moment: str
) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, [f"old-{n}" for n in range(20)])
    RecreatedTopic.moment, RecreatedTopic.broker = moment, kafka_broker
    source = RecreatedTopic(source_of(kafka_broker, topic).options)
    plan = lake.plan(source, batching=Batching(1, 0.1, 10))
    with pytest.raises(SourceChangedError, match="was deleted and created again"):
        lake.run(plan)
    with pytest.raises(SourceChangedError, match="was deleted and created again"):
        lake.run(plan)

    assert [row["value"] for row in lake.rows()] == [f"old-{n}" for n in range(10)]
    lake.run(plan, recovery="start-over")
    new = [row["value"] for row in lake.rows() if row["value"].startswith("new")]
    assert sorted(new) == sorted(f"new-{n}" for n in range(100))


def test_topic_recreated_at_any_time_is_read_completely_or_refused(
    kafka_broker: KafkaBroker,
) -> None:
    topic, delay = kafka_broker.new_topic(), random.uniform(0, 0.5)  # noqa: S311
    kafka_broker.produce(topic, [f"old-{n}" for n in range(50)])
    source, seen = source_of(kafka_broker, topic), []
    current = source.initial()
    recreated = Timer(delay, recreate, (kafka_broker, topic))
    recreated.start()
    deadline, refusal = time.monotonic() + 60, None
    while refusal is None and time.monotonic() < deadline:
        try:
            end = source.limit(current, source.latest(current), 7)
            source.verify_offsets(current, end)
            read = values(source, current, end)
            source.verify_offsets(current, end)
        except (SourceChangedError, ConnectorError) as exc:  # noqa: PERF203
            # While the topic is gone, that is what is said.
            refusal = exc if "created again" in str(exc) else None
        else:
            seen += read
            current = end
    recreated.join()

    assert refusal is not None
    # Nothing of the new topic was taken for what follows in the old one.
    assert [value.decode() for value in seen] == [f"old-{n}" for n in range(len(seen))], delay


def recreate(broker: KafkaBroker, topic: str) -> None:
    broker.delete_topic(topic)
    wait_until(lambda: topic not in broker.topics(), "the topic to go")
    broker.create_topic(topic)
    broker.produce(topic, [f"new-{n}" for n in range(100)])


def test_records_deleted_by_retention_are_detected(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ["a", "b", "c", "d"])
    source = source_of(kafka_broker, topic)
    start = source.initial()
    end = source.latest(start)
    _delete_records(kafka_broker, topic, before=3)
    message = (
        f"source kafka {kafka_broker.bootstrap}: topic {topic!r}, partition 0: offset 0 is gone, "
        "the lowest one left is 3\n  The topic's retention removed records before they were read. "
        "Restore them, or start over with `icestream run --start-over`: that reads all remaining "
        "records again, in addition to what the table holds. Longer retention avoids this."
    )

    with pytest.raises(SourceChangedError) as caught:
        source_of(kafka_broker, topic).latest(start)
    assert str(caught.value) == message
    with pytest.raises(SourceChangedError) as caught:
        values(source, start, end)
    assert str(caught.value) == message


def test_only_committed_records_are_read_and_none_twice(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions()
    source = source_of(kafka_broker, topic)
    start = source.initial()

    def write(*texts: str) -> None:
        producer.begin_transaction()
        for text in texts:
            producer.produce(topic, text)
        producer.flush()

    write("a", "b")
    producer.commit_transaction()
    write("lost")
    producer.abort_transaction()
    # Two records, a marker, a lost record and a marker; the markers come a moment later.
    committed = {"topics": {topic: {**start["topics"][topic], "partitions": {"0": 5}}}}
    wait_until(lambda: source.latest(start) == committed, "the markers to be seen")
    write("open")
    assert source.latest(committed) == committed, "an open transaction is not readable"
    assert values(source, start, committed) == [b"a", b"b"]
    producer.commit_transaction()
    wait_until(lambda: source.latest(committed) != committed, "the commit to be seen")
    end = source.latest(committed)

    assert values(source, committed, end) == [b"open"]
    assert values(source, start, end) == [b"a", b"b", b"open"]


def test_one_consumer_reads_ranges_exactly_in_any_order(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic(partitions=2)
    for partition in (0, 1):
        kafka_broker.produce(topic, [f"{partition}-{i}" for i in range(5000)], partition=partition)
    source = source_of(kafka_broker, topic)
    start = source.initial()

    def place(zero: int, one: int) -> Offset:
        entry = {**start["topics"][topic], "partitions": {"0": zero, "1": one}}
        return {"topics": {topic: entry}}

    for low, high in [(4000, 4999), (0, 10), (10, 4000), (5, 6), (4999, 5000), (0, 5000)]:
        read = values(source, place(low, low), place(high, high), slots=1)
        assert read == [f"{p}-{i}".encode() for p in (0, 1) for i in range(low, high)]


def test_json_is_decoded_into_columns(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, [json.dumps({"id": i, "name": f"n{i}"}) for i in range(10)])
    source = source_of(kafka_broker, topic, format="json", schema="id bigint, name string")
    start, decoder = source.initial(), source.decoder()
    columns = source.schema()
    assert columns is not None
    assert decoder is not None

    (split,) = source.splits(start, source.latest(start), 1)
    rows = [decoder.decode(records.values, columns).rows for records in source.read(split)]

    assert pa.Table.from_batches(rows).to_pydict() == {
        "id": list(range(10)),
        "name": [f"n{i}" for i in range(10)],
    }


def test_avro_is_decoded_by_the_registry(
    kafka_broker: KafkaBroker, schema_registry: SchemaRegistry
) -> None:
    topic = kafka_broker.new_topic()
    old = {"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}]}
    tag = {"name": "tag", "type": ["null", "string"], "default": None}
    new = {**old, "fields": [*old["fields"], tag]}
    ids = [schema_registry.register(f"{topic}-value", json.dumps(schema)) for schema in (old, new)]
    kafka_broker.produce(
        topic,
        [
            _encoded(ids[0], old, {"id": 1}),
            _encoded(ids[1], new, {"id": 2, "tag": "x"}),
            _encoded(987_654, old, {"id": 3}),
        ],
    )
    source = source_of(
        kafka_broker, topic, format="avro", schema_registry={"url": schema_registry.url}
    )
    start, decoder = source.initial(), source.decoder()
    assert decoder is not None

    columns = decoder.infer([])
    (split,) = source.splits(start, source.latest(start), 1)
    (records,) = source.read(split)
    decoded = decoder.decode(records.values, columns)

    assert columns == pa.schema([("id", pa.int64()), ("tag", pa.string())])
    assert decoded.rows.to_pylist() == [{"id": 1, "tag": None}, {"id": 2, "tag": "x"}]
    assert decoded.bad == ((2, "schema id 987654 is not in the registry"),)


def _encoded(schema_id: int, schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    stream = io.BytesIO(struct.pack(">bI", 0, schema_id))
    stream.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def _delete_records(broker: KafkaBroker, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(30)


def test_reused_consumer_reads_no_record_of_the_previous_range(
    kafka_broker: KafkaBroker,
) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, [str(number) for number in range(100)])
    source = source_of(kafka_broker, topic)
    first = source.initial()
    end = source.latest(first)
    twenty = source.limit(first, end, 20)
    sixty = source.limit(first, end, 60)

    assert values(source, first, end) == [b"%d" % number for number in range(100)]
    assert values(source, twenty, sixty) == [b"%d" % number for number in range(20, 60)]
    assert values(source, first, twenty) == [b"%d" % number for number in range(20)]


def test_batches_of_large_records_are_bounded_by_bytes(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic(partitions=2)
    small, large = [f"{n}" for n in range(3_000)], [f"{n}".zfill(20_000) for n in range(300)]
    for partition in range(2):
        kafka_broker.produce(topic, small, partition=partition)
        kafka_broker.produce(topic, large, partition=partition)
    source = source_of(kafka_broker, topic, max_batch_mb=1)
    here, newest, sizes, seen = source.initial(), source.latest(source.initial()), [], []
    while here != newest:
        end = source.limit(here, newest, 1_000_000)
        read = values(source, here, end)
        sizes.append(sum(map(len, read)))
        seen += read
        here = end
    source.close()

    assert sorted(seen) == sorted(each.encode() for each in 2 * (small + large))
    assert max(sizes) < 2 << 20, sizes
    assert len(sizes) < 60, "batches of small records stay large"


def test_large_records_of_a_topic_with_few_rows_bound_the_batch(kafka_broker: KafkaBroker) -> None:
    clicks, images = (
        kafka_broker.new_topic("clicks", partitions=2),
        kafka_broker.new_topic("images"),
    )
    for partition in range(2):
        kafka_broker.produce(clicks, ["click"] * 20_000, partition=partition)
    kafka_broker.produce(images, ["x" * 100_000] * 100)
    source = source_of(kafka_broker, clicks, images, max_batch_mb=1)
    start = source.initial()

    end = source.limit(start, source.latest(start), 1_000_000)

    assert sum(map(len, values(source, start, end))) < 2 << 20
    source.close()


def test_commit_marker_at_the_end_is_not_sampled_as_an_empty_record(
    kafka_broker: KafkaBroker,
) -> None:
    topic = kafka_broker.new_topic()
    settings = {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": uuid.uuid4().hex}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(99):
        producer.produce(topic, "x" * 50_000)
    producer.commit_transaction()
    source = source_of(kafka_broker, topic, max_batch_mb=4)
    start = source.initial()
    newest = source.latest(start)
    assert source.rows_between(start, newest) == 100, "the last offset is a marker"

    end = source.limit(start, newest, 1_000_000)

    assert 80 <= source.rows_between(start, end) <= 87
    source.close()


def test_record_that_is_not_json_is_named_when_columns_are_inferred(
    kafka_broker: KafkaBroker, lake: Lake
) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ['[{"id": 1}]'])
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(source_of(kafka_broker, topic, format="json")))

    assert caught.value.what == (
        f"cannot infer columns from record {topic}[0]@0: not a JSON object but an array; write one "
        """object per record, in files one per line (begins with '[{"id": 1}]')"""
    )


def test_record_that_is_not_json_is_named_when_it_is_decoded(
    kafka_broker: KafkaBroker, lake: Lake
) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ['{"id": 1}', b"\0\0\0\0\7ab"])
    with pytest.raises(BadRecordError) as caught:
        lake.run(lake.plan(source_of(kafka_broker, topic, format="json")))

    assert caught.value.what == (
        f"record {topic}[0]@1 can't be decoded: not JSON: expecting value at character 0; it "
        "starts like a record of a schema registry, which needs `format: avro` "
        r"(begins with '\x00\x00\x00\x00\x07ab')"
    )
