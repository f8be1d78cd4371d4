from __future__ import annotations

import math
import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from tests.unit.formats.debezium_events import decode, envelope, member, with_schema

from icestream.contracts.changes import nulled_counts
from icestream.formats.debezium.json import DebeziumJsonDecoder

MOMENT = datetime(2024, 2, 29, 12, 34, 56, 789012)  # noqa: DTZ001 - a timestamp without a zone
CLOCK = "12:34:56.789012"
ZONED = datetime(2024, 2, 29, 10, 34, 56, 789012, tzinfo=timezone.utc)


def decimal(scale: int, precision: int | None = None) -> dict[str, Any]:
    parameters = {"scale": str(scale)}
    if precision is not None:
        parameters["connect.decimal.precision"] = str(precision)
    return member("x", "bytes", "org.apache.kafka.connect.data.Decimal", parameters=parameters)


def of(kind: str, name: str) -> dict[str, Any]:
    return member("x", kind, name)


def array(item: dict[str, Any]) -> dict[str, Any]:
    return {**member("x", "array"), "items": item}


def decoded(schema: dict[str, Any], *values: Any) -> tuple[str, Any]:
    """Return the type and the values that values of a Connect type decode to."""
    events = [
        (
            {"id": number},
            with_schema(
                envelope("c", after={"id": number, "x": value}),
                member("id", "int64"),
                schema,
            ),
        )
        for number, value in enumerate(values)
    ]
    changes = decode(DebeziumJsonDecoder(), events)
    assert changes.bad == []
    [block] = changes.blocks
    return str(block.schema.field("x").type), block.column("x").to_pylist()


@pytest.mark.parametrize(
    ("schema", "value", "kind", "expected"),
    [
        (of("int32", "io.debezium.time.Date"), 19782, "date32[day]", date(2024, 2, 29)),
        (of("string", "io.debezium.time.IsoDate"), "2024-02-29Z", "date32[day]", date(2024, 2, 29)),
        (
            of("int32", "io.debezium.time.Time"),
            45296789,
            "string",
            "12:34:56.789",
        ),
        (of("int64", "io.debezium.time.MicroTime"), 45296789012, "string", CLOCK),
        (of("int64", "io.debezium.time.NanoTime"), 45296789012000, "string", CLOCK),
        (of("string", "io.debezium.time.IsoTime"), "12:34:56.789012Z", "string", CLOCK),
        (of("int64", "io.debezium.time.Timestamp"), 1709210096000, "timestamp[us]", None),
        (of("int64", "io.debezium.time.MicroTimestamp"), 1709210096789012, "timestamp[us]", MOMENT),
        (
            of("int64", "io.debezium.time.NanoTimestamp"),
            1709210096789012000,
            "timestamp[us]",
            MOMENT,
        ),
        (
            of("string", "io.debezium.time.IsoTimestamp"),
            "2024-02-29T12:34:56.789012Z",
            "timestamp[us]",
            MOMENT,
        ),
        (
            of("string", "io.debezium.time.ZonedTimestamp"),
            "2024-02-29T10:34:56.789012Z",
            "timestamp[us, tz=UTC]",
            ZONED,
        ),
        (of("string", "io.debezium.time.ZonedTime"), "10:34:56Z", "string", "10:34:56Z"),
        (of("int32", "io.debezium.time.Year"), 2024, "int32", 2024),
        (of("int64", "io.debezium.time.MicroDuration"), 37091106789000, "int64", 37091106789000),
        (of("string", "io.debezium.time.Interval"), "P1Y2M", "string", "P1Y2M"),
        (of("int32", "org.apache.kafka.connect.data.Date"), -1, "date32[day]", date(1969, 12, 31)),
        (of("int32", "org.apache.kafka.connect.data.Time"), 1, "string", "00:00:00.001"),
        (
            of("int64", "org.apache.kafka.connect.data.Timestamp"),
            1709210096000,
            "timestamp[us]",
            None,
        ),
        (decimal(2, 10), "tmn9LQ==", "decimal128(10, 2)", Decimal("-12345678.91")),
        (decimal(2), "/h3A", "decimal128(38, 2)", Decimal("-1234.56")),
        (decimal(2, 10), Decimal("-1.5"), "decimal128(10, 2)", Decimal("-1.50")),
        (decimal(30, 65), "AQ==", "string", "0." + "0" * 29 + "1"),
        (decimal(-2, 3), "AQ==", "string", "100"),
        (of("string", "io.debezium.data.Json"), '{"a": 1.50}', "string", '{"a": 1.50}'),
        (of("string", "io.debezium.data.EnumSet"), "x,z", "string", "x,z"),
        (of("bytes", "io.debezium.data.Bits"), "qg==", "binary", b"\xaa"),
        (member("x", "bytes"), "3q2+7w==", "binary", b"\xde\xad\xbe\xef"),
        (member("x", "int16"), -32768, "int32", -32768),
        (member("x", "float"), 1.5, "float", 1.5),
        (member("x", "double"), "-Infinity", "double", -math.inf),
        (member("x", "boolean"), True, "bool", True),
        (array(member("", "int32")), [1, None, 3], "list<item: int32>", [1, None, 3]),
        (
            array(of("int32", "io.debezium.time.Date")),
            [19782, None],
            "list<item: date32[day]>",
            [date(2024, 2, 29), None],
        ),
        (
            {**member("x", "map"), "keys": {"type": "string"}, "values": {"type": "string"}},
            {"a": "1", "b": None},
            "map<string, string>",
            [("a", "1"), ("b", None)],
        ),
    ],
)
def test_value_gets_its_semantic_type(
    schema: dict[str, Any], value: Any, kind: str, expected: Any
) -> None:
    if expected is None:
        expected = MOMENT.replace(microsecond=0)
    value = float(value) if isinstance(value, Decimal) else value
    assert decoded(schema, value, None) == (kind, [expected, None])


