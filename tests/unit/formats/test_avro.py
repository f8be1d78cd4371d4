from __future__ import annotations

import io
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from icestream.errors import BadRecordError
from icestream.formats.avro import AvroDecoder
from icestream.formats.schema_registry import AvroSchema, Registry, RegistryOptions
from icestream.sources.files.parts import FilePart
from icestream.sources.files.readers import read_avro

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


def test_bad_values_do_not_affect_their_neighbours() -> None:
    decoder = AvroDecoder(SCHEMA)
    good = encode(ROW)

    decoded = decoder.decode(binary(good, None, good[:-5], good + b"x", good), decoder.infer([]))

    assert decoded.rows.num_rows == 2
    assert decoded.kept is not None
    assert decoded.kept.to_pylist() == [0, 4]
    assert [place for place, _ in decoded.bad] == [1, 2, 3]
    assert decoded.bad[0][1] == "no value"
    assert decoded.bad[1][1].startswith("does not match the Avro schema: ")
    assert decoded.bad[2][1] == "does not match the Avro schema: 1 bytes left over"


def test_value_that_does_not_fit_its_column_is_bad() -> None:
    columns = pa.schema([("id", pa.int32()), ("note", pa.string())])
    huge = encode({**ROW, "id": 1 << 40})

    decoded = AvroDecoder(SCHEMA).decode(binary(encode(ROW), huge, encode(ROW)), columns)

    assert decoded.rows.to_pylist() == [{"id": 1, "note": None}] * 2
    assert decoded.bad == ((1, "column 'id': 1099511627776 is not an int"),)


def test_fields_without_a_column_are_reported_as_new() -> None:
    columns = pa.schema([field for field in AvroDecoder(SCHEMA).infer([]) if field.name != "on"])

    assert AvroDecoder(SCHEMA).decode(binary(encode(ROW)), columns).new_fields == {
        "on": pa.date32()
    }


def test_value_without_a_schema_id_is_bad_with_a_registry() -> None:
    registry = Registry(RegistryOptions(url="http://127.0.0.1:9", user=None, password=None))

    decoded = AvroDecoder(registry=registry).decode(binary(b"{}"), pa.schema([("id", pa.int64())]))

    assert decoded.bad == ((0, "not in the registry's wire format: no schema id at the start"),)


def decimals(precision: int, scale: int) -> dict[str, Any]:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}


def test_decimal_of_more_than_38_digits_is_text() -> None:
    number = Decimal("-12345678901234567890123456789012345678901234567890.1234567890")
    decoder = AvroDecoder(decimals(60, 10))

    decoded = decoder.decode(binary(encode({"a": number}, decimals(60, 10))), decoder.infer([]))

    assert decoder.infer([]) == pa.schema([("a", pa.string())])
    assert decoded.rows.to_pylist() == [{"a": str(number)}]


def test_decimal_beyond_the_precision_of_its_schema_is_bad() -> None:
    raw = encode({"a": Decimal("12345678901.23")}, decimals(13, 2))
    decoder = AvroDecoder(decimals(5, 2))

    decoded = decoder.decode(binary(raw), decoder.infer([]))

    assert decoded.bad == ((0, "column 'a': 12345678901.23 is not a decimal(5,2)"),)


def test_decimal_that_does_not_fit_a_column_of_another_scale_is_bad() -> None:
    raw = encode({"a": Decimal(400000000000000000000)}, decimals(38, 0))

    decoded = AvroDecoder(decimals(38, 0)).decode(
        binary(raw), pa.schema([("a", pa.decimal128(38, 18))])
    )

    assert decoded.bad == ((0, "column 'a': 400000000000000000000 is not a decimal(38,18)"),)


def test_record_of_a_union_keeps_its_name() -> None:
    branches = [
        {"type": "record", "name": name, "fields": [{"name": "x", "type": "double"}]}
        for name in ("A", "B")
    ]
    fields = [{"name": "a", "type": ["null", *branches]}]
    schema = {"type": "record", "name": "r", "namespace": "shop", "fields": fields}
    decoder = AvroDecoder(schema)

    decoded = decoder.decode(
        binary(encode({"a": ("shop.B", {"x": 0.1})}, schema), encode({"a": None}, schema)),
        decoder.infer([]),
    )

    assert decoded.rows.to_pylist() == [{"a": '{"shop.B":{"x":0.1}}'}, {"a": None}]


