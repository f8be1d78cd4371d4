"""Debezium in JSON, each record with its schema (`schemas.enable=true`) or without."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Format
from icestream.formats.blocks import BadValueError
from icestream.formats.debezium import schemaless_json
from icestream.formats.debezium.assembly import PLACEHOLDER, Key
from icestream.formats.debezium.decoder import DebeziumDecoder, EventSchema
from icestream.formats.debezium.event_batch import (
    HIDDEN_FIELDS,
    SOURCE,
    EventBatch,
    flat_event_batch,
    row_columns,
)
from icestream.formats.debezium.types import ConnectType, DebeziumColumn, columns_of, from_json
from icestream.formats.debezium.values import as_bytes
from icestream.formats.inference import infer_fields
from icestream.formats.json import JsonDecoder, parse_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import FormatSettings
    from icestream.formats.debezium.assembly import Keys
    from icestream.formats.debezium.event_batch import Unrepresentable

    Bad = list[tuple[int, str]]


_SCHEMA = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')
_SCHEMA_BYTES = re.compile(rb'\s*\{\s*"schema"')
_PARSER = json.JSONDecoder()
_MAX_SCHEMAS = 1000
_NOT_NUMBERS = {"NaN", "Infinity", "-Infinity"}


class SchemaHeader(EventSchema):
    """The part of a value up to its payload: the same bytes for all records of a schema.

    Args:
        prefix: those bytes.
        schema: the schema as parsed JSON; None if it is null.
    """

    def __init__(self, prefix: bytes, schema: Any) -> None:
        self.prefix = prefix
        self.fault = ""
        self.type: ConnectType | None = None
        if schema is None:
            return
        try:
            self.type = from_json(schema)
            self.set_columns(self.type, is_text=True)
        except (ValueError, AttributeError) as exc:
            self.fault = f"its schema can't be read: {exc}"
            return
        if not self.is_connector_event:
            self._decoder = _PayloadDecoder(self.columns, is_envelope=self.is_envelope)
            self._payload_schema = self._schema_of_payloads()

    def _schema_of_payloads(self) -> pa.Schema:
        row = self.row_type()
        if not self.is_envelope:
            return pa.schema(row)
        return pa.schema([("before", row), ("after", row), ("op", pa.string()), ("source", SOURCE)])

    def payload(self, value: bytes) -> bytes:
        """Return the payload of a value with this header."""
        return value[len(self.prefix) :].rstrip()[:-1]

    def read(self, indices: list[int], payloads: list[bytes]) -> tuple[EventBatch | None, Bad]:
        """Read payloads of records."""
        if self.fault:
            return None, [(index, self.fault) for index in indices]
        if self.is_connector_event:
            return None, []
        decoded = self._decoder.decode(pa.array(payloads, pa.binary()), self._payload_schema)
        at = np.array(indices, np.int64)
        bad = [(indices[index], reason) for index, reason in decoded.bad]
        if decoded.kept is not None:
            at = at[decoded.kept.to_numpy()]
        rows = decoded.rows
        if not self.is_envelope:
            return flat_event_batch(at, rows.to_struct_array(), self.columns), bad
        before, after, ops, source = rows.columns
        return EventBatch(at, ops, before, after, source, self.columns), bad


class _PayloadDecoder(JsonDecoder):
    """Reads payloads, including values that Connect encodes differently from their schema."""

    def __init__(self, columns: tuple[DebeziumColumn, ...], *, is_envelope: bool) -> None:
        super().__init__(ignores_new=True)
        self._is_envelope = is_envelope
        self._decimals = {col.name: col.scale for col in columns if col.scale is not None}
        self._floats = {
            col.name
            for col in columns
            if "float" in str(col.written) or "double" in str(col.written)
        }

    def parse(self, value: bytes) -> dict[str, Any]:
        """Return one payload with `NaN` and infinities as floats, and numeric decimals as bytes."""
        record = parse_object(value)
        rows = [record]
        if self._is_envelope:
            rows = [record[part] for part in ("before", "after") if record.get(part)]
        for row in (row for row in rows if isinstance(row, dict)):
            for name in self._floats & row.keys():
                row[name] = _as_float(row[name])
            for name, scale in self._decimals.items():
                if isinstance(row.get(name), str | None) or scale is None:
                    continue
                row[name] = base64.b64encode(_number_bytes(name, row[name], scale)).decode()
        return record


def _number_bytes(name: str, value: Any, scale: int) -> bytes:
    try:
        return as_bytes(value, scale)
    except (ValueError, TypeError, ArithmeticError) as exc:
        raise BadValueError(f"column {name!r}: {exc}") from None


def _as_float(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_float(item) for item in value]
    return float(value) if isinstance(value, str) and value in _NOT_NUMBERS else value


class DebeziumJsonDecoder(DebeziumDecoder):
    """Decodes change events in JSON."""

    def __init__(
        self, placeholder: str = PLACEHOLDER, *, unrepresentable: Unrepresentable = "fail"
    ) -> None:
        super().__init__(placeholder, unrepresentable=unrepresentable)
        self._headers: list[SchemaHeader] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_headers": []}

    def read_event_batches(
        self, values: Sequence[bytes | None], keys: Keys
    ) -> tuple[list[EventBatch], Bad]:
        """Read the values of each schema together, and those without a schema together."""
        by_header: dict[int, tuple[SchemaHeader, list[int], list[bytes]]] = {}
        without_schema: tuple[list[int], list[bytes]] = ([], [])
        header: SchemaHeader | None = None
        for index, value in enumerate(values):
            if value is None:
                continue
            if header is None or not value.startswith(header.prefix):
                header = self._header_for(value)
            if header is None:
                without_schema[0].append(index)
                without_schema[1].append(value)
            elif header.type is None and not header.fault:
                without_schema[0].append(index)
                without_schema[1].append(header.payload(value))
            else:
                _, indices, payloads = by_header.setdefault(id(header), (header, [], []))
                indices.append(index)
                payloads.append(header.payload(value))
        event_batches, bad = [], []
        for header, indices, payloads in by_header.values():
            event_batch, faults = header.read(indices, payloads)
            bad += faults
            event_batches += [] if event_batch is None else [event_batch]
        if without_schema[0]:
            schemaless, faults = schemaless_json.read(*without_schema, keys)
            event_batches += schemaless
            bad += faults
        return event_batches, bad

    def absent_fields(
        self, values: Sequence[bytes | None], event_batch: EventBatch
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Find by column the records whose row has no field for it."""
        rows = [
            _row_of(parse_object(values[index] or b"")) for index in event_batch.indices.tolist()
        ]
        names = {column.name for column in event_batch.columns}
        for row in rows:
            names.update(name for name, value in (row or {}).items() if value is None)
        absent = {
            name: np.array([row is not None and name not in row for row in rows], np.bool_)
            for name in sorted(names - HIDDEN_FIELDS)
        }
        columns = {column.name for column in event_batch.columns}
        return {name: flags for name, flags in absent.items() if flags.any() or name not in columns}

    def _header_for(self, value: bytes) -> SchemaHeader | None:
        if _SCHEMA_BYTES.match(value) is None:
            return None
        for position, header in enumerate(self._headers):
            if value.startswith(header.prefix):
                # The most recently used header comes first.
                self._headers.insert(0, self._headers.pop(position))
                return header
        new = _parse_header(value)
        if new is not None:
            self._headers.insert(0, new)
            del self._headers[_MAX_SCHEMAS:]
        return new

    def read_key(self, key: bytes) -> Key | None:
        """Read a key, with or without its schema."""
        payload: Any = parse_object(key)
        schema = None
        if payload.keys() == {"schema", "payload"}:
            schema, payload = payload["schema"], payload["payload"]
        if not isinstance(payload, dict):
            return None
        if schema is not None:
            try:
                return Key(payload, columns_of(from_json(schema), is_text=True))
            except (ValueError, AttributeError) as exc:
                raise BadValueError(f"the key's schema can't be read: {exc}") from None
        fields = schemaless_json.without_timestamps(infer_fields([payload]))
        return Key(payload, row_columns(fields))


def _row_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row that a change event carries; None if it carries none."""
    if record.keys() == {"schema", "payload"}:
        record = record["payload"]
    row = record.get("after") if schemaless_json.is_envelope(record) else record
    return row if isinstance(row, dict) else None


def _parse_header(value: bytes) -> SchemaHeader | None:
    """Parse the header of a value that carries its schema; None if it has none."""
    try:
        text = value.decode()
        start = _SCHEMA.match(text)
        if start is None:
            return None
        schema, end = _PARSER.raw_decode(text, start.end())
    except (ValueError, RecursionError):
        return None
    payload = _PAYLOAD.match(text, end)
    return None if payload is None else SchemaHeader(text[: payload.end()].encode(), schema)


class DebeziumJsonFormat(Format):
    """Change events of Debezium in JSON."""

    name = "debezium-json"
    gives_changes = True

    def change_decoder(self, settings: FormatSettings) -> ChangeDecoder:
        return DebeziumJsonDecoder(
            settings.unavailable_value, unrepresentable=settings.unrepresentable
        )
