"""`icestream init kafka://...`: the URL, the guess of the format, the file; other URLs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from icestream.cli.init_kafka import TopicsAddress, guess_format, parse_address, topics_config
from icestream.config import parse
from icestream.errors import PlanError
from icestream.plan.planner import build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

ADDRESS = TopicsAddress(("b1:9092", "b2:9093"), ("orders",))
CHANGE = {"op": "c", "before": None, "after": {"id": 1}, "source": {"table": "t"}}
HINT = "\n  Use e.g. `kafka://host:9092/topic`, with commas between several."


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("kafka://b1:9092/orders", (("b1:9092",), ("orders",))),
        ("kafka://b1,b2:9093/a.b,c_d-e/", (("b1:9092", "b2:9093"), ("a.b", "c_d-e"))),
        ("kafka://[::1]:9094/a,a", (("[::1]:9094",), ("a",))),
        ("kafka://[::1]/a", (("[::1]:9092",), ("a",))),
        ("kafka://b1", (("b1:9092",), ())),
    ],
)
def test_url_is_parsed(text: str, address: tuple[Any, Any]) -> None:
    assert parse_address(text) == TopicsAddress(*address)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kafka:///a", "the broker is missing" + HINT),
        ("kafka://b1:x/a", "invalid host or port" + HINT),
        ("kafka://b1:70000/a", "invalid host or port" + HINT),
        ("kafka://b1:9092/a*", "'a*' is not the name of a topic" + HINT),
        ("kafka://b1/a?ssl=1", "it has parameters\n  Set them under `options` in the file."),
        (
            "kafka://me:pw@b1/a",
            "it contains a user or a password\n  Leave them out, and set `sasl.username` and "
            "`sasl.password` under `options` in the file: broker addresses are logged.",
        ),
    ],
)
def test_invalid_url_is_refused(text: str, problem: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_address(text)
    assert str(caught.value) == f"init: invalid Kafka URL: {problem}"


@pytest.mark.parametrize(
    ("values", "name", "note"),
    [
        ([], "json", "topic 't' has no records yet, so its format is a guess"),
        ([b'{"id": 1}', b'{"id": 2}'], "json", None),
        (
            [b'{"id": 1}', b'{"id": 2}', b"x"],
            "json",
            "topic 't': 1 of 3 records are not JSON objects",
        ),
        ([json.dumps(CHANGE).encode()], "debezium-json", None),
        ([json.dumps({"schema": {}, "payload": CHANGE}).encode()], "debezium-json", None),
        (
            [b"\0\0\0\0\x07\x02\x04"],
            "avro",
            "topic 't' has records of a schema registry: set the address of the registry in "
            "`schema_registry`, and `format: debezium-avro` if Debezium writes them",
        ),
        (
            [b"a,b"],
            "string",
            "topic 't' has no JSON objects, so its records are kept as text",
        ),
        (
            [b"\xff\x01"],
            "bytes",
            "topic 't' has neither JSON nor text, so its records are kept as bytes",
        ),
    ],
)
def test_format_is_guessed_from_a_sample(values: list[bytes], name: str, note: str | None) -> None:
    sample = guess_format("t", values)
    assert (sample.format, sample.notes) == (name, () if note is None else (note,))
    assert sample.records == len(values)


@pytest.mark.parametrize(
    "values",
    [[], [b'{"id": 1, "n": {"x": 1}}'], [b"\0\0\0\0\x07\x02\x04"], [b"a"], [b"\xff"]],
)
def test_file_is_valid_whatever_the_format(tmp_path: Path, values: list[bytes]) -> None:
    samples = [guess_format(topic, values) for topic in ("orders", "Orders", "1.2", "true")]
    text = topics_config(ADDRESS, samples, "s.json")
    config = parse(text, tmp_path / "icestream.yaml", environment={})
    names = ["orders", "orders_2", "topic_1_2", "topic_true"]
    assert list(config.sources) == list(config.sinks) == list(config.pipelines) == names
    build(config)


def test_topics_of_debezium_are_mirrored_together(tmp_path: Path) -> None:
    change = [json.dumps(CHANGE).encode()]
    samples = [
        guess_format("shop.a", change),
        guess_format("lake", [b'{"id": 1}']),
        guess_format("shop.b", change),
    ]
    text = topics_config(ADDRESS, samples, "s.json")
    config = parse(text, tmp_path / "icestream.yaml", environment={})
    options: Any = config.sources["changes"].options
    assert (options.topics, options.format) == (("shop.a", "shop.b"), "debezium-json")
    assert config.pipelines["changes"].sink == "lake_2"
    assert options.brokers == ("b1:9092", "b2:9093")
    build(config)


def test_hostile_field_names_do_not_break_the_file(tmp_path: Path) -> None:
    record = json.dumps({"a\nsinks: {}": 1, "b" * 300: 2, "c": {"d" * 300: 1}}).encode()
    text = topics_config(ADDRESS, [guess_format("orders", [record])], "s.json")
    assert "#   a?sinks: {}" in text
    assert list(parse(text, tmp_path / "icestream.yaml", environment={}).sinks) == ["orders"]


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "jdbc:mysql"])
def test_url_of_mysql_points_to_debezium(icestream: Icestream, tmp_path: Path, scheme: str) -> None:
    ended = icestream("init", f"{scheme}://root:secret@db/shop")
    assert (ended.code, ended.err) == (
        2,
        f"error: init: {scheme}:// is not a URL that init supports\n"
        "  Read it through Debezium: `connector: kafka` with `format: debezium-json`. `icestream "
        "init kafka://BROKER/TOPIC` writes that file from Debezium's topics; see "
        "docs/connectors/sources/debezium.md.\n"
        "  Use postgres://USER@HOST/DB, kafka://BROKER/TOPIC, or the path of a file.\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_other_url_is_refused(icestream: Icestream, tmp_path: Path) -> None:
    ended = icestream("init", "ftp://host/path")
    assert (ended.code, ended.err) == (
        2,
        "error: init: ftp:// is not a URL that init supports\n"
        "  Use postgres://USER@HOST/DB, kafka://BROKER/TOPIC, or the path of a file.\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_missing_package_is_named(
    icestream: Icestream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    ended = icestream("init", "kafka://localhost:9092/orders")
    assert (ended.code, ended.err) == (
        2,
        "error: init: needs the package confluent_kafka, which is not installed\n"
        "  pip install 'icestream[kafka]'\n",
    )
    assert list(tmp_path.iterdir()) == []
