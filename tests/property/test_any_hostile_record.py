"""Whatever a record holds, decoders report it as bad or return rows that the writer can write.

Nothing that a sender can put into a record may raise, end the process or take it for ever: that
would stop a pipeline which drops or dead-letters bad records.
"""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.any_values import any_examples, json_texts, texts
from tests.fixtures.table_folder import TableFolder
from tests.unit.formats.debezium_events import decode, envelope, member, with_schema

from icestream.formats.avro import AvroDecoder
from icestream.formats.blocks import BadValueError
from icestream.formats.csv import CsvDecoder
from icestream.formats.ddl import parse_ddl
from icestream.formats.debezium.avro import DebeziumAvroDecoder
from icestream.formats.debezium.json import DebeziumJsonDecoder
from icestream.formats.json import JsonDecoder
from icestream.formats.schema_registry import AvroSchema, Registry, RegistryOptions
from icestream.formats.text import BytesDecoder, StringDecoder

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.changes import DecodedChanges
    from icestream.contracts.decoder import Decoded, Decoder

# Hypothesis warns about large values, and these are meant to be large.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

COLUMNS = parse_ddl(
    "a bigint, b double, c float, d decimal(20,4), e string, f timestamp, g date, h boolean, "
    "i array<double>, j struct<a:timestamp_ntz,b:decimal(38,0)>, k map<string,float>, l binary"
)
NAMES = st.one_of(
    st.sampled_from(COLUMNS.names),
    st.sampled_from(
        ["", "A", "a.b", "__op", "__unsent", "__deleted", "after", "schema", "payload"]
    ),
    st.text(max_size=5),
    st.just("x" * 300),
)
HUGE = [
    "9" * 5_000, "1e999999999", "-1e-999999999", "0." + "0" * 5_000 + "1",
    "[" * 5_000 + "]" * 5_000,
    '{"a":' * 3_000 + "1" + "}" * 3_000, '"\\ud800"', '"\\u0000"', '{"\\udfff": 1}', "1" * 400,
    '{"a": 1, "a": [2]}', "-", "Infinity", "-Infinity", '"292277-01-01T00:00:00Z"',
    "1e308", "[null]",
    '{"scale": 2147483647, "value": "AQ=="}', '{"scale": null, "value": "AQ=="}', '{"scale": 1}',
]  # fmt: skip
VALUES = st.one_of(json_texts(), st.sampled_from(HUGE))


@st.composite
def objects(draw: st.DrawFn) -> str:
    """Return a JSON object with any members."""
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=4))
    return "{" + ",".join(f"{json.dumps(name)}: {value}" for name, value in members) + "}"


@st.composite
def mutated(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """Return valid bytes that were cut, doubled or overwritten somewhere."""
    value = draw(sound)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(value)))
        stop = draw(st.integers(at, min(len(value), at + 20)))
        value = (
            value[:at] + draw(st.binary(max_size=8) | st.just(value[at:stop] * 2)) + value[stop:]
        )
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def check(decoder: Decoder, sent: list[bytes | None], columns: pa.Schema, folder: Path) -> Decoded:
    """Decode values and write the good ones; each must be either good or bad."""
    inferred = decoder.infer(sent)
    decoder.decode(pa.array(sent, pa.binary()), inferred).rows.validate(full=True)
    decoded = decoder.decode(pa.array(sent, pa.binary()), columns)
    decoded.rows.validate(full=True)
    kept = range(len(sent)) if decoded.kept is None else decoded.kept.to_pylist()
    assert sorted([*kept, *(place for place, _ in decoded.bad)]) == [*range(len(sent))]
    assert all(len(reason) < 1_000 for _, reason in decoded.bad)
    if decoded.rows.num_rows:
        files = TableFolder(folder).writer(columns).write([decoded.rows])
        assert sum(file.rows for file in files) == decoded.rows.num_rows
    return decoded


def sound(value: Any) -> bytes:
    return json.dumps(value).encode()


