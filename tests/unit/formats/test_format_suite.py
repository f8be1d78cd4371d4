"""The public suite of formats, applied to ours; test_plugins.py applies it to an example plugin."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from tests.unit.formats.debezium_events import TOPIC, envelope

from icestream.contracts.decoder import FormatSettings
from icestream.formats.avro import AvroFormat
from icestream.formats.csv import CsvFormat
from icestream.formats.debezium.json import DebeziumJsonFormat
from icestream.formats.json import JsonFormat
from icestream.formats.lookup import RECORD_KEY, RECORD_TOPIC, read_schema
from icestream.formats.text import BytesFormat, StringFormat
from icestream.testing.format_suite import FormatSample, FormatSuite

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a"},
    {"id": 2, "name": None},
    {"id": 3, "name": "ö"},
]
AVRO = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def avro_record(row: dict[str, object]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, AVRO, row)
    return out.getvalue()


class TestJsonFormat(FormatSuite):
    @pytest.fixture
    def sample(self) -> FormatSample:
        return FormatSample(JsonFormat(), [json.dumps(row).encode() for row in ROWS], ROWS, b"{")


class TestCsvFormat(FormatSuite):
    not_held = {"new_fields": "the schema names every cell, and there are no others"}

    @pytest.fixture
    def sample(self) -> FormatSample:
        settings = FormatSettings(schema=read_schema("id bigint, name string"))
        records = [b"1,a", b"2,", "3,ö".encode()]
        rows = [{**row, "name": row["name"] or ""} for row in ROWS]
        return FormatSample(CsvFormat(), records, rows, b"x,y,z", settings)


class TestAvroFormat(FormatSuite):
    @pytest.fixture
    def sample(self) -> FormatSample:
        settings = FormatSettings(schema=read_schema(json.dumps(AVRO)))
        return FormatSample(
            AvroFormat(), [avro_record(row) for row in ROWS], ROWS, b"\xff", settings
        )


class TestStringFormat(FormatSuite):
    not_held = {"new_fields": "a value is one field, which `value` alone holds"}

    @pytest.fixture
    def sample(self) -> FormatSample:
        return FormatSample(
            StringFormat(), [b"a", b"b"], [{"value": "a"}, {"value": "b"}], b"\xff\xfe"
        )


class TestBytesFormat(FormatSuite):
    not_held = {"new_fields": "a value is one field, which `value` alone holds"}

    @pytest.fixture
    def sample(self) -> FormatSample:
        return FormatSample(
            BytesFormat(), [b"a", b"\xff"], [{"value": b"a"}, {"value": b"\xff"}], None
        )


class TestDebeziumJsonFormat(FormatSuite):
    @pytest.fixture
    def sample(self) -> FormatSample:
        records = [json.dumps(envelope("c", after=row)).encode() for row in ROWS]
        extra = {RECORD_KEY: b'{"id": 1}', RECORD_TOPIC: TOPIC}
        return FormatSample(DebeziumJsonFormat(), records, ROWS, b"{", extra=extra)
