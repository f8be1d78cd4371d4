"""Spark SQL's data types, read without a JVM: `decimal(10,2)`, `array<struct<id:int>>`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from icestream.contracts.registry import did_you_mean
from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

_UTC = pa.timestamp("us", tz="UTC")
_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": _UTC,
    "timestamp_ltz": _UTC,
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}
_DECIMALS = ("decimal", "dec", "numeric")
_SIZED = ("char", "character", "varchar")
_NESTED = ("array", "map", "struct")
# Types that a table can't have, or that only some versions of Spark know: left to Spark.
_OTHERS = ("void", "interval", "variant", "time", "geometry", "geography")
TYPE_NAMES = (*_PLAIN, *_DECIMALS, *_SIZED, *_NESTED)

MAX_DIGITS = 38
EXAMPLE = "Write a type of Spark SQL, e.g. `bigint`, `decimal(10,2)` or `array<string>`."
TOKEN = re.compile(r"\s*(\w+|`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\S)")


class _UnsureError(Exception):
    """The text may be a type that this reader does not know."""


def parse_spark_type(text: str) -> pa.DataType | None:
    """Return the Arrow type of a type of Spark SQL; None if only Spark can tell.

    Raises:
        PlanError: Spark refuses the text.
    """
    try:
        return _TypeReader(text).read()
    except _UnsureError:
        return None


def find_unknown_type(text: str) -> str | None:
    """Return the word in a text that should be a type and is not; None if there is none."""
    reader = _TypeReader(text)
    try:
        reader.read()
    except (PlanError, _UnsureError):
        return reader.unknown
    return None


def unknown_type(name: str) -> tuple[str, str]:
    """Return what is wrong with a word that is not a type, and what to do."""
    return f"no type is called {name!r}", f"{did_you_mean(name, TYPE_NAMES)}{EXAMPLE}"


def is_type_name(name: str) -> bool:
    """Tell whether a type of Spark SQL may start with this word."""
    return name.lower() in (*TYPE_NAMES, *_OTHERS)


def sql_type(kind: pa.DataType) -> str:
    """Return the SQL name of an Arrow type, as messages show it; that of a nested type is short."""
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for is_kind, name in _NAMES if is_kind(kind)), str(kind))


_NAMES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_int64, "bigint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int8, "tinyint"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_struct, "struct"),
    (pa.types.is_map, "map"),
    (pa.types.is_list, "array"),
    (pa.types.is_large_list, "array"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
)


class _TypeReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = TOKEN.findall(text)
        self.at = 0
        self.unknown: str | None = None

    def read(self) -> pa.DataType:
        kind = self.type()
        if self.next() is not None:
            if self.next() == "collate":
                raise _UnsureError
            self.refuse()
        return kind

    def next(self) -> str | None:
        return self.tokens[self.at].lower() if self.at < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.next()
        if token is None or (expected is not None and token != expected):
            self.refuse()
        self.at += 1
        return str(self.tokens[self.at - 1])

    def refuse(self) -> NoReturn:
        raise PlanError(f"not a type: {self.text!r}", todo=EXAMPLE)

    def type(self) -> pa.DataType:
        word = self.take()
        name = word.lower()
        if name in _OTHERS:
            raise _UnsureError
        if name in _PLAIN:
            return _PLAIN[name]
        if name in _DECIMALS:
            return self.decimal()
        if name in _SIZED:
            self.sizes(1, 1)
            return pa.string()
        build: dict[str, Callable[[], pa.DataType]] = {
            "array": self.array, "map": self.map, "struct": self.struct,
        }  # fmt: skip
        if name in build:
            return build[name]()
        if not word.isidentifier():
            self.refuse()
        self.unknown = word
        what, todo = unknown_type(word)
        raise PlanError(what, todo=todo)

    def sizes(self, least: int, most: int) -> list[int]:
        found: list[int] = []
        if self.next() == "(":
            self.take()
            while len(found) < most:
                number = self.take()
                if not number.isdecimal():
                    self.refuse()
                found.append(int(number))
                if self.next() != ",":
                    break
                self.take()
            self.take(")")
        if len(found) < least:
            self.refuse()
        return found

    def decimal(self) -> pa.DataType:
        sizes = self.sizes(0, 2)
        precision, scale = sizes[0] if sizes else 10, sizes[1] if len(sizes) > 1 else 0
        if not 1 <= precision <= MAX_DIGITS or scale > precision:
            raise PlanError(
                f"decimal({precision},{scale}) is not a type",
                todo=f"The precision is 1 to {MAX_DIGITS}, the scale at most the precision.",
            )
        return pa.decimal128(precision, scale)

    def array(self) -> pa.DataType:
        self.take("<")
        element = self.type()
        self.take(">")
        return pa.list_(element)

    def map(self) -> pa.DataType:
        self.take("<")
        key = self.type()
        self.take(",")
        value = self.type()
        self.take(">")
        return pa.map_(key, value)

    def struct(self) -> pa.DataType:
        self.take("<")
        members: list[tuple[str, pa.DataType]] = []
        while self.next() != ">":
            name = self.take().strip("`").replace("``", "`")
            if self.next() == ":":
                self.take()
            members.append((name, self.type()))
            if self.next() not in (",", ">"):
                raise _UnsureError  # NOT NULL, COMMENT, COLLATE
            if self.next() == ",":
                self.take()
        self.take(">")
        return pa.struct(members)
