"""Kafka Connect schemas, which define the meaning of Debezium's values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats.debezium import values
from icestream.formats.debezium.values import MalformedValueError, from_base64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Convert = Callable[[pa.Array], pa.Array]


_ENVELOPE = {"op", "source", "after"}
# Records that do not belong to a table, and carry no rows.
_CONNECTOR_EVENTS = (
    ".Heartbeat",
    ".TransactionMetadataValue",
    ".SchemaChangeValue",
    ".MessageValue",
)


@dataclass(frozen=True)
class ConnectType:
    """A Kafka Connect type.

    Attributes:
        kind: how a value is encoded: `int64`, `string`, `bytes`, `struct`, ...
        name: the semantic type, such as `io.debezium.time.Date`; empty if `kind` says it all.
        parameters: the parameters of the semantic type, such as a scale.
        members: the members of a struct, by name.
        inner: the type of an array's elements, or of a map's values.
    """

    kind: str
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, ConnectType] = field(default_factory=dict)
    inner: ConnectType | None = None

    @property
    def is_envelope(self) -> bool:
        """Whether values are changes, with the row before and after."""
        return self.name.endswith(".Envelope") or self.members.keys() >= _ENVELOPE

    @property
    def is_connector_event(self) -> bool:
        """Whether values report on the connector itself, not on rows."""
        return self.name.startswith("io.debezium.connector.") and self.name.endswith(
            _CONNECTOR_EVENTS
        )


def from_json(schema: Any) -> ConnectType:
    """Return the type that the `schema` part of a JSON record describes.

    Raises:
        ValueError: it is not a schema.
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("type"), str):
        raise ValueError("it has a part without a type")
    members = {}
    for member in schema.get("fields") or ():
        members[str(member.get("field"))] = from_json(member)
    inner = schema.get("items") or schema.get("values")
    return ConnectType(
        kind=schema["type"],
        name=str(schema.get("name") or ""),
        parameters=dict(schema.get("parameters") or {}),
        members=members,
        inner=None if inner is None else from_json(inner),
    )


_AVRO_KINDS = {"int": "int32", "long": "int64", "enum": "string", "fixed": "bytes"}


def from_avro(schema: Any, named: Mapping[str, Any]) -> ConnectType:
    """Return the type that a parsed Avro schema describes.

    Args:
        schema: the schema as parsed by fastavro, with full names.
        named: the types that the schema refers to by name.

    Raises:
        ValueError: no connector writes such a type.
    """
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ValueError("it has a union of several types")
        return from_avro(branches[0], named)
    if isinstance(schema, str):
        if schema in named:
            return from_avro(named[schema], named)
        return ConnectType(_AVRO_KINDS.get(schema, schema))
    kind = schema["type"]
    return from_avro(kind, named) if isinstance(kind, (dict, list)) else _from_part(schema, named)


def _from_part(schema: Any, named: Mapping[str, Any]) -> ConnectType:
    kind, name = schema["type"], str(schema.get("connect.name") or "")
    parameters = schema.get("connect.parameters") or {}
    if kind == "record":
        members = {part["name"]: from_avro(part["type"], named) for part in schema["fields"]}
        return ConnectType("struct", name or schema["name"], parameters, members)
    inner = schema.get("items") or schema.get("values")
    if inner is not None:
        return ConnectType(kind, name, parameters, inner=from_avro(inner, named))
    return ConnectType(_AVRO_KINDS.get(kind, kind), name, parameters)


def _uuids(array: pa.Array) -> pa.Array:
    raw = [None if text is None else _uuid(text) for text in array.to_pylist()]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))


def _uuid(text: str) -> bytes:
    try:
        return UUID(text).bytes
    except ValueError:
        raise MalformedValueError(text, "a uuid") from None


_ENCODED_TYPES = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_ANY_SCALE = "io.debezium.data.VariableScaleDecimal"
_SEMANTIC_TYPES: dict[str, tuple[pa.DataType, Convert]] = {
    "io.debezium.time.Date": (pa.date32(), values.days),
    "io.debezium.time.Time": (pa.string(), values.millis_of_day),
    "io.debezium.time.MicroTime": (pa.string(), values.micros_of_day),
    "io.debezium.time.NanoTime": (pa.string(), values.nanos_of_day),
    "io.debezium.time.Timestamp": (pa.timestamp("us"), values.millis),
    "io.debezium.time.MicroTimestamp": (pa.timestamp("us"), values.micros),
    "io.debezium.time.NanoTimestamp": (pa.timestamp("us"), values.nanos),
    "io.debezium.time.ZonedTimestamp": (pa.timestamp("us", tz="UTC"), values.zoned),
    "io.debezium.time.IsoDate": (pa.date32(), values.iso_days),
    "io.debezium.time.IsoTime": (pa.string(), values.iso_times),
    "io.debezium.time.IsoTimestamp": (pa.timestamp("us"), values.iso_timestamps),
    "org.apache.kafka.connect.data.Date": (pa.date32(), values.days),
    "org.apache.kafka.connect.data.Time": (pa.string(), values.millis_of_day),
    "org.apache.kafka.connect.data.Timestamp": (pa.timestamp("us"), values.millis),
    "io.debezium.data.Uuid": (pa.uuid(), _uuids),
}


