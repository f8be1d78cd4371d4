from __future__ import annotations

import io
import json
import pickle
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from tests.unit.formats.debezium_events import blocks_of, decode

from icestream.formats.blocks import BadValueError
from icestream.formats.debezium.avro import DebeziumAvroDecoder
from icestream.formats.schema_registry import AvroSchema, Registry, RegistryOptions

KEY, VALUE, HEARTBEAT, ODD = 1, 2, 3, 4
PRICE = {
    "type": "bytes",
    "scale": 2,
    "precision": 10,
    "logicalType": "decimal",
    "connect.name": "org.apache.kafka.connect.data.Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}
DAY = {"type": "int", "logicalType": "date", "connect.name": "org.apache.kafka.connect.data.Date"}
ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", PRICE]},
        {"name": "day", "type": ["null", DAY]},
        {"name": "blob", "type": ["null", "bytes"]},
        {"name": "days", "type": ["null", {"type": "array", "items": ["null", "int"]}]},
    ],
}
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [{"name": name, "type": "string"} for name in ("db", "schema", "table")],
}
SCHEMAS: dict[int, Any] = {
    KEY: {
        "type": "record",
        "name": "Key",
        "namespace": "shop.public.orders",
        "fields": [{"name": "id", "type": "long"}],
    },
    VALUE: {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [
            {"name": "before", "type": ["null", ROW]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": SOURCE},
            {"name": "op", "type": "string"},
        ],
    },
    HEARTBEAT: {
        "type": "record",
        "name": "Heartbeat",
        "namespace": "io.debezium.connector.common",
        "fields": [{"name": "ts_ms", "type": "long"}],
        "connect.name": "io.debezium.connector.common.Heartbeat",
    },
    ODD: {
        "type": "record",
        "name": "Odd",
        "fields": [{"name": "x", "type": ["int", "string"]}],
    },
}


class Schemas(Registry):
    """A registry with schemas in memory."""

    def __init__(self) -> None:
        super().__init__(RegistryOptions(url="http://127.0.0.1:1"))

    def by_id(self, schema_id: int) -> AvroSchema:
        if schema_id not in SCHEMAS:
            raise BadValueError(f"schema id {schema_id} is not in the registry")
        return AvroSchema(SCHEMAS[schema_id], {})


def avro(schema_id: int, record: dict[str, Any], schema: Any = None) -> bytes:
    stream = io.BytesIO()
    parsed = fastavro.parse_schema(schema or SCHEMAS[schema_id])
    fastavro.schemaless_writer(stream, parsed, record)
    return struct.pack(">bI", 0, schema_id) + stream.getvalue()


def key(number: int) -> bytes:
    return avro(KEY, {"id": number})


def event(op: str, number: int, schema: Any = None, **row: Any) -> tuple[bytes, bytes]:
    whole = {"id": number, "price": None, "day": None, "blob": None, "days": None, **row}
    before, after = (whole, None) if op == "d" else (None, whole)
    source = {"db": "shop", "schema": "public", "table": "orders"}
    record = {"before": before, "after": after, "source": source, "op": op}
    return key(number), avro(VALUE, record, schema)


def test_changes_have_the_types_of_their_schema() -> None:
    changes = decode(
        DebeziumAvroDecoder(Schemas()),
        [
            event("c", 1, price=Decimal("1.50"), blob=b"\0", days=[1, None]),
            event("d", 2),
            (key(2), None),
            (key(3), None),
        ],
    )
    assert changes.bad == []
    assert blocks_of(changes) == [
        (
            "public.orders",
            ("id",),
            [
                {"id": 1, "price": Decimal("1.50"), "blob": b"\0", "days": [1, None], "__op": "c"},
                {"id": 2, "__op": "d"},
                {"id": 3, "__op": "__tombstone"},
            ],
        )
    ]
    assert str(changes.blocks[0].schema.field("day").type) == "date32[day]"


def test_infinite_date_is_null_despite_its_logical_type() -> None:
    # How the connector writes infinity; Python has no such early date.
    plain = {"type": "int", "connect.name": "org.apache.kafka.connect.data.Date"}
    text = json.dumps(SCHEMAS[VALUE]).replace(json.dumps(DAY), json.dumps(plain))
    _, value = event("c", 1, day=-622191234, schema=json.loads(text))
    decoder = DebeziumAvroDecoder(Schemas(), unrepresentable="null")
    changes = decode(decoder, [(key(1), value)])
    assert (blocks_of(changes), changes.bad) == (
        [("public.orders", ("id",), [{"id": 1, "__op": "c"}])],
        [],
    )
    changes = decode(DebeziumAvroDecoder(Schemas()), [(key(1), value)])
    assert changes.bad == [(0, "column 'day': type date32[day] can't hold -622191234")]


def test_placeholder_in_bytes_is_an_unchanged_column() -> None:
    placeholder = b"__debezium_unavailable_value"
    events = [event("u", 1, blob=placeholder, days=list(placeholder))]
    [(_, _, rows)] = blocks_of(decode(DebeziumAvroDecoder(Schemas()), events))
    assert rows == [{"id": 1, "__op": "u", "__unsent": ["blob", "days"]}]


def test_heartbeats_are_skipped_and_bad_records_reported() -> None:
    changes = decode(
        DebeziumAvroDecoder(Schemas()),
        [
            (None, avro(HEARTBEAT, {"ts_ms": 1})),
            (None, b"{}"),
            (None, struct.pack(">bI", 0, 99)),
            (None, event("c", 1)[1] + b"\0"),
            (None, avro(ODD, {"x": 1})),
            event("c", 1),
        ],
    )
    assert changes.bad == [
        (1, "not in the registry's wire format: no schema id at the start"),
        (2, "schema id 99 is not in the registry"),
        (3, "does not match the Avro schema: 1 bytes left over"),
        (4, "its schema can't be read: it has a union of several types"),
    ]
    assert blocks_of(changes) == [("public.orders", ("id",), [{"id": 1, "__op": "c"}])]


def test_flattened_records_are_rows() -> None:
    changes = decode(DebeziumAvroDecoder(Schemas()), [(key(1), key(1))])
    assert blocks_of(changes) == [("public.orders", ("id",), [{"id": 1, "__op": "u"}])]


def test_used_decoder_can_be_pickled() -> None:
    decoder = DebeziumAvroDecoder(Schemas(), "(same)")
    decode(decoder, [event("c", 1)])
    copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301
    assert copy.placeholder == "(same)"


def shop(before: Any = None, source: Any = None, op: Any = "string") -> dict[str, Any]:
    """Return the schema of an envelope, with parts that no connector writes."""
    whole = json.loads(json.dumps(SCHEMAS[VALUE]))
    for name, kind in (("before", before), ("source", source), ("op", op)):
        [field] = [field for field in whole["fields"] if field["name"] == name]
        field["type"] = kind or field["type"]
    return whole  # type: ignore[no-any-return]


class OneSchemaRegistry(Schemas):
    """A registry that also has the given schema, with id 77."""

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self.schema = schema

    def by_id(self, schema_id: int) -> AvroSchema:
        return AvroSchema(self.schema, {}) if schema_id == 77 else super().by_id(schema_id)


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        (shop(op="int"), {"op": 1}),
        (shop(source="string"), {"source": "x"}),
        (
            shop(source={"type": "record", "name": "S", "fields": [{"name": "db", "type": "int"}]}),
            {"source": {"db": 5}},
        ),
    ],
)
def test_event_that_no_connector_writes_does_not_affect_its_neighbours(
    schema: Any, part: Any
) -> None:
    row = {"id": 1, "price": None, "day": None, "blob": None, "days": None}
    source = {"db": "shop", "schema": "public", "table": "orders"}
    record = {"before": None, "after": row, "source": source, "op": "c", **part}
    hostile = (key(1), avro(77, record, schema))

    changes = decode(
        DebeziumAvroDecoder(OneSchemaRegistry(schema)), [event("c", 8), hostile, event("c", 9)]
    )

    assert [place for place, _ in changes.bad] == [1]
    assert [row["id"] for _, _, rows in blocks_of(changes) for row in rows] == [8, 9]
