"""Fields that a record lacks, as opposed to fields that are null."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from tests.unit.formats.debezium_events import blocks_of, decode, envelope, member, with_schema

from icestream.contracts.changes import UNCHANGED_COLUMNS, unchanged_columns
from icestream.formats.avro import AvroDecoder
from icestream.formats.csv import CsvDecoder
from icestream.formats.debezium.json import DebeziumJsonDecoder
from icestream.formats.json import JsonDecoder

if TYPE_CHECKING:
    from icestream.contracts.decoder import Decoder

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.time64("us"))])


def absent(decoder: Decoder, *values: bytes, columns: pa.Schema = COLUMNS) -> list[Any]:
    array = pa.array(values, pa.binary())
    decoded = decoder.decode(array, columns)
    assert decoded.bad == ()
    flags = decoder.absent_fields(array, decoded.rows)
    return list(unchanged_columns(flags, len(values)).to_pylist())


def test_json() -> None:
    values = (b'{"id": 1, "name": null}', b'{"id": null, "name": "a"}', b'{"name": "a", "x": 1}')
    assert absent(JsonDecoder(), *values) == [["at"], ["at"], ["id", "at"]]
    whole = b'{"id": 1, "name": "a"}'
    assert absent(JsonDecoder(), whole, columns=COLUMNS.remove(2)) == [None]


def test_avro_by_the_schema_that_a_record_was_written_with() -> None:
    name = {"name": "name", "type": ["null", "string"]}
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, name]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": 1, "name": None})
    assert absent(AvroDecoder(schema), out.getvalue()) == [["at"]]


def test_csv_by_its_columns() -> None:
    layout = pa.schema([("id", pa.int64()), ("name", pa.string())])
    assert absent(CsvDecoder(layout), b"1,") == [["at"]]


def changes(*events: Any) -> list[dict[str, Any]]:
    decoder = DebeziumJsonDecoder()
    decoder.records_absent_fields = True
    [(_, _, rows)] = blocks_of(decode(decoder, [({"id": 1}, event) for event in events]))
    return rows


def test_debezium_without_schemas() -> None:
    rows = changes(
        envelope("u", after={"id": 1, "name": "a"}),
        envelope("u", after={"id": 1, "qty": 2, "at": None}),
        envelope("d", before={"id": 1}),
    )
    # A column that is null in every record that has it is reported all the same.
    assert [row.get(UNCHANGED_COLUMNS) for row in rows] == [["at", "qty"], ["name"], None]


def test_debezium_with_schemas() -> None:
    members = (member("id", "int64"), member("name", "string"))
    rows = changes(
        with_schema(envelope("u", after={"id": 1}), *members),
        with_schema(envelope("u", after={"id": 1, "name": None}), *members),
    )
    assert [row.get(UNCHANGED_COLUMNS) for row in rows] == [["name"], None]
