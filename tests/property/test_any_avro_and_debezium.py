"""Values survive decoding: Avro, text, bytes and Debezium's formats."""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.any_values import any_examples, is_same, json_texts, parsed
from tests.unit.formats.debezium_events import decode, envelope, member, with_schema

from icestream.formats.avro import AvroDecoder
from icestream.formats.ddl import parse_ddl
from icestream.formats.debezium.avro import DebeziumAvroDecoder
from icestream.formats.debezium.json import DebeziumJsonDecoder
from icestream.formats.schema_registry import AvroSchema, Registry, RegistryOptions
from icestream.formats.text import BytesDecoder, StringDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
DOUBLES = st.floats()
FLOATS = st.floats(width=32)
TEXTS = st.text(st.characters(codec="utf-8"))
TIMESTAMPS = st.datetimes(timezones=st.just(timezone.utc)).map(lambda value: value.replace(fold=0))
# The schema and the values of each type.
AVRO: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": ("int", INTS),
    "long": ("long", LONGS),
    "float": ("float", FLOATS),
    "double": ("double", DOUBLES),
    "boolean": ("boolean", st.booleans()),
    "string": ("string", TEXTS),
    "bytes": ("bytes", st.binary()),
    "date": ({"type": "int", "logicalType": "date"}, st.dates()),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, TIMESTAMPS),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        st.datetimes().map(lambda value: value.replace(fold=0)),
    ),
    "time": (
        {"type": "long", "logicalType": "time-micros"},
        st.times().map(lambda value: value.replace(fold=0)),
    ),
    "uuid": ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
        st.integers(-(10**37), 10**37).map(lambda number: Decimal(f"{number}e-3")),
    ),
    "longest": (
        {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 20},
        st.integers(-(10**60) + 1, 10**60 - 1).map(lambda number: Decimal(f"{number}e-20")),
    ),
    "optional": (["null", "long"], st.none() | LONGS),
    "union": (["null", "string", "long"], st.none() | TEXTS | LONGS),
    "list": ({"type": "array", "items": "double"}, st.lists(DOUBLES)),
    "map": ({"type": "map", "values": "long"}, st.dictionaries(TEXTS, LONGS)),
}


def encode(schema: Any, row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def expected(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "longest":
        return f"{value:f}"
    if name == "union":
        return json.dumps(value, ensure_ascii=False)
    if name == "map":
        return sorted(value.items())
    return str(value) if isinstance(value, UUID) else value


@any_examples
@given(st.data())
def test_avro_values_survive_a_round_trip(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(AVRO)), min_size=1, unique=True))
    fields = [{"name": name, "type": AVRO[name][0]} for name in names]
    schema = {"type": "record", "name": "r", "fields": fields}
    row = {name: data.draw(AVRO[name][1]) for name in names}
    decoder = AvroDecoder(schema)

    decoded = decoder.decode(pa.array([encode(schema, row)], pa.binary()), decoder.infer([]))

    assert decoded.bad == ()
    (result,) = decoded.rows.to_pylist()
    if "map" in result:
        result["map"] = sorted(result["map"])
    expected_row = {name: expected(name, value) for name, value in row.items()}
    assert repr(result) == repr(expected_row).replace(
        "datetime.timezone.utc", "zoneinfo.ZoneInfo(key='UTC')"
    )


@any_examples
@given(
    st.sampled_from(["long", "double", "float", "decimal", "boolean", "string", "date", "micros"]),
    st.sampled_from(
        ["int", "bigint", "float", "double", "decimal(20,3)", "boolean", "string", "date",
         "timestamp", "binary", "array<string>"]
    ),
    st.data(),
)  # fmt: skip
def test_avro_value_in_a_column_of_another_type_is_the_same_or_bad(
    written: str, kind: str, data: st.DataObject
) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": AVRO[written][0]}]}
    value = data.draw(AVRO[written][1])
    raw = pa.array([encode(schema, {"a": value})], pa.binary())

    decoded = AvroDecoder(schema).decode(raw, parse_ddl(f"a {kind}"))

    for row in decoded.rows.to_pylist():
        found = row["a"].encode() if isinstance(row["a"], str) and kind == "binary" else row["a"]
        sent = value.encode() if isinstance(value, str) and kind == "binary" else value
        assert type(found) is type(sent) or {type(found), type(sent)} <= {int, float, Decimal}
        if kind != "float" or float(sent).is_integer():
            assert found == sent or found != found  # noqa: PLR0124 - not a number
    assert len(decoded.bad) + decoded.rows.num_rows == 1


@any_examples
@given(st.lists(st.none() | st.binary() | TEXTS.map(str.encode), max_size=5))
def test_text_and_bytes_survive_a_round_trip(sent: list[bytes | None]) -> None:
    values = pa.array(sent, pa.binary())
    text = StringDecoder().decode(values, parse_ddl("value string"))
    bad = {index for index, _ in text.bad}

    texts = text.rows.column("value").to_pylist()
    assert [None if value is None else value.encode() for value in texts] == [
        value for index, value in enumerate(sent) if index not in bad
    ]
    raw = BytesDecoder().decode(values, parse_ddl("value binary"))
    assert raw.rows.column("value").to_pylist() == sent