def test_uuid_is_a_uuid() -> None:
    text = "550e8400-e29b-41d4-a716-446655440000"
    result = decoded(of("string", "io.debezium.data.Uuid"), text, None)
    assert result == ("extension<arrow.uuid>", [uuid.UUID(text), None])


def test_number_of_any_scale_is_text_with_all_its_digits() -> None:
    schema = {
        **of("struct", "io.debezium.data.VariableScaleDecimal"),
        "fields": [member("scale", "int32"), member("value", "bytes")],
    }
    values = [{"scale": 3, "value": "AeJA"}, None, {"scale": 0, "value": "+pQ4odKc8AAA"}]
    assert decoded(schema, *values) == ("string", ["123.456", None, "-100000000000000000000"])


def test_point_keeps_its_parts() -> None:
    schema = {
        **of("struct", "io.debezium.data.geometry.Point"),
        "fields": [member("x", "double"), member("wkb", "bytes"), member("srid", "int32")],
    }
    kind, values = decoded(schema, {"x": 1.5, "wkb": "AQE=", "srid": None}, None)
    assert kind == "struct<x: double, wkb: binary, srid: int32>"
    assert values == [{"x": 1.5, "wkb": b"\x01\x01", "srid": None}, None]


def test_time_may_be_negative_or_longer_than_a_day() -> None:
    values = (86_400_000_000, -45296789000, 3020398999999)
    assert decoded(of("int64", "io.debezium.time.MicroTime"), *values) == (
        "string",
        ["24:00:00", "-12:34:56.789", "838:59:58.999999"],
    )


ID = member("id", "int64")
DAY_LIST = array({"type": "int32", "name": "io.debezium.time.Date", "version": 1})
BEYOND = [
    (of("int64", "io.debezium.time.MicroTimestamp"), 9223372036825200000, "timestamp[us]"),
    (of("string", "io.debezium.time.ZonedTimestamp"), "-infinity", "timestamp[us, tz=UTC]"),
    (
        of("string", "io.debezium.time.ZonedTimestamp"),
        "2024-02-29T10:34:56.1234567Z",
        "timestamp[us, tz=UTC]",
    ),
    (of("int64", "io.debezium.time.NanoTimestamp"), 1709210096789012300, "timestamp[us]"),
    (of("int64", "io.debezium.time.NanoTimestamp"), -1, "timestamp[us]"),
    (of("int32", "io.debezium.time.Date"), -622191234, "date32[day]"),
    (of("string", "io.debezium.time.IsoDate"), "+292269055-12-02Z", "date32[day]"),
    (DAY_LIST, [19782, -622191234], "list<item: date32[day]>"),
]


@pytest.mark.parametrize(("schema", "value", "kind"), BEYOND)
def test_value_that_no_table_can_hold_makes_its_record_bad(
    schema: dict[str, Any], value: Any, kind: str
) -> None:
    events = [
        ({"id": 1}, with_schema(envelope("c", after={"id": 1, "x": None}), ID, schema)),
        ({"id": 2}, with_schema(envelope("u", after={"id": 2, "x": value}), ID, schema)),
        ({"id": 3}, with_schema(envelope("d", before={"id": 3, "x": value}), ID, schema)),
    ]
    changes = decode(DebeziumJsonDecoder(), events)
    assert changes.bad == [(1, f"column 'x': type {kind} can't hold {value!r}")]
    [block] = changes.blocks
    assert block.column("id").to_pylist() == [1, 3]


@pytest.mark.parametrize(("schema", "value", "kind"), BEYOND)
def test_value_that_no_table_can_hold_is_null_if_configured(
    schema: dict[str, Any], value: Any, kind: str
) -> None:
    event = with_schema(envelope("c", after={"id": 1, "x": value}), ID, schema)
    decoder = DebeziumJsonDecoder(unrepresentable="null")
    [block] = decode(decoder, [({"id": 1}, event)]).blocks
    assert str(block.schema.field("x").type) == kind
    assert block.column("x").to_pylist() in ([None], [[date(2024, 2, 29), None]])
    assert nulled_counts(block.schema) == {"x": 1}


def test_tombstone_whose_key_no_table_can_hold_is_bad() -> None:
    schema = {"type": "struct", "fields": [of("int32", "io.debezium.time.Date")]}
    key = {"schema": schema, "payload": {"x": -622191234}}
    changes = decode(DebeziumJsonDecoder(), [(key, None)])
    assert changes.bad == [
        (
            0,
            "its key does not identify the row to delete: column 'x': type date32[day] can't hold "
            "its value",
        )
    ]


def test_only_the_value_that_contradicts_its_schema_is_bad() -> None:
    def event(number: int, value: Any, schema: dict[str, Any]) -> Any:
        row = {"id": number, "x": value}
        return {"id": number}, with_schema(envelope("c", after=row), member("id", "int64"), schema)

    for schema, value, reason in [
        (decimal(2, 3), "tmn9LQ==", "column 'x': '-12345678.91' is not a decimal(3,2)"),
        (decimal(2, 3), "%", "column 'x': '%' is not base64"),
        (of("string", "io.debezium.data.Uuid"), "x", "column 'x': 'x' is not a uuid"),
        (
            of("string", "io.debezium.time.ZonedTimestamp"),
            "soon",
            "column 'x': 'soon' is not a timestamp",
        ),
        (member("x", "int32"), "one", "column 'after.x': 'one' is not an int"),
    ]:
        changes = decode(DebeziumJsonDecoder(), [event(1, None, schema), event(2, value, schema)])
        assert changes.bad == [(1, reason)]
        assert [block.num_rows for block in changes.blocks] == [1]
