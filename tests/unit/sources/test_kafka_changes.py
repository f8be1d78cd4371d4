from __future__ import annotations

import pickle
from typing import Any

import pytest

from icestream.errors import ConfigError
from icestream.formats.debezium.avro import DebeziumAvroDecoder
from icestream.formats.debezium.json import DebeziumJsonDecoder
from icestream.formats.json import JsonDecoder
from icestream.sources.kafka import KafkaOptions, KafkaSource


def options(**given: Any) -> KafkaOptions:
    return KafkaOptions(brokers=("localhost:9092",), topic_pattern="shop[.].*", **given)


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        options(**given)
    return caught.value.problems[0].what


def test_debezium_gives_changes_and_other_formats_rows() -> None:
    source = pickle.loads(pickle.dumps(KafkaSource(options(format="debezium-json"))))  # noqa: S301
    assert source.traits.changes
    assert source.decoder() is None
    assert isinstance(source.change_decoder(), DebeziumJsonDecoder)
    rows = KafkaSource(options(format="json"))
    assert not rows.traits.changes
    assert isinstance(rows.decoder(), JsonDecoder)
    assert rows.change_decoder() is None


def test_decoder_knows_the_registry_and_the_placeholder() -> None:
    given = options(
        format="debezium-avro",
        schema_registry={"url": "http://127.0.0.1:1"},
        unavailable_value="(same)",
    )
    decoder = KafkaSource(given).change_decoder()
    assert isinstance(decoder, DebeziumAvroDecoder)
    assert decoder.placeholder == "(same)"
    assert decoder.registry.options == given.schema_registry


def test_options_incompatible_with_changes_are_refused() -> None:
    assert refusal(format="debezium-avro") == "format 'debezium-avro' needs `schema_registry`"
    assert refusal(format="debezium-json", schema="id bigint") == (
        "format 'debezium-json' has its own columns: remove `schema`"
    )
    assert refusal(format="debezium-json", include=("key",)) == (
        "format 'debezium-json' has its own columns: remove `include`"
    )