def rows_of(changes: Any) -> list[dict[str, Any]]:
    assert list(changes.bad) == []
    return [
        {name: value for name, value in row.items() if name != "__op"}
        for block in changes.blocks
        for row in block.to_pylist()
    ]


@any_examples
@given(st.lists(json_texts(), min_size=1, max_size=4))
def test_debezium_json_without_schemas_keeps_every_value(sent: list[str]) -> None:
    """Decode values together and alone: types are inferred from the values of a batch."""
    template = json.dumps(envelope("c", None, "AFTER"))
    values = [template.replace('"AFTER"', f'{{"id": 1, "a": {text}}}').encode() for text in sent]
    events = [({"id": 1}, value) for value in values]

    for group in (events, *([event] for event in events)):
        rows = rows_of(decode(DebeziumJsonDecoder(), group))
        for (_, value), row in zip(group, rows, strict=True):
            assert is_same(parsed(value.decode())["after"], row)


CONNECT: dict[str, tuple[Any, st.SearchStrategy[Any], Callable[[Any], Any]]] = {
    "int32": (member("a", "int32"), INTS, lambda value: value),
    "int64": (member("a", "int64"), LONGS, lambda value: value),
    "double": (member("a", "double"), st.floats(allow_nan=False, allow_infinity=False), float),
    "string": (member("a", "string"), TEXTS, str),
    "boolean": (member("a", "boolean"), st.booleans(), bool),
    "date": (
        member("a", "int32", "io.debezium.time.Date"),
        st.dates().map(lambda day: (day - date(1970, 1, 1)).days),
        lambda days: date(1970, 1, 1) + timedelta(days=days),
    ),
    "micros": (
        member("a", "int64", "io.debezium.time.MicroTimestamp"),
        TIMESTAMPS.map(lambda value: (value - EPOCH) // timedelta(microseconds=1)),
        lambda micros: (EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None),
    ),
}


def as_number(number: int) -> dict[str, Any]:
    raw = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    return {"scale": 5, "value": base64.b64encode(raw).decode()}


@any_examples
@given(st.sampled_from(sorted(CONNECT)), st.data())
def test_debezium_json_with_schemas_keeps_every_value(kind: str, data: st.DataObject) -> None:
    schema, values, meaning = CONNECT[kind]
    sent = data.draw(st.lists(values, min_size=1, max_size=4))
    events = [
        (
            {"id": 1},
            with_schema(envelope("c", None, {"id": 1, "a": value}), member("id", "int32"), schema),
        )
        for value in sent
    ]

    rows = rows_of(decode(DebeziumJsonDecoder(), events))

    assert [repr(row["a"]) for row in rows] == [repr(meaning(value)) for value in sent]


@any_examples
@given(st.lists(st.integers(-(10**60), 10**60), min_size=1, max_size=4))
def test_debezium_number_of_any_scale_keeps_its_digits(sent: list[int]) -> None:
    kind = member(
        "a",
        "struct",
        "io.debezium.data.VariableScaleDecimal",
        fields=[member("scale", "int32"), member("value", "bytes")],
    )
    events = [
        (
            {"id": 1},
            with_schema(
                envelope("c", None, {"id": 1, "a": as_number(n)}), member("id", "int32"), kind
            ),
        )
        for n in sent
    ]

    rows = rows_of(decode(DebeziumJsonDecoder(), events))

    assert [Decimal(row["a"]) for row in rows] == [Decimal(f"{number}e-5") for number in sent]


class OneSchema(Registry):
    """A registry with one schema, which has the id 7."""

    def __init__(self, schema: Any) -> None:
        super().__init__(RegistryOptions(url="http://127.0.0.1:1"))
        self.schema = schema

    def by_id(self, schema_id: int) -> AvroSchema:
        return AvroSchema(self.schema, {})


@any_examples
@given(st.sampled_from(["int", "long", "float", "double", "boolean", "string", "bytes"]), st.data())
def test_debezium_avro_keeps_every_value(kind: str, data: st.DataObject) -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "int"}, {"name": "a", "type": ["null", kind]}],
    }
    parts = [{"name": name, "type": "string"} for name in ("db", "table")]
    source = {"type": "record", "name": "Source", "fields": parts}
    fields = [
        {"name": "before", "type": ["null", row]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
    ]
    schema = {"type": "record", "name": "Envelope", "namespace": "s", "fields": fields}
    sent = data.draw(st.lists(st.none() | AVRO[kind][1], min_size=1, max_size=4))
    events = [
        (
            None,
            struct.pack(">bI", 0, 7)
            + encode(
                schema,
                {
                    "before": None,
                    "after": {"id": 1, "a": value},
                    "source": {"db": "d", "table": "t"},
                    "op": "c",
                },
            ),
        )
        for value in sent
    ]

    rows = rows_of(decode(DebeziumAvroDecoder(OneSchema(schema)), events))

    assert [repr(row["a"]) for row in rows] == [repr(value) for value in sent]
