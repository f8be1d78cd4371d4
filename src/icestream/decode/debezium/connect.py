"""Kafka Connect's schemas, which tell what Debezium's values mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENVELOPE = {"op", "source", "after"}
# Records beside those of tables: they say nothing about rows.
_ASIDE = (".Heartbeat", ".TransactionMetadataValue", ".SchemaChangeValue", ".MessageValue")


@dataclass(frozen=True)
class ConnectType:
    """A type of Kafka Connect.

    Attributes:
        kind: how a value is written: `int64`, `string`, `bytes`, `struct`, ...
        name: what the value means, such as `io.debezium.time.Date`; empty for no more than `kind`.
        parameters: what `name` needs besides, such as a scale.
        members: of a struct, by name.
        inner: of an array its elements, of a map its values.
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
    def is_aside(self) -> bool:
        """Whether values tell of the connector itself, not of rows."""
        return self.name.startswith("io.debezium.connector.") and self.name.endswith(_ASIDE)


def from_json(schema: Any) -> ConnectType:
    """Return the type that the `schema` part of a JSON record describes.

    Raises:
        ValueError: it is no schema.
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
        schema: as fastavro parses it, with full names.
        named: the types that are referred to by name.

    Raises:
        ValueError: it is a type that no connector writes.
    """
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ValueError("it has a union of several types")
        return from_avro(branches[0], named)
    if isinstance(schema, str):
        known = named.get(schema)
        plain = ConnectType(_AVRO_KINDS.get(schema, schema))
        return plain if known is None else from_avro(known, named)
    kind = schema["type"]
    return from_avro(kind, named) if isinstance(kind, (dict, list)) else _from_part(schema, named)


def _from_part(schema: Any, named: Mapping[str, Any]) -> ConnectType:
    kind, name = schema["type"], str(schema.get("connect.name") or "")
    told = schema.get("connect.parameters") or {}
    if kind == "record":
        members = {part["name"]: from_avro(part["type"], named) for part in schema["fields"]}
        return ConnectType("struct", name or schema["name"], told, members)
    inner = schema.get("items") or schema.get("values")
    if inner is not None:
        return ConnectType(kind, name, told, inner=from_avro(inner, named))
    return ConnectType(_AVRO_KINDS.get(kind, kind), name, told)