@any_examples
@given(st.lists(st.none() | mutated(objects().map(str.encode)), max_size=4))
def test_json(folder: Path, sent: list[bytes | None]) -> None:
    check(JsonDecoder(), [*sent, b'{"a": 1}'], COLUMNS, folder)


@any_examples
@given(st.lists(st.none() | mutated(texts.map(lambda text: f'1,{text},"x"'.encode())), max_size=4))
def test_csv(folder: Path, sent: list[bytes | None]) -> None:
    columns = parse_ddl("a bigint, b double, e string")
    for kind in ("double", "decimal(10,2)", "timestamp", "string", "boolean"):
        layout = parse_ddl(f"a bigint, b {kind}, e string")
        check(CsvDecoder(layout, inferred=kind == "double"), [*sent, b"1,,x"], layout, folder)
    assert columns.names == layout.names


def test_record_with_ten_thousand_fields(folder: Path) -> None:
    many = json.dumps({f"field {number}": number for number in range(10_000)}).encode()
    decoded = check(JsonDecoder(), [many, b'{"a": 1}'], COLUMNS, folder)
    assert len(decoded.new_fields) == 10_000

    value = sound(envelope("c", None, json.loads(many)))
    check_changes(decode(DebeziumJsonDecoder(), [(many, value), (many, None)]))


@any_examples
@given(st.lists(st.none() | st.binary(max_size=50), max_size=4))
def test_text_and_bytes(folder: Path, sent: list[bytes | None]) -> None:
    check(StringDecoder(), sent, parse_ddl("value string, a bigint"), folder)
    check(BytesDecoder(), sent, parse_ddl("value binary, a bigint"), folder)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": "double"},
        {"name": "d", "type": DECIMAL},
        {"name": "e", "type": ["null", "string", "bytes", "long"]},
        {"name": "f", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "g", "type": {"type": "int", "logicalType": "date"}},
        {"name": "i", "type": {"type": "array", "items": "double"}},
        {"name": "k", "type": {"type": "map", "values": "float"}},
        {"name": "m", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "n", "type": {"type": "enum", "name": "n", "symbols": ["A"]}},
        {"name": "next", "type": ["null", "r"]},
    ],
}  # fmt: skip
SOUND = {
    "a": 1, "b": 0.5, "d": 1, "e": "x", "f": 5, "g": 5, "i": [1.0], "k": {"x": 1.0}, "m": 5,
    "n": "A", "next": None,
}  # fmt: skip


def encode(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


ENCODED = encode(AVRO, {**SOUND, "d": b"\x01"})
# A length of 2^62, which must not be allocated.
LENGTH = b"\xfe" + b"\xff" * 7 + b"\x7f"


@any_examples
@given(
    st.lists(
        st.none()
        | mutated(st.just(ENCODED))
        | st.integers(0, len(ENCODED)).map(lambda at: ENCODED[:at] + LENGTH + ENCODED[at:])
        | st.just(ENCODED[:-1] + b"\x02" * 20_000),
        max_size=4,
    )
)
def test_avro(folder: Path, sent: list[bytes | None]) -> None:
    decoded = check(AvroDecoder(AVRO), [*sent, ENCODED], COLUMNS, folder)
    assert decoded.rows.num_rows >= 1


TYPES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["null", "int", "long", "double", "string", "bytes", "r", "x", 5, None, {}]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.builds(lambda kind: {"type": "array", "items": kind}, inner),
        st.builds(lambda kind: {"type": "map", "values": kind}, inner),
        st.builds(
            lambda name, kind: {
                "type": "record", "name": name, "fields": [{"name": "a", "type": kind}]
            },
            st.sampled_from(["r", "s", "", "1", None]),
            inner,
        ),
        st.builds(
            lambda kind, size: {
                "type": "bytes", "logicalType": "decimal", "precision": kind, "scale": size
            },
            st.sampled_from([-1, 0, 5, 100, "x", None]),
            st.sampled_from([-1, 0, 5, 10**9, "x"]),
        ),
        st.builds(
            lambda size: {"type": "fixed", "name": "f", "size": size},
            st.sampled_from([0, -1, 10**12]),
        ),
    ),
    max_leaves=5,
)  # fmt: skip


