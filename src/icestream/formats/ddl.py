"""Schemas written as DDL: `id bigint NOT NULL, tags array<string>`."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.registry import did_you_mean
from icestream.errors import ConfigError, IcestreamError, PlanError
from icestream.schemas.spark_types import TYPE_NAMES, find_unknown_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_TODO = (
    "Write columns as in Spark SQL, e.g. `id bigint, at timestamp, price decimal(10,2), "
    "tags array<string>, who struct<name:string>`."
)

_PLAIN_TYPES: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "SMALLINT": pa.int32(),
    "TINYINT": pa.int32(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
}


def parse_ddl(text: str) -> pa.Schema:
    """Return the columns that `text` lists.

    Comments are kept as the field's metadata `doc`; `NOT NULL` makes a field that is not nullable.
    Smaller integers become 32-bit ones, the smallest that Iceberg has.

    Raises:
        PlanError: a part of the text is not a column; the message names that part.
        ConfigError: several parts are not.
    """
    fields: dict[str, pa.Field] = {}
    faults: list[IcestreamError] = []
    for part in _parts(text):
        try:
            field = _parse_column(part)
        except PlanError as exc:
            faults.append(exc)
            continue
        if field.name in fields:
            faults.append(_fault(f"column {field.name!r} is listed twice", todo=""))
        fields[field.name] = field
    if not fields and not faults:
        faults.append(_fault("it lists no columns"))
    if faults:
        raise faults[0] if len(faults) == 1 else ConfigError(faults)
    return pa.schema(fields.values())


def _fault(what: str, todo: str = _TODO) -> PlanError:
    return PlanError(what, where="schema", todo=todo)


def _parts(text: str) -> Iterator[str]:
    """Split at the commas that are outside of brackets and quotes."""
    depth, quote, begin = 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char in "(<":
            depth += 1
        elif char in ")>":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[begin:index].strip()
            begin = index + 1
    last = text[begin:].strip()
    if last:
        yield last


def _parse_column(part: str) -> pa.Field:
    # sqlglot takes 250 ms to import, and most pipelines need no DDL.
    import sqlglot
    from sqlglot import errors, exp

    fault = _not_a_column(part)
    try:
        with _without_log("sqlglot"):
            statement = sqlglot.parse_one(f"CREATE TABLE t ({part})", dialect="spark")
    except (errors.ParseError, errors.TokenError):
        raise fault from None
    columns = statement.this.expressions if isinstance(statement.this, exp.Schema) else []
    if len(columns) != 1 or not isinstance(columns[0], exp.ColumnDef) or columns[0].kind is None:
        raise fault
    return _field(columns[0], part)


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """Keep a library's warnings from the user, who gets an error of our own instead."""

    def refuse(_: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger(name)
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


def _not_a_column(part: str) -> PlanError:
    unknown = find_unknown_type(part.strip().partition(" ")[2])
    if unknown is None:
        return _fault(f"{part!r} is not a column with a type")
    return _fault(
        f"{part!r} has the unknown type {unknown!r}",
        f"{did_you_mean(unknown, (*TYPE_NAMES, 'time'))}{_TODO}",
    )


def _field(column: Any, part: str) -> pa.Field:
    from sqlglot import exp

    nullable, doc = True, None
    for constraint in column.args.get("constraints") or ():
        kind = constraint.kind
        if isinstance(kind, exp.NotNullColumnConstraint) and not kind.args.get("allow_null"):
            nullable = False
        elif isinstance(kind, exp.CommentColumnConstraint):
            doc = kind.this.name
        else:
            raise _fault(
                f"{part!r} has {constraint.sql('spark')!r}, which is not supported here",
                "Only NOT NULL and COMMENT may follow a column's type.",
            )
    metadata = None if doc is None else {b"doc": doc.encode()}
    return pa.field(column.name, _arrow_type(column.kind, part), nullable, metadata)


def _arrow_type(kind: Any, part: str) -> pa.DataType:
    name = kind.this.name
    plain = _PLAIN_TYPES.get(name)
    if plain is not None:
        return plain
    build = _BUILDERS.get(name)
    if build is None:
        raise _fault(f"{part!r} has the unknown type {kind.sql('spark')!r}")
    return build(kind, part)


def _decimal(kind: Any, part: str) -> pa.DataType:
    sizes = [int(size.this.name) for size in kind.expressions] or [10]
    precision, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise _fault(
            f"{part!r} has decimal({precision},{scale}), which Iceberg does not support",
            "The precision is 1 to 38, the scale at most the precision.",
        )
    return pa.decimal128(precision, scale)


def _list(kind: Any, part: str) -> pa.DataType:
    (element,) = _inner(kind, part, 1)
    return pa.list_(_arrow_type(element, part))


def _map(kind: Any, part: str) -> pa.DataType:
    key, value = _inner(kind, part, 2)
    return pa.map_(_arrow_type(key, part), _arrow_type(value, part))


def _struct(kind: Any, part: str) -> pa.DataType:
    from sqlglot import exp

    members = kind.expressions
    if not members or not all(isinstance(member, exp.ColumnDef) for member in members):
        raise _fault(f"{part!r} has a struct with unnamed fields")
    return pa.struct([_field(member, part) for member in members])


def _inner(kind: Any, part: str, count: int) -> list[Any]:
    inner = list(kind.expressions)
    if len(inner) != count:
        raise _fault(f"{part!r} has {kind.sql('spark')!r} without its element types")
    return inner


_BUILDERS: dict[str, Callable[[Any, str], pa.DataType]] = {
    "DECIMAL": _decimal,
    "ARRAY": _list,
    "LIST": _list,
    "MAP": _map,
    "STRUCT": _struct,
}
