from __future__ import annotations

import pickle
import socket
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from icestream.errors import PlanError, UnreachableError
from icestream.sources.kafka import KafkaOptions, KafkaSource
from icestream.sources.kafka import source as kafka_source
from icestream.sources.kafka.options import StartingPoint
from icestream.sources.kafka.reader import Span


def options(**changes: Any) -> KafkaOptions:
    return KafkaOptions.model_validate({"brokers": "a:1", "topics": ["orders"], **changes})


def problem(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        options(**changes)
    (error,) = caught.value.errors()
    return str(error["msg"]).removeprefix("Value error, ")


def at(*offsets: int | None, begins: dict[int, int] | None = None) -> dict[str, Any]:
    by_partition = {("orders", i): offset for i, offset in enumerate(offsets) if offset is not None}
    new = {("orders", i): begin for i, begin in (begins or {}).items()}
    return kafka_source.build_offset({"orders": "x1"}, by_partition, new)


def in_epoch(epoch: int, *offsets: int) -> dict[str, Any]:
    by_partition = {("orders", i): offset for i, offset in enumerate(offsets)}
    return kafka_source.build_offset(
        {"orders": "x1"}, by_partition, epochs=dict.fromkeys(by_partition, epoch)
    )


def test_leader_epoch_of_the_start_is_compared_if_it_changed() -> None:
    assert kafka_source.spans_between(in_epoch(3, 0, 5), in_epoch(4, 9, 5)) == [
        Span("orders", 0, 0, 9, 3)
    ]
    assert kafka_source.spans_between(in_epoch(3, 0), in_epoch(3, 9)) == [
        Span("orders", 0, 0, 9, -1)
    ]
    assert kafka_source.spans_between(in_epoch(3, 0), at(9)) == [Span("orders", 0, 0, 9, 3)]
    assert kafka_source.spans_between(at(0), in_epoch(4, 9)) == [Span("orders", 0, 0, 9, -1)]
    pieces = kafka_source.make_splits(in_epoch(3, 0), in_epoch(4, 40_000), 2)
    assert [piece.what[0].epoch for piece in pieces] == [3, -1], "later offsets were listed later"


def test_limited_offset_has_the_epoch_in_which_it_was_listed() -> None:
    capped = kafka_source.limit_offset(in_epoch(3, 0, 5), in_epoch(4, 90, 5), 10)
    assert kafka_source.partition_offsets(capped, "epochs") == {("orders", 0): 4, ("orders", 1): 3}
    unknown = kafka_source.limit_offset(in_epoch(3, 0), at(90), 10)
    assert kafka_source.partition_offsets(unknown, "epochs") == {}, (
        "an older epoch may end before it"
    )


def test_brokers_are_a_list_or_comma_separated() -> None:
    assert options(brokers="a:1, b:2").brokers == ("a:1", "b:2")
    assert options(brokers=["a:1", "b:2"]).brokers == ("a:1", "b:2")


def test_settings_are_passed_on_in_either_spelling() -> None:
    configured = options(
        options={"kafka.sasl.username": "me", "fetch.min.bytes": 5, "check.crcs": True}
    )

    settings = configured.client_settings()

    assert settings["sasl.username"] == "me"
    assert settings["fetch.min.bytes"] == "5"
    assert settings["check.crcs"] == "true"
    assert settings["bootstrap.servers"] == "a:1"


def test_no_setting_is_shown() -> None:
    configured = options(options={"sasl.password": "hunter2"})

    assert "hunter2" not in repr(configured)
    assert "hunter2" not in configured.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"topics": []},
            "names no topics\nAdd `topics`, e.g. `topics: [orders]`, or `topic_pattern`.",
        ),
        (
            {"topic_pattern": "x.*"},
            "`topics` and `topic_pattern` are mutually exclusive\nRemove one.",
        ),
        (
            {"topics": [], "topic_pattern": "("},
            "topic_pattern is not a regular expression: "
            "missing ), unterminated subpattern at position 0",
        ),
        ({"format": "csv"}, "format 'csv' needs `schema`, e.g. `id bigint, name string`"),
        ({"format": "avro"}, "format 'avro' needs `schema` or `schema_registry`"),
        (
            {"options": {"auto.offset.reset": "x"}},
            "option 'auto.offset.reset' is set by icestream itself",
        ),
        (
            {"options": {"kafka.sasl.jaas.config": "x"}},
            "option 'sasl.jaas.config' is for Java clients. "
            "Use `sasl.username` and `sasl.password` instead.",
        ),
    ],
)
def test_conflicting_options_are_refused(changes: dict[str, Any], message: str) -> None:
    assert problem(**changes) == message


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
        "error_cb",
        "oauth_cb",
        "sasl.login.callback.handler.class",
        "interceptor.classes",
        "value.deserializer",
    ],
)
def test_setting_that_loads_code_is_refused(name: str) -> None:
    message = f"option {name!r} loads code or runs a command, and is not allowed"
    assert problem(options={name: "x"}) == message


