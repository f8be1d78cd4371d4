"""Kafka with TLS and a password: the settings of `options` reach the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.kafka import KafkaBroker, secure_listener
from tests.fixtures.missing import MissingError, unavailable
from tests.fixtures.ports import free_port

from icestream.errors import RefusedError
from icestream.sources.kafka import KafkaOptions, KafkaSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.service_run import ServiceRun


@pytest.fixture(scope="module")
def broker(service_run: ServiceRun) -> Iterator[tuple[KafkaBroker, int]]:
    port = free_port()
    try:
        made = KafkaBroker.create(service_run, "kafka-secure", secure_port=port)
    except MissingError as exc:
        unavailable(f"kafka: {exc}")
    yield made, port
    made.kill()


def source(broker: tuple[KafkaBroker, int], topic: str, **changes: str) -> KafkaSource:
    made, port = broker
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": "open sesame",
        "ssl.ca.location": str(made.folder / "ca.pem"),
        **changes,
    }
    settings: dict[str, Any] = {
        "brokers": f"127.0.0.1:{port}",
        "topics": [topic],
        "format": "string",
    }
    return KafkaSource(KafkaOptions.model_validate({**settings, "options": options}))


def test_records_are_read_over_tls_with_a_password(broker: tuple[KafkaBroker, int]) -> None:
    topic = broker[0].new_topic("secure", partitions=2)
    broker[0].produce(topic, ["a", "b", "c"])
    reader = source(broker, topic)
    start = reader.initial()
    end = reader.latest(start)
    found = [
        value.decode()
        for split in reader.splits(start, end, 2)
        for records in reader.read(split)
        for value in records.values.to_pylist()
    ]
    assert sorted(found) == ["a", "b", "c"]


def test_wrong_password_is_refused_without_showing_it(broker: tuple[KafkaBroker, int]) -> None:
    topic = broker[0].new_topic("secure")
    with pytest.raises(RefusedError) as caught:
        source(broker, topic, **{"sasl.password": "hunter2"}).initial()
    assert "hunter2" not in str(caught.value)
    assert "Check `security.protocol`, the `sasl.` and the `ssl.` settings" in str(caught.value)


def test_untrusted_certificate_is_refused(broker: tuple[KafkaBroker, int], tmp_path: Path) -> None:
    secure_listener(tmp_path, free_port())
    topic = broker[0].new_topic("secure")
    with pytest.raises(RefusedError):
        source(broker, topic, **{"ssl.ca.location": str(tmp_path / "ca.pem")}).initial()
