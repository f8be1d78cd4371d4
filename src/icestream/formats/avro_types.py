"""Maps Avro schemas to Arrow types, and adapts decoded Avro values to them."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.errors import PlanError
from icestream.formats.values import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

    Adapt = Callable[[Any], Any] | None


_MAX_PRECISION = 38
_PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


_EXACT = Context(prec=1_000_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MAX_SCALE = 100_000


def _read_decimal(data: bytes, writer: Any, reader: Any = None) -> Decimal:  # noqa: ARG001
    scale = writer.get("scale", 0)
    if abs(scale) > _MAX_SCALE:
        raise ValueError(f"a scale of {scale}")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)


@cache
def reader_arguments() -> dict[str, bool]:
    """Make fastavro read decimals exactly, and return the arguments that its readers need.

    By default, fastavro rounds a number to the precision in the schema. With these arguments, a
    value of a union of several named types comes with the name of its type.
    """
    import fastavro.read as compiled_reader
    from fastavro import _read_py as plain_reader

    for module in (compiled_reader, plain_reader):
        for kind in ("bytes-decimal", "fixed-decimal"):
            module.LOGICAL_READERS[kind] = _read_decimal
    return {"return_named_type": True, "return_named_type_override": True}


class AvroFields:
    """The fields of one Avro record schema.

    Attributes:
        columns: the fields as Arrow columns, in order.
        adapt: for some fields, converts fastavro's value to one that Arrow takes.
        is_recursive: whether a type contains itself, so that records may be nested without limit.
    """

    def __init__(self, schema: Any, named: dict[str, Any] | None = None) -> None:
        self._named = dict(named or {})
        self.is_recursive = False
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise PlanError(
                "the Avro schema is not a record",
                where="schema",
                todo='Its outermost part must be `{"type": "record", "fields": [...]}`.',
            )
        self._collect(schema, "")
        fields, self.adapt = [], {}
        for field in schema["fields"]:
            kind, adapt = self._resolve(field["type"], ())
            doc = field.get("doc")
            metadata = {b"doc": doc.encode()} if isinstance(doc, str) else None
            fields.append(pa.field(field["name"], kind, metadata=metadata))
            if adapt is not None:
                self.adapt[field["name"]] = adapt
        self.columns = pa.schema(fields)

    def _collect(self, schema: Any, namespace: str) -> None:
        """Remember every named type, by its short and its full name."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, namespace)
        if not isinstance(schema, dict):
            return
        name = schema.get("name")
        if name and schema.get("type") in ("record", "enum", "fixed"):
            namespace = schema.get("namespace") or name.rpartition(".")[0] or namespace
            self._named[name] = schema
            self._named[f"{namespace}.{name.rpartition('.')[2]}"] = schema
        for field in schema.get("fields", ()):
            self._collect(field["type"], namespace)
        for key in ("items", "values", "type"):
            if isinstance(schema.get(key), (dict, list)):
                self._collect(schema[key], namespace)

    def _resolve(self, schema: Any, inside: tuple[int, ...]) -> tuple[pa.DataType, Adapt]:
        if isinstance(schema, list):
            return self._union(schema, inside)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema], None
            if schema not in self._named:
                raise PlanError(f"unknown Avro type {schema!r}", where="schema")
            return self._resolve(self._named[schema], inside)
        if id(schema) in inside:  # a type that contains itself has no Arrow type
            self.is_recursive = True
            return pa.string(), _as_json
        return self._complex(schema, (*inside, id(schema)))

    def _union(self, branches: list[Any], inside: tuple[int, ...]) -> tuple[pa.DataType, Adapt]:
        left = [branch for branch in branches if branch != "null"]
        if len(left) == 1:
            return self._resolve(left[0], inside)
        return (pa.string(), _as_json) if left else (pa.null(), None)

    def _complex(
        self, schema: dict[str, Any], inside: tuple[int, ...]
    ) -> tuple[pa.DataType, Adapt]:
        kind, logical = schema["type"], schema.get("logicalType")
        if kind in ("record", "array", "map"):
            return self._nested(schema, inside)
        if kind == "enum":
            return pa.string(), None
        if logical == "uuid":
            return pa.string(), _as_text
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(schema["precision"], schema.get("scale", 0))
        if kind == "fixed":
            return pa.binary(), None
        arrow_type = _LOGICAL.get((kind, str(logical))) if isinstance(kind, str) else None
        return (arrow_type, None) if arrow_type is not None else self._resolve(kind, inside)

    def _nested(self, schema: dict[str, Any], inside: tuple[int, ...]) -> tuple[pa.DataType, Adapt]:
        if schema["type"] == "array":
            kind, adapt = self._resolve(schema["items"], inside)
            if _takes_no_bytes(kind):
                # Four bytes could ask for a billion of them.
                raise PlanError("arrays of null are not supported", where="schema")
            return pa.list_(kind), _each(adapt)
        if schema["type"] == "map":
            kind, adapt = self._resolve(schema["values"], inside)
            return pa.map_(pa.string(), kind), _entries(adapt)
        members, adapts = [], {}
        for field in schema["fields"]:
            kind, adapt = self._resolve(field["type"], inside)
            members.append((field["name"], kind))
            if adapt is not None:
                adapts[field["name"]] = adapt
        return pa.struct(members), _members(adapts)


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _takes_no_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_takes_no_bytes(member.type) for member in kind)
    return bool(pa.types.is_null(kind))


def _decimal(precision: int, scale: int) -> tuple[pa.DataType, Adapt]:
    """Return the type of decimals, and how to adapt them: to text if a table can't hold them."""
    if 0 < precision <= _MAX_PRECISION and 0 <= scale <= precision:
        return pa.decimal128(precision, scale), None
    return pa.string(), lambda value: None if value is None else f"{value:f}"


def _as_json(value: Any) -> str | None:
    return None if value is None else json_text(_plain(value))


def _plain(value: Any) -> Any:
    """Return a value as JSON types; a value of a union comes under its type's name, as in Avro."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        name, item = value
        return {name: _plain(item)}
    if value is None or isinstance(value, bool | int | float | str | Decimal):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _each(adapt: Adapt) -> Adapt:
    if adapt is None:
        return None
    return lambda value: None if value is None else [adapt(item) for item in value]


def _entries(adapt: Adapt) -> Adapt:
    if adapt is None:
        return lambda value: None if value is None else list(value.items())
    return lambda value: None if value is None else [(k, adapt(item)) for k, item in value.items()]


def _members(adapts: dict[str, Callable[[Any], Any]]) -> Adapt:
    if not adapts:
        return None

    def adapt(value: Any) -> Any:
        if value is None:
            return None
        return {**value, **{name: adapts[name](value[name]) for name in adapts}}

    return adapt