ENVELOPES = st.builds(
    lambda before, after, source, op: {
        "type": "record",
        "name": "Envelope",
        "namespace": "s",
        "fields": [
            {"name": "before", "type": before},
            {"name": "after", "type": after},
            {"name": "source", "type": source},
            {"name": "op", "type": op},
        ],
    },
    TYPES,
    TYPES,
    TYPES,
    st.just("string") | TYPES,
)


class OneSchema(Registry):
    """A registry with one schema; other ids are unknown."""

    def __init__(self, schema: Any) -> None:
        super().__init__(RegistryOptions(url="http://127.0.0.1:1"))
        self.schema = schema

    def by_id(self, schema_id: int) -> AvroSchema:
        if schema_id != 7:
            raise BadValueError(f"schema id {schema_id} is not in the registry")
        return AvroSchema(self.schema, {})


def registered(raw: bytes) -> bytes:
    return struct.pack(">bI", 0, 7) + raw


def records(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}


@any_examples
@given(TYPES | TYPES.map(records) | ENVELOPES, st.lists(st.binary(max_size=30), max_size=3))
def test_avro_of_any_schema(folder: Path, schema: Any, sent: list[bytes]) -> None:
    values: list[bytes | None] = [*map(registered, sent), None, *sent]
    check(AvroDecoder(registry=OneSchema(schema)), values, COLUMNS, folder)
    decoder = DebeziumAvroDecoder(OneSchema(schema))
    check_changes(decode(decoder, [(value, value) for value in values]))


def check_changes(changes: DecodedChanges) -> None:
    for block in changes.blocks:
        block.validate(full=True)
        assert len(set(block.schema.names)) == block.num_columns
    assert all(len(reason) < 1_000 for _, reason in changes.bad)


ROW = [
    member("id", "int32"), member("b", "double"), member("c", "float"), member("l", "bytes"),
    member("d", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
    member("f", "int64", "io.debezium.time.NanoTimestamp"),
    member("g", "int32", "io.debezium.time.Date"),
    member("t", "string", "io.debezium.time.ZonedTimestamp"),
    member("u", "string", "io.debezium.data.Uuid"),
    member("v", "struct", "io.debezium.data.VariableScaleDecimal",
           fields=[member("scale", "int32"), member("value", "bytes")]),
    member("i", "array", items={"type": "string", "optional": True}),
]  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value of a change with arbitrary parts."""
    row = draw(
        objects()
        | st.tuples(st.sampled_from([part["field"] for part in ROW]), VALUES).map(
            lambda pair: f'{{"id": 1, "{pair[0]}": {pair[1]}}}'
        )
    )
    op = draw(st.sampled_from([*"cudrtm", "x"]))
    event = envelope(op, "BEFORE", "AFTER")
    if draw(st.booleans()):
        event = with_schema(event, *draw(st.lists(st.sampled_from(ROW), unique_by=id)))
    text = json.dumps(event).replace('"BEFORE"', draw(st.sampled_from(["null", row])))
    text = text.replace('"AFTER"', draw(st.sampled_from(["null", row, "5"])))
    for part in ("source", "op", "schema"):
        if draw(st.integers(0, 20)) == 0:
            text = text.replace(f'"{part}": ', f'"{part}": {draw(VALUES)}, "z": ', 1)
    key = draw(st.none() | st.just(b'{"id": 1}') | objects().map(str.encode))
    return key, draw(st.none() | mutated(st.just(text.encode())))


@any_examples
@given(st.lists(events(), min_size=1, max_size=4))
def test_debezium_json(sent: list[tuple[bytes | None, bytes | None]]) -> None:
    good = (b'{"id": 9}', sound(envelope("c", None, {"id": 9})))
    changes = decode(DebeziumJsonDecoder(), [*sent, good])
    check_changes(changes)
    assert len(sent) not in dict(changes.bad)
