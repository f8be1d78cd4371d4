"""`icestream init kafka://...`, with a broker that answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from icestream.config import load

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream
    from tests.fixtures.kafka import KafkaBroker


def url(broker: KafkaBroker, *topics: str) -> str:
    return f"kafka://{broker.bootstrap}/{','.join(topics)}"


def test_topic_is_sampled_and_its_columns_are_listed(
    icestream: Icestream, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic("Shop.orders", partitions=2)
    rows = [{"id": n, "price": 1.5, "at": "2026-01-01T00:00:00Z", "tags": ["a"]} for n in range(9)]
    kafka_broker.produce(topic, [json.dumps(row) for row in rows])

    ended = icestream("init", url(kafka_broker, topic), "--output", "json")

    assert ended.code == 0, ended.err
    assert ended.document["topics"] == [
        {
            "topic": topic,
            "format": "json",
            "records": 9,
            "columns": ["id", "price", "at", "tags"],
        }
    ]
    name = topic.lower().replace(".", "_").replace("-", "_")
    text = (tmp_path / "icestream.yaml").read_text(encoding="utf-8")
    assert (
        f'      brokers: ["{kafka_broker.bootstrap}"]\n'
        f"      topics: [{topic}]\n"
        "      format: json\n"
        "      # Columns of the first 9 records; a new field becomes a column:\n"
        "      #   id     bigint\n"
        "      #   price  double\n"
        "      #   at     timestamp\n"
        "      #   tags   array<string>\n"
    ) in text
    assert f"    config: {{namespace: kafka, table: {name}}}\n" in text
    checked = icestream("check")
    assert checked.code == 0, checked.out


def test_topics_get_a_source_and_a_table_each(
    icestream: Icestream, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    rows, text, empty = (kafka_broker.new_topic(name) for name in ("rows", "text", "empty"))
    kafka_broker.produce(rows, ['{"id": 1}'])
    kafka_broker.produce(text, ["hello"])

    ended = icestream("init", url(kafka_broker, rows, text, empty))

    assert (ended.code, ended.err) == (
        0,
        f"note: topic {text!r} has no JSON objects, so its records are kept as text\n"
        f"note: topic {empty!r} has no records yet, so its format is a guess\n",
    )
    config = load(tmp_path / "icestream.yaml")
    formats = [getattr(source.options, "format") for source in config.sources.values()]  # noqa: B009
    assert formats == ["json", "string", "json"]
    assert icestream("check").code == 0


def test_unknown_topic_is_answered_with_those_that_there_are(
    icestream: Icestream, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic("known")
    ended = icestream("init", url(kafka_broker, f"{topic}x"))
    assert ended.code == 2
    first, second = ended.err.splitlines()
    assert first == f"error: init: no topic is called '{topic}x'"
    assert second.startswith(f"  Did you mean {topic!r}? Topics of {kafka_broker.bootstrap}: ")
    assert topic in second.partition("Topics of")[2]
    assert not (tmp_path / "icestream.yaml").exists()


def test_url_without_a_topic_lists_the_topics(
    icestream: Icestream, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic("listed")
    ended = icestream("init", f"kafka://{kafka_broker.bootstrap}")
    assert ended.code == 2
    first, second = ended.err.splitlines()
    assert first == "error: init: the URL names no topic"
    assert second.startswith(f"  Write `kafka://{kafka_broker.bootstrap}/TOPIC`. Topics of ")
    assert topic in second


def test_broker_that_does_not_answer_is_reported(icestream: Icestream, tmp_path: Path) -> None:
    ended = icestream("init", "kafka://127.0.0.1:1/orders")
    assert (ended.code, ended.err) == (
        3,
        "error: init: no answer from 127.0.0.1:1\n"
        "  Check that a broker listens there, and that no firewall is in between. Brokers that "
        "need TLS or a password\n"
        "  are not sampled: write the file with `icestream init`, and set `options` of the "
        "source.\n",
    )
    assert not (tmp_path / "icestream.yaml").exists()
