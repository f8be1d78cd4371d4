from __future__ import annotations

import io
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa

from icestream.decode.avro import AvroDecoder
from icestream.decode.registry import Registry, RegistryOptions

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long", "doc": "the id"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["NEW", "OLD"]}},
        {"name": "was", "type": ["null", "state"], "default": None},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "mixed", "type": ["null", "string", "long"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "line",
                    "fields": [{"name": "sku", "type": {"type": "string", "logicalType": "uuid"}}],
                },
            },
        },
    ],
}
UID = UUID("12345678-1234-5678-1234-567812345678")
ROW: dict[str, Any] = {
    "id": 1,
    "at": datetime(2024, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc),
    "local": datetime(2024, 1, 2, 3, 4, 5),  # noqa: DTZ001 - without a zone on purpose
    "on": date(2024, 1, 2),
    "price": Decimal("12.34"),
    "uid": UID,
    "state": "NEW",
    "was": "OLD",
    "note": None,
    "mixed": 7,
    "tags": {"a": 1},
    "lines": [{"sku": UID}],
}


def encode(row: dict[str, Any], schema: Any = SCHEMA) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_logical_types_become_arrow_types() -> None:
    assert AvroDecoder(SCHEMA).infer([]) == pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("on", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("uid", pa.string()),
            ("state", pa.string()),
            ("was", pa.string()),
            ("note", pa.string()),
            ("mixed", pa.string()),
            ("tags", pa.map_(pa.string(), pa.int32())),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
        ]
    )


def test_record_is_decoded_into_its_columns() -> None:
    decoder = AvroDecoder(SCHEMA)

    decoded = decoder.decode(binary(encode(ROW)), decoder.infer([]))

    assert decoded.bad == ()
    assert decoded.rows.to_pylist() == [
        {
            **ROW,
            "uid": str(UID),
            "mixed": "7",
            "tags": [("a", 1)],
            "lines": [{"sku": str(UID)}],
        }
    ]


def test_bad_values_spoil_no_neighbour() -> None:
    decoder = AvroDecoder(SCHEMA)
    good = encode(ROW)

    decoded = decoder.decode(binary(good, None, good[:-5], good + b"x", good), decoder.infer([]))

    assert decoded.rows.num_rows == 2
    assert decoded.kept is not None
    assert decoded.kept.to_pylist() == [0, 4]
    assert [place for place, _ in decoded.bad] == [1, 2, 3]
    assert decoded.bad[0][1] == "no value"
    assert decoded.bad[1][1].startswith("not Avro of the schema: ")
    assert decoded.bad[2][1] == "not Avro of the schema: 1 bytes are left over"


def test_value_that_does_not_fit_its_column_is_bad() -> None:
    columns = pa.schema([("id", pa.int32()), ("note", pa.string())])
    huge = encode({**ROW, "id": 1 << 40})

    decoded = AvroDecoder(SCHEMA).decode(binary(encode(ROW), huge, encode(ROW)), columns)

    assert decoded.rows.to_pylist() == [{"id": 1, "note": None}] * 2
    assert decoded.bad == ((1, "column 'id': 1099511627776 is not an int"),)


def test_fields_beyond_the_columns_are_new() -> None:
    columns = pa.schema([field for field in AvroDecoder(SCHEMA).infer([]) if field.name != "on"])

    assert AvroDecoder(SCHEMA).decode(binary(encode(ROW)), columns).new_fields == {
        "on": pa.date32()
    }


def test_value_without_a_schema_id_is_bad_with_a_registry() -> None:
    registry = Registry(RegistryOptions(url="http://127.0.0.1:9", user=None, password=None))

    decoded = AvroDecoder(registry=registry).decode(binary(b"{}"), pa.schema([("id", pa.int64())]))

    assert decoded.bad == ((0, "not Avro of a registry: it does not begin with a schema's id"),)
