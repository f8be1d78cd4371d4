"""Chooses a decoder by the name of its format, and reads the `schema` option."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from icestream.errors import PlanError
from icestream.formats.ddl import parse_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import Decoder
    from icestream.formats.schema_registry import RegistryOptions


Format: TypeAlias = Literal[
    "json", "avro", "debezium-json", "debezium-avro", "csv", "string", "bytes"
]

# Formats whose records are changes to tables.
CHANGES = ("debezium-json", "debezium-avro")
# What their decoders want to know beside a record's value: columns of `Records.extra`.
RECORD_KEY = "record_key"
RECORD_TOPIC = "record_topic"


@dataclass(frozen=True)
class GivenSchema:
    """What the `schema` option says.

    Attributes:
        columns: the columns, in order.
        avro: the Avro schema as parsed JSON, if it was written as one.
    """

    columns: pa.Schema
    avro: Any = None


def read_schema(text: str) -> GivenSchema:
    """Read a schema: DDL, an Avro schema as JSON, or the path of a file with either.

    A path ends in `.ddl`, `.sql`, `.avsc` or `.json`.

    Raises:
        PlanError: there is no such file, or it holds no schema.
    """
    if text.strip().endswith((".ddl", ".sql", ".avsc", ".json")):
        path = Path(text.strip())
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror.lower() if isinstance(exc, OSError) and exc.strerror else "not text"
            raise PlanError(f"schema: file {str(path)!r} can't be read: {why}") from exc
    if not text.lstrip().startswith("{"):
        return GivenSchema(parse_ddl(text))
    try:
        avro = json.loads(text)
    except ValueError as exc:
        raise PlanError(f"schema: the Avro schema is not JSON: {exc}") from exc
    return GivenSchema(_avro_columns(avro), avro)


def _avro_columns(schema: Any) -> pa.Schema:
    from icestream.formats.avro_types import AvroFields

    try:
        return AvroFields(schema).columns
    except (KeyError, TypeError, AttributeError) as exc:
        raise PlanError(f"schema: the Avro schema lacks a part: {exc}") from exc


def make_decoder(
    name: str,
    *,
    schema: GivenSchema | None = None,
    registry: RegistryOptions | None = None,
    subjects: tuple[str, ...] = (),
) -> Decoder:
    """Return the decoder of a format. Touches no network.

    Args:
        name: one of `Format`.
        schema: the `schema` option, read.
        registry: a schema registry, for Avro.
        subjects: the registry's subjects that tell the columns, such as `orders-value`.

    Raises:
        PlanError: the format needs a schema and none is given, or gives changes, not rows.
    """
    if name == "json":
        from icestream.formats.json import JsonDecoder

        return JsonDecoder(ignores_new=schema is not None)
    if name in ("string", "bytes"):
        from icestream.formats.text import BytesDecoder, StringDecoder

        return StringDecoder() if name == "string" else BytesDecoder()
    if name == "csv":
        return _csv(schema)
    if name == "avro":
        return _avro(schema, registry, subjects)
    raise PlanError(f"format {name!r} gives changes to tables, not rows")


def make_change_decoder(
    name: str,
    *,
    registry: RegistryOptions | None = None,
    placeholder: str,
    unrepresentable: Literal["fail", "null"],
) -> ChangeDecoder | None:
    """Return the decoder of a format that gives changes; None for one that gives rows.

    Args:
        name: one of `Format`.
        registry: a schema registry, for Avro.
        placeholder: what stands for a large value that did not change.
        unrepresentable: what becomes of values that no table can hold.

    Raises:
        PlanError: the format needs a registry and none is given.
    """
    if name == "debezium-json":
        from icestream.formats.debezium.json import DebeziumJsonDecoder

        return DebeziumJsonDecoder(placeholder, unrepresentable=unrepresentable)
    if name != "debezium-avro":
        return None
    from icestream.formats.debezium.avro import DebeziumAvroDecoder
    from icestream.formats.schema_registry import Registry

    if registry is None:
        raise PlanError(
            "format 'debezium-avro' needs a schema registry, and none is given",
            todo="Add e.g. `schema_registry: {url: ...}`.",
        )
    return DebeziumAvroDecoder(Registry(registry), placeholder, unrepresentable=unrepresentable)


def _csv(schema: GivenSchema | None) -> Decoder:
    from icestream.formats.csv import CsvDecoder

    if schema is None:
        raise PlanError(
            "format 'csv' needs a schema, and none is given",
            todo="Add e.g. `schema: id bigint, name string`: a line alone has no names.",
        )
    return CsvDecoder(schema.columns)


def _avro(
    schema: GivenSchema | None, registry: RegistryOptions | None, subjects: tuple[str, ...]
) -> Decoder:
    from icestream.formats.avro import AvroDecoder
    from icestream.formats.schema_registry import Registry

    if registry is not None:
        return AvroDecoder(None, Registry(registry), subjects)
    if schema is None or schema.avro is None:
        raise PlanError(
            "format 'avro' needs an Avro schema or a schema registry, and neither is given",
            todo="Add e.g. `schema: orders.avsc`, or `schema_registry: {url: ...}`.",
        )
    return AvroDecoder(schema.avro)