@pytest.mark.parametrize(
    ("kind", "value", "column", "shown"),
    [
        ("double", 1.5, pa.int64(), "1.5 is not a bigint"),
        ("double", 1e40, pa.float32(), "1e+40 is not a float"),
        ("long", 9007199254740993, pa.float64(), "9007199254740993 is not a double"),
        ("boolean", True, pa.float64(), "true is not a double"),
        ("long", 5, pa.timestamp("us", "UTC"), "5 is not a timestamp"),
        ("string", "ab", pa.list_(pa.string()), "'ab' is not an array"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2024, 1, 2, 3, tzinfo=timezone.utc),
            pa.date32(),
            "'2024-01-02 03:00:00+00:00' is not a date",
        ),
    ],
)
def test_value_of_another_type_than_its_column_is_bad(
    kind: Any, value: Any, column: pa.DataType, shown: str
) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}

    decoded = AvroDecoder(schema).decode(
        binary(encode({"a": value}, schema)), pa.schema([("a", column)])
    )

    assert decoded.bad == ((0, f"column 'a': {shown}"),)


def test_endlessly_nested_value_is_bad() -> None:
    fields = [{"name": "next", "type": ["null", "r"]}]
    schema = {"type": "record", "name": "r", "fields": fields}
    decoder = AvroDecoder(schema)
    short = encode({"next": {"next": None}}, schema)

    decoded = decoder.decode(binary(b"\x02" * 100_000 + b"\x00", short), decoder.infer([]))

    assert decoded.bad == ((0, "does not match the Avro schema: nested thousands of levels deep"),)
    assert decoded.rows.to_pylist() == [{"next": {"next": None}}]


class Answers(Registry):
    """A registry that returns the given schema for every id."""

    def __init__(self, schema: Any) -> None:
        super().__init__(RegistryOptions(url="http://127.0.0.1:9"))
        self.schema = schema

    def by_id(self, schema_id: int) -> AvroSchema:
        return AvroSchema(self.schema, {})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "enum", "name": "e", "symbols": ["A"]},
            "schema: the Avro schema is not a record",
        ),
        ("string", "schema: the Avro schema is not a record"),
        (["null", "string"], "schema: the Avro schema is not a record"),
        ({"type": "object", "properties": {}}, "schema: the Avro schema is not a record"),
        ({"type": "record", "name": "r"}, "'fields'"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "what"}]},
            "schema: unknown Avro type 'what'",
        ),
        (
            {
                "type": "record",
                "name": "r",
                "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
            },
            "schema: arrays of null are not supported",
        ),
    ],
)
def test_record_with_an_unusable_schema_is_bad(schema: Any, reason: str) -> None:
    decoder = AvroDecoder(registry=Answers(schema))
    value = b"\x00\x00\x00\x00\x07x"

    decoded = decoder.decode(binary(value, value), pa.schema([("id", pa.int64())]))

    text = f"its schema can't be used: {reason}"
    assert [why for _, why in decoded.bad] == [text, text]
    assert decoder.infer([value]) == pa.schema([])


def test_file_keeps_decimals_and_the_names_of_union_branches() -> None:
    def record(name: str) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]}

    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    union = {"name": "a", "type": ["null", record("R"), record("S")]}
    schema = {"type": "record", "name": "r", "fields": [union, {"name": "d", "type": decimal}]}

    def read(number: str) -> list[Any]:
        file = io.BytesIO()
        wider = {**decimal, "precision": 9}
        wider_schema = {**schema, "fields": [union, {"name": "d", "type": wider}]}
        row = {"a": ("S", {"x": 1}), "d": Decimal(number)}
        fastavro.writer(file, fastavro.parse_schema(wider_schema), [row])
        written = file.getvalue().replace(b'"precision": 9', b'"precision": 4')
        batches = read_avro(io.BytesIO(written), FilePart("x", 0, 0), "x", None)
        return [row for batch in batches for row in batch.to_pylist()]

    assert read("12.34") == [{"a": '{"S":{"x":1}}', "d": Decimal("12.34")}]
    with pytest.raises(BadRecordError, match=r"file 'x' cannot be read as avro: .*precision"):
        read("12345.67")