@pytest.mark.parametrize("moment", ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05", 1704164645000])
def test_starting_time_is_text_or_milliseconds(moment: Any) -> None:
    starting = options(starting={"timestamp": moment}).starting

    assert isinstance(starting, StartingPoint)
    assert starting.millis == 1704164645000
    assert datetime.fromtimestamp(starting.millis / 1000, timezone.utc).year == 2024


def test_starting_offsets_are_by_topic_and_partition() -> None:
    starting = options(starting={"offsets": {"orders": {"0": 5, 1: 6}}}).starting

    assert isinstance(starting, StartingPoint)
    assert starting.offsets == {"orders": {0: 5, 1: 6}}


def test_identity_names_the_topics() -> None:
    assert KafkaSource(options(topics="b,a")).identity() == "kafka a,b"
    assert KafkaSource(options(topics=[], topic_pattern="o.*")).identity() == "kafka /o.*/"


def test_schema_has_the_declared_and_included_columns() -> None:
    source = KafkaSource(options(schema="id bigint", include=["key", "offset"]))

    assert source.schema() == pa.schema(
        [("id", pa.int64()), ("kafka_key", pa.binary()), ("kafka_offset", pa.int64())]
    )
    assert KafkaSource(options(format="string")).schema() == pa.schema([("value", pa.string())])
    assert KafkaSource(options()).schema() is None
    assert KafkaSource(options()).extra_columns() is None


def test_unreadable_schema_is_refused_when_the_source_is_built() -> None:
    with pytest.raises(PlanError, match="schema: 'id foo' has the unknown type 'foo'"):
        KafkaSource(options(schema="id foo"))


def test_refused_connection_names_the_broker() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        source = KafkaSource(options(brokers=address))

        with pytest.raises(UnreachableError) as caught:
            source.initial()

    assert str(caught.value) == (
        f"source kafka {address}: no answer from any broker\n"
        "  Is the server running? Check `brokers`, and `security.protocol` in `options`. Is a "
        "firewall, a VPN or a proxy in between?"
    )
    assert caught.value.exit_code == 3


def test_unknown_setting_is_reported_without_its_value() -> None:
    source = KafkaSource(options(options={"sasl.pasword": "hunter2"}))

    with pytest.raises(PlanError) as caught:
        source.initial()

    assert str(caught.value) == (
        "source kafka a:1: the Kafka client rejects option 'sasl.pasword'\n"
        "  Check its name and value in librdkafka's list of configuration properties."
    )


def test_source_is_pickled_without_its_connection() -> None:
    source = KafkaSource(options(schema="id bigint", options={"sasl.password": "x"}))

    again = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes

    assert again.options == source.options
    assert again.schema() == source.schema()


def test_offset_is_the_documented_json() -> None:
    assert at(5, 7, begins={1: 3}) == {
        "topics": {"orders": {"id": "x1", "partitions": {"0": 5, "1": 7}, "begins": {"1": 3}}}
    }


def test_new_partition_starts_at_its_lowest_offset() -> None:
    assert kafka_source.spans_between(at(5, None), at(6, 9, begins={1: 4})) == [
        Span("orders", 0, 5, 6),
        Span("orders", 1, 4, 9),
    ]


def test_limited_offset_advances_partitions_by_their_share() -> None:
    assert kafka_source.limit_offset(at(0, 100), at(800, 300), 100) == at(80, 120)


def test_limited_offset_omits_a_new_partition_that_gets_no_rows() -> None:
    start, end = at(0, None), at(1000, 101, begins={1: 100})

    assert kafka_source.limit_offset(start, end, 10) == at(10)
    assert kafka_source.limit_offset(at(999, None), end, 1) == at(1000)


def test_long_partition_is_split_if_there_are_fewer_than_slots() -> None:
    parts = kafka_source.make_splits(at(0, 0), at(90_000, 30_000), 4)

    assert sorted(split.rows for split in parts) == [30_000] * 4


def test_short_partition_is_not_split() -> None:
    assert len(kafka_source.make_splits(at(0), at(15_000), 4)) == 1


def test_ranges_of_partitions_between_two_offsets() -> None:
    source = KafkaSource(KafkaOptions(brokers=("b:1",), topics=("a", "b")))
    start = kafka_source.build_offset({"a": "1"}, {("a", 0): 5, ("a", 1): 9})
    end = kafka_source.build_offset(
        {"a": "1", "b": "2"}, {("a", 0): 7, ("a", 1): 8, ("b", 0): 4}, {("b", 0): 3}
    )
    assert source.partition_ranges(start, end) == {"a[0]": (5, 7), "a[1]": (9, 8), "b[0]": (3, 4)}
    assert source.count_offsets(kafka_source.build_offset({"a": "1"}, {("a", 0): 5}), start) == 9
    assert source.count_offsets({}, start) == 0


def test_topic_created_again_has_no_range() -> None:
    source = KafkaSource(KafkaOptions(brokers=("b:1",), topics=("a",)))
    start, end = (kafka_source.build_offset({"a": topic}, {("a", 0): 5}) for topic in ("1", "2"))
    assert source.partition_ranges(start, end) == {}


def test_database_is_for_changes_only() -> None:
    database = {"type": "mysql", "host": "db", "user": "me", "password": "hunter-2"}
    assert problem(database=database) == (
        "`database` is for Debezium's formats, and the format is 'json': remove `database`"
    )
    found = options(format="debezium-json", database=database)
    assert found.database is not None
    assert (found.database.server_port, "hunter-2" in repr(found)) == (3306, False)


def test_postgresql_needs_the_name_of_its_database() -> None:
    database = {"type": "postgres", "host": "db", "user": "me"}
    assert problem(format="debezium-json", database=database) == (
        "`type: postgres` needs `database`, the name of the database"
    )
