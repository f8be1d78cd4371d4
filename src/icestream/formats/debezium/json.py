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
from icestream.formats.debezium import event_batch, schemaless_json
from icestream.formats.debezium.assembly import PLACEHOLDER, Key
from icestream.formats.debezium.decoder import DebeziumDecoder
from icestream.formats.debezium.event_batch import HIDDEN_FIELDS, Lot, flat_lot, row_columns
from icestream.formats.debezium.types import Column, ConnectType, columns_of, from_json
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
_QUICK = re.compile(rb'\s*\{\s*"schema"')
_PARSER = json.JSONDecoder()
_MOST_SCHEMAS = 1000
_NOT_NUMBERS = {"NaN", "Infinity", "-Infinity"}


class Headed:
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
            self._prepare(self.type)
        except (ValueError, AttributeError) as exc:
            self.fault = f"its schema can't be read: {exc}"

    def _prepare(self, told: ConnectType) -> None:
        self.is_aside = told.is_aside or told.kind != "struct"
        self.is_envelope = told.is_envelope
        if self.is_aside:
            return
        row = told.members["after"] if self.is_envelope else told
        self.columns = columns_of(row, is_text=True)
        written = [(column.name, column.written) for column in self.columns]
        columns = written
        if self.is_envelope:
            kind = pa.struct(written)
            columns = [("before", kind), ("after", kind), ("op", pa.string())]
            columns.append(("source", event_batch.SOURCE))
        self._decoder = _Payloads(self.columns, is_envelope=self.is_envelope)
        self._written = pa.schema(columns)

    def payload(self, value: bytes) -> bytes:
        """Return the payload of a value with this head."""
        return value[len(self.prefix) :].rstrip()[:-1]

    def read(self, places: list[int], payloads: list[bytes]) -> tuple[Lot | None, Bad]:
        """Read payloads of records."""
        if self.fault:
            return None, [(place, self.fault) for place in places]
        if self.is_aside:
            return None, []
        decoded = self._decoder.decode(pa.array(payloads, pa.binary()), self._written)
        at = np.array(places, np.int64)
        bad = [(places[index], reason) for index, reason in decoded.bad]
        if decoded.kept is not None:
            at = at[decoded.kept.to_numpy()]
        rows = decoded.rows
        if not self.is_envelope:
            return flat_lot(at, rows.to_struct_array(), self.columns), bad
        before, after, ops, source = rows.columns
        return Lot(at, ops, before, after, source, self.columns), bad


class _Payloads(JsonDecoder):
    """Reads payloads, with what Connect writes otherwise than its schema says."""

    def __init__(self, columns: tuple[Column, ...], *, is_envelope: bool) -> None:
        super().__init__(ignores_new=True)
        self._is_envelope = is_envelope
        self._decimals = {one.name: one.scale for one in columns if one.scale is not None}
        self._floats = {one.name for one in columns if "float" in str(one.written)}
        self._floats |= {one.name for one in columns if "double" in str(one.written)}

    def parse(self, value: bytes) -> dict[str, Any]:
        """Return one payload: not-a-numbers as such, and decimals as bytes if they are numbers."""
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
        self._heads: list[Headed] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_heads": []}

    def read_lots(self, values: Sequence[bytes | None], keys: Keys) -> tuple[list[Lot], Bad]:
        """Read the values of each schema, and those without, together."""
        headed: dict[int, tuple[Headed, list[int], list[bytes]]] = {}
        plain: tuple[list[int], list[bytes]] = ([], [])
        head: Headed | None = None
        for place, value in enumerate(values):
            if value is None:
                continue
            if head is None or not value.startswith(head.prefix):
                head = self._head(value)
            if head is None:
                plain[0].append(place)
                plain[1].append(value)
            elif head.type is None and not head.fault:
                plain[0].append(place)
                plain[1].append(head.payload(value))
            else:
                _, places, payloads = headed.setdefault(id(head), (head, [], []))
                places.append(place)
                payloads.append(head.payload(value))
        lots, bad = [], []
        for each, places, payloads in headed.values():
            lot, faults = each.read(places, payloads)
            bad += faults
            lots += [] if lot is None else [lot]
        if plain[0]:
            found, faults = schemaless_json.read(*plain, keys)
            lots += found
            bad += faults
        return lots, bad

    def absent_fields(
        self, values: Sequence[bytes | None], lot: Lot
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Look for the names of columns in the row of each record."""
        rows = [_row_of(parse_object(values[place] or b"")) for place in lot.places.tolist()]
        wanted = {column.name for column in lot.columns}
        for row in rows:
            wanted.update(name for name, value in (row or {}).items() if value is None)
        absent = {
            name: np.array([row is not None and name not in row for row in rows], np.bool_)
            for name in sorted(wanted - HIDDEN_FIELDS)
        }
        known = {column.name for column in lot.columns}
        return {name: flags for name, flags in absent.items() if flags.any() or name not in known}

    def _head(self, value: bytes) -> Headed | None:
        if _QUICK.match(value) is None:
            return None
        for number, head in enumerate(self._heads):
            if value.startswith(head.prefix):
                # The one that was used last is looked at first.
                self._heads.insert(0, self._heads.pop(number))
                return head
        found = _split(value)
        if found is not None:
            self._heads.insert(0, found)
            del self._heads[_MOST_SCHEMAS:]
        return found

    def read_key(self, key: bytes) -> Key | None:
        """Read a key, with or without its schema."""
        told: Any = parse_object(key)
        schema = None
        if told.keys() == {"schema", "payload"}:
            schema, told = told["schema"], told["payload"]
        if not isinstance(told, dict):
            return None
        if schema is not None:
            try:
                return Key(told, columns_of(from_json(schema), is_text=True))
            except (ValueError, AttributeError) as exc:
                raise BadValueError(f"the key's schema can't be read: {exc}") from None
        fields = schemaless_json.without_moments(infer_fields([told]))
        return Key(told, row_columns(fields))


def _row_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row that a change event brings; None if it brings none."""
    if record.keys() == {"schema", "payload"}:
        record = record["payload"]
    row = record.get("after") if schemaless_json.is_envelope(record) else record
    return row if isinstance(row, dict) else None


def _split(value: bytes) -> Headed | None:
    """Return the head of a value that begins like one with a schema; None if it is none."""
    try:
        text = value.decode()
        start = _SCHEMA.match(text)
        if start is None:
            return None
        schema, end = _PARSER.raw_decode(text, start.end())
    except (ValueError, RecursionError):
        return None
    follows = _PAYLOAD.match(text, end)
    return None if follows is None else Headed(text[: follows.end()].encode(), schema)


class DebeziumJsonFormat(Format):
    """Change events of Debezium in JSON."""

    name = "debezium-json"
    gives_changes = True

    def change_decoder(self, settings: FormatSettings) -> ChangeDecoder:
        return DebeziumJsonDecoder(
            settings.unavailable_value, unrepresentable=settings.unrepresentable
        )
