"""Records, partitions and topics that are lost on the broker after they were read."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.waiting import wait_until
from tests.integration.test_kafka import source_of, values

from icestream.errors import AttentionError, SourceChangedError, TransientError
from icestream.sources.kafka import cluster, reader
from icestream.sources.kafka import source as source_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.kafka import KafkaBroker

    from icestream.contracts.offset import Offset
    from icestream.sources.kafka import KafkaSource


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(SourceChangedError) as caught:
        action()
    assert isinstance(caught.value, AttentionError)
    assert caught.value.exit_code == 5
    return str(caught.value)


def wait_for_more(source: KafkaSource, position: Offset, rows: int) -> Offset:
    """Wait for that many new rows: a broker that has just started takes a moment to list them."""

    def has_them() -> bool:
        return source.rows_between(position, source.latest(position)) >= rows

    wait_until(has_them, f"{rows} rows behind the position")
    return source.latest(position)


def test_deleted_topic_is_reported(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ["a", "b"])
    source = source_of(kafka_broker, topic)
    start = source.initial()
    end = source.latest(start)
    kafka_broker.delete_topic(topic)
    wait_until(lambda: topic not in kafka_broker.topics(), "the topic to go")
    monkeypatch.setattr(cluster, "_REQUEST_SECS", 2.0)
    place = f"source kafka {kafka_broker.bootstrap}: topic {topic!r} "
    final = (
        f"{place}was deleted since the checkpoint\n"
        "  Restore the topic with its records. If they are no longer needed, remove it from "
        "`topics`; if a new topic replaces it, create it and run `icestream run --start-over`."
    )

    assert refusal(lambda: source_of(kafka_broker, topic).latest(end)) == final
    # A process that saw the topic does not take a failover for a deletion.
    monkeypatch.setattr(source_module, "_DESCRIBE_SECS", 0.0)
    with pytest.raises(TransientError) as caught:
        source.latest(end)
    assert str(caught.value) == f"{place}existed before, and no broker knows it now"
    monkeypatch.setattr(source_module, "_MISSING_TOPIC_SECS", 0.0)
    assert refusal(lambda: source.latest(end)) == final
    # A task that was about to read it gives up, and the restart reports the same.
    monkeypatch.setattr(reader, "_TIMEOUT_SECS", 1.0)
    with pytest.raises(TransientError):
        values(source, start, end)


def test_log_truncated_below_the_last_read_offset_is_refused(
    kafka_broker_own: KafkaBroker,
) -> None:
    broker = kafka_broker_own
    topic = broker.new_topic(partitions=3)
    log, copy = broker.folder / "data" / f"{topic}-2", broker.folder / "copy"

    def write(prefix: str, count: int) -> None:
        for partition in range(3):
            values = [f"{prefix}-{number}" for number in range(count)]
            broker.produce(topic, values, partition=partition)

    write("kept", 10)
    source = source_of(broker, topic)
    before = source.latest(source.initial())
    broker.stop()
    shutil.copytree(log, copy)
    broker.start()
    write("lost", 10)
    after = wait_for_more(source, before, 30)
    assert len(values(source, before, after, 1)) == 30, "another leader epoch alone is no fault"
    source.close()
    # What an unclean leader election leaves: a log that ends earlier, and another epoch.
    broker.stop()
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    broker.start()
    place = f"source kafka {broker.bootstrap}: topic {topic!r}, partition 2: "

    source = source_of(broker, topic)
    assert refusal(lambda: wait_for_more(source, after, 1)) == (
        f"{place}read up to offset 20, and now it ends at 10\n"
        "  The partition lost records that were read. Check the cluster, then start over with "
        "`icestream run --start-over`: that reads every record again, in addition to what the "
        "table holds."
    )

    write("new", 20)
    newest = wait_for_more(source_of(broker, topic), after, 50)
    # Nothing that was read before the truncation is affected by it.
    read = values(source_of(broker, topic), before, newest, 1)
    assert len(read) == 30 + 30 + 20
    assert read.count(b"lost-0") == 2

    # First the consumer that has just read, with current metadata; then a new one.
    for _ in range(2):
        assert refusal(lambda: values(source_of(broker, topic), after, newest, 1)) == (
            f"{place}records before offset 20 were lost after they were read, and others have "
            "taken their place\n"
            "  The partition's log was truncated, as by an unclean leader election. Check the "
            "cluster, then start over with `icestream run --start-over`: that reads every record "
            "again, in addition to what the table holds."
        )


def test_unknown_leader_epoch_is_not_mistaken_for_a_truncation(
    kafka_broker: KafkaBroker,
) -> None:
    topic = kafka_broker.new_topic()
    kafka_broker.produce(topic, ["a", "b"])
    source = source_of(kafka_broker, topic)
    start = source.latest(source.initial())
    kafka_broker.produce(topic, ["c"])
    end = wait_for_more(source, start, 1)
    # The answer to it is also that of a log without epochs: end offset -1, epoch -1.
    start["topics"][topic]["epochs"]["0"] = 1_000

    assert values(source, start, end) == [b"c"]