@dataclass(frozen=True)
class DebeziumColumn:
    """A column of a table.

    Attributes:
        name: its name in the table.
        written: the type that encodes its values in a record.
        kind: its type in the table.
        convert: converts from `written` to `kind`; None where they are the same.
        scale: the decimal places of numbers that are encoded as bytes; else None.
    """

    name: str
    written: pa.DataType
    kind: pa.DataType
    convert: Convert | None = None
    scale: int | None = None


def columns_of(row: ConnectType, *, is_text: bool) -> tuple[DebeziumColumn, ...]:
    """Return the columns of a row's type.

    Args:
        row: a struct.
        is_text: whether bytes are written as base64 text, as in JSON.

    Raises:
        ValueError: a type is unknown.
    """
    return tuple(_column(name, member, is_text=is_text) for name, member in row.members.items())


def _column(name: str, connect_type: ConnectType, *, is_text: bool) -> DebeziumColumn:
    written = _encoded_type(connect_type, is_text=is_text)
    kind, convert = _table_type(connect_type, written, is_text=is_text)
    scale = int(connect_type.parameters.get("scale", 0)) if connect_type.name == _DECIMAL else None
    return DebeziumColumn(name, written, kind, convert, scale)


def _encoded_type(connect_type: ConnectType, *, is_text: bool) -> pa.DataType:
    plain = _ENCODED_TYPES.get(connect_type.kind)
    if plain is not None:
        return plain
    if connect_type.kind == "bytes":
        return pa.string() if is_text else pa.binary()
    if connect_type.kind == "struct":
        return pa.struct(
            [
                (name, _encoded_type(part, is_text=is_text))
                for name, part in connect_type.members.items()
            ]
        )
    if connect_type.kind == "array" and connect_type.inner is not None:
        return pa.list_(_encoded_type(connect_type.inner, is_text=is_text))
    if connect_type.kind == "map" and connect_type.inner is not None:
        return pa.map_(pa.string(), _encoded_type(connect_type.inner, is_text=is_text))
    raise ValueError(f"unknown type {connect_type.kind!r}")


def _table_type(
    connect_type: ConnectType, written: pa.DataType, *, is_text: bool
) -> tuple[pa.DataType, Convert | None]:
    if connect_type.name in _SEMANTIC_TYPES:
        return _SEMANTIC_TYPES[connect_type.name]
    if connect_type.name == _DECIMAL:
        return values.decimals(connect_type.parameters, is_text=is_text)
    if connect_type.name == _ANY_SCALE:
        return pa.string(), values.any_scale(is_text=is_text)
    if connect_type.kind in ("array", "map", "struct"):
        return _nested(connect_type, written, is_text=is_text)
    return (pa.binary(), _bytes) if connect_type.kind == "bytes" and is_text else (written, None)


def _nested(
    connect_type: ConnectType, written: pa.DataType, *, is_text: bool
) -> tuple[pa.DataType, Convert | None]:
    if connect_type.kind == "struct" or connect_type.inner is None:
        return _struct(connect_type, is_text=is_text)
    is_map = pa.types.is_map(written)
    part = written.item_type if is_map else written.value_type
    kind, convert = _table_type(connect_type.inner, part, is_text=is_text)
    whole = pa.map_(pa.string(), kind) if is_map else pa.list_(kind)
    if convert is None:
        return whole, None
    return whole, _entries(whole, convert) if is_map else _items(whole, convert)


def _items(whole: pa.DataType, convert: Convert) -> Convert:
    def convert_items(array: pa.Array) -> pa.Array:
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(
            pa.array(ends), convert(array.flatten()), type=whole, mask=mask
        )

    return convert_items


def _entries(whole: pa.DataType, convert: Convert) -> Convert:
    def convert_entries(array: pa.Array) -> pa.Array:
        items = iter(convert(array.items).to_pylist())
        return pa.array(
            [
                None if entries is None else [(key, next(items)) for key, _ in entries]
                for entries in array.to_pylist()
            ],
            whole,
        )

    return convert_entries


def _struct(connect_type: ConnectType, *, is_text: bool) -> tuple[pa.DataType, Convert | None]:
    parts = [_column(name, part, is_text=is_text) for name, part in connect_type.members.items()]
    whole = pa.struct([(part.name, part.kind) for part in parts])
    if all(part.convert is None for part in parts):
        return whole, None

    def convert_members(array: pa.Array) -> pa.Array:
        arrays = [
            values if part.convert is None else part.convert(values)
            for part, values in zip(parts, array.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(
            arrays, fields=list(whole), mask=array.is_null() if array.null_count else None
        )

    return whole, convert_members


def _bytes(array: pa.Array) -> pa.Array:
    return pa.array([from_base64(text) for text in array.to_pylist()], pa.binary())


def inferred_columns(columns: Iterable[pa.Field]) -> tuple[DebeziumColumn, ...]:
    """Return columns of JSON without a schema, whose values are kept unconverted."""
    return tuple(_inferred_column(field) for field in columns)


def _inferred_column(field: pa.Field) -> DebeziumColumn:
    # A struct with exactly these two members is a number with its scale, whatever the column is.
    if pa.types.is_struct(field.type) and set(field.type.names) == {"scale", "value"}:
        kinds = (field.type.field("scale").type, field.type.field("value").type)
        if kinds == (pa.int64(), pa.string()):
            return DebeziumColumn(
                field.name, field.type, pa.string(), values.any_scale(is_text=True)
            )
    return DebeziumColumn(field.name, field.type, field.type)
