"""Debezium in Avro, with a schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Format
from icestream.errors import PlanError
from icestream.formats.avro import read_record, schema_faults, schema_id_of
from icestream.formats.blocks import BadValueError
from icestream.formats.debezium.assembly import PLACEHOLDER, Key
from icestream.formats.debezium.decoder import DebeziumDecoder, EventSchema
from icestream.formats.debezium.event_batch import SOURCE, EventBatch, flat_event_batch
from icestream.formats.debezium.types import from_avro

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import FormatSettings
    from icestream.formats.debezium.assembly import Keys
    from icestream.formats.debezium.event_batch import Unrepresentable
    from icestream.formats.schema_registry import Registry

    Bad = list[tuple[int, str]]


class _AvroEventSchema(EventSchema):
    """An Avro schema that records were written with."""

    def __init__(self, schema: Any, references: dict[str, Any]) -> None:
        import fastavro

        named_schemas: dict[str, Any] = {}
        self.fault = ""
        try:
            for reference in references.values():
                fastavro.parse_schema(
                    _without_logical_types(reference), named_schemas=named_schemas
                )
            self.parsed = fastavro.parse_schema(
                _without_logical_types(schema), named_schemas=named_schemas
            )
            self.type = from_avro(self.parsed, _named_types(self.parsed, dict(named_schemas)))
            self.set_columns(self.type, is_text=False)
        except schema_faults() as exc:
            self.fault = f"its schema can't be read: {str(exc) or type(exc).__name__}"
            return
        if not self.is_connector_event:
            self.row = self.row_type()

    def event_batch(self, indices: list[int], records: list[dict[str, Any]]) -> EventBatch:
        """Return records as columns."""
        at = np.array(indices, np.int64)
        if not self.is_envelope:
            return flat_event_batch(at, pa.array(records, self.row), self.columns)
        return EventBatch(
            at,
            pa.array([record["op"] for record in records], pa.string()),
            pa.array([record["before"] for record in records], self.row),
            pa.array([record["after"] for record in records], self.row),
            pa.array([record["source"] for record in records], SOURCE),
            self.columns,
        )


def _without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are read unconverted: Connect's names give their meaning."""
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {
            name: part if name == "default" else _without_logical_types(part)
            for name, part in schema.items()
            if name != "logicalType"
        }
    return schema


def _named_types(schema: Any, named_schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the named types of a parsed schema."""
    if isinstance(schema, list):
        for branch in schema:
            _named_types(branch, named_schemas)
    elif isinstance(schema, dict):
        if isinstance(schema.get("name"), str) and "type" in schema:
            named_schemas[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _named_types(field["type"], named_schemas)
        for part in ("items", "values", "type"):
            _named_types(schema.get(part), named_schemas)
    return named_schemas


class DebeziumAvroDecoder(DebeziumDecoder):
    """Decodes change events in Avro.

    Args:
        registry: resolves the schema id that each record starts with.
        placeholder: what the connector writes for a large value that did not change.
        unrepresentable: see `DebeziumDecoder`.
    """

    def __init__(
        self,
        registry: Registry,
        placeholder: str = PLACEHOLDER,
        *,
        unrepresentable: Unrepresentable = "fail",
    ) -> None:
        super().__init__(placeholder, unrepresentable=unrepresentable)
        self.registry = registry
        self._writers: dict[int, _AvroEventSchema] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_writers": {}}

    def read_event_batches(
        self,
        values: Sequence[bytes | None],
        keys: Keys,  # noqa: ARG002
    ) -> tuple[list[EventBatch], Bad]:
        """Read the values of each schema together."""
        bad: Bad = []
        records_by_schema: dict[int, tuple[list[int], list[dict[str, Any]]]] = {}
        for index, value in enumerate(values):
            if value is None:
                continue
            try:
                schema_id = schema_id_of(value)
                writer = self._writer(schema_id)
                if writer.is_connector_event:
                    continue
                record = read_record(value, writer.parsed)
            except BadValueError as exc:
                bad.append((index, str(exc)))
                continue
            indices, records = records_by_schema.setdefault(schema_id, ([], []))
            indices.append(index)
            records.append(record)
        return [
            self._writers[schema_id].event_batch(indices, records)
            for schema_id, (indices, records) in records_by_schema.items()
        ], bad

    def read_key(self, key: bytes) -> Key | None:
        """Read a key."""
        writer = self._writer(schema_id_of(key))
        if writer.type.kind != "struct":
            return None
        return Key(read_record(key, writer.parsed), writer.columns)

    def _writer(self, schema_id: int) -> _AvroEventSchema:
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = _AvroEventSchema(*self.registry.by_id(schema_id))
        if writer.fault:
            raise BadValueError(writer.fault)
        return writer


class DebeziumAvroFormat(Format):
    """Change events of Debezium in Avro, with a schema registry."""

    name = "debezium-avro"
    required_packages = {"fastavro": "icestream[avro]"}
    gives_changes = True

    def change_decoder(self, settings: FormatSettings) -> ChangeDecoder:
        from icestream.formats.schema_registry import registry_of

        registry = registry_of(settings)
        if registry is None:
            raise PlanError(
                "format 'debezium-avro' needs a schema registry, and none is given",
                todo="Add e.g. `schema_registry: {url: ...}`.",
            )
        return DebeziumAvroDecoder(
            registry, settings.unavailable_value, unrepresentable=settings.unrepresentable
        )

    def missing_option(self, *, schema: bool, registry: bool) -> str | None:  # noqa: ARG002
        return None if registry else "`schema_registry`"
