"""Debezium in Avro, with a schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fastavro
import numpy as np
import pyarrow as pa

from icestream.contracts.decoder import Format
from icestream.errors import PlanError
from icestream.formats.avro import SCHEMA_FAULTS, read_record, schema_id_of
from icestream.formats.blocks import BadValueError
from icestream.formats.debezium import event_batch
from icestream.formats.debezium.assembly import PLACEHOLDER, Key
from icestream.formats.debezium.decoder import DebeziumDecoder
from icestream.formats.debezium.event_batch import Lot, flat_lot
from icestream.formats.debezium.types import ConnectType, columns_of, from_avro

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import FormatSettings
    from icestream.formats.debezium.assembly import Keys
    from icestream.formats.debezium.event_batch import Unrepresentable
    from icestream.formats.schema_registry import Registry

    Bad = list[tuple[int, str]]


class _Writer:
    """A schema that records were written with."""

    def __init__(self, schema: Any, references: dict[str, Any]) -> None:
        known: dict[str, Any] = {}
        self.fault = ""
        try:
            for reference in references.values():
                fastavro.parse_schema(_without_logic(reference), named_schemas=known)
            self.parsed = fastavro.parse_schema(_without_logic(schema), named_schemas=known)
            self.type = from_avro(self.parsed, _named(self.parsed, dict(known)))
            self._prepare(self.type)
        except SCHEMA_FAULTS as exc:
            self.fault = f"its schema can't be read: {str(exc) or type(exc).__name__}"

    def _prepare(self, told: ConnectType) -> None:
        self.is_aside = told.is_aside or told.kind != "struct"
        self.is_envelope = told.is_envelope
        if self.is_aside:
            return
        row = told.members["after"] if self.is_envelope else told
        self.columns = columns_of(row, is_text=False)
        self.row = pa.struct([(column.name, column.written) for column in self.columns])

    def lot(self, places: list[int], records: list[dict[str, Any]]) -> Lot:
        """Return records as columns."""
        at = np.array(places, np.int64)
        if not self.is_envelope:
            return flat_lot(at, pa.array(records, self.row), self.columns)
        return Lot(
            at,
            pa.array([record["op"] for record in records], pa.string()),
            pa.array([record["before"] for record in records], self.row),
            pa.array([record["after"] for record in records], self.row),
            pa.array([record["source"] for record in records], event_batch.SOURCE),
            self.columns,
        )


def _without_logic(schema: Any) -> Any:
    """Return a schema whose values are read as they are written: Connect's names tell the rest."""
    if isinstance(schema, list):
        return [_without_logic(branch) for branch in schema]
    if isinstance(schema, dict):
        return {
            name: part if name == "default" else _without_logic(part)
            for name, part in schema.items()
            if name != "logicalType"
        }
    return schema


def _named(schema: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Return the named types of a parsed schema."""
    if isinstance(schema, list):
        for branch in schema:
            _named(branch, known)
    elif isinstance(schema, dict):
        if isinstance(schema.get("name"), str) and "type" in schema:
            known[schema["name"]] = schema
        for field in schema.get("fields", ()):
            _named(field["type"], known)
        for part in ("items", "values", "type"):
            _named(schema.get(part), known)
    return known


class DebeziumAvroDecoder(DebeziumDecoder):
    """Decodes change events in Avro.

    Args:
        registry: where schemas are fetched by the id that each record begins with.
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
        self._writers: dict[int, _Writer] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_writers": {}}

    def read_lots(self, values: Sequence[bytes | None], keys: Keys) -> tuple[list[Lot], Bad]:  # noqa: ARG002
        """Read the values of each schema together."""
        bad: Bad = []
        found: dict[int, tuple[list[int], list[dict[str, Any]]]] = {}
        for place, value in enumerate(values):
            if value is None:
                continue
            try:
                schema_id = schema_id_of(value)
                writer = self._writer(schema_id)
                if writer.is_aside:
                    continue
                record = read_record(value, writer.parsed)
            except BadValueError as exc:
                bad.append((place, str(exc)))
                continue
            places, records = found.setdefault(schema_id, ([], []))
            places.append(place)
            records.append(record)
        return [self._writers[number].lot(*each) for number, each in found.items()], bad

    def read_key(self, key: bytes) -> Key | None:
        """Read a key."""
        writer = self._writer(schema_id_of(key))
        if writer.type.kind != "struct":
            return None
        return Key(read_record(key, writer.parsed), writer.columns)

    def _writer(self, schema_id: int) -> _Writer:
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = _Writer(*self.registry.by_id(schema_id))
        if writer.fault:
            raise BadValueError(writer.fault)
        return writer


class DebeziumAvroFormat(Format):
    """Change events of Debezium in Avro, with a schema registry."""

    name = "debezium-avro"
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
