"""MySQL and MariaDB, captured by Debezium, as a side of the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

# MySQL quotes names as Spark does.
from icestream.contracts.catalog import quote_for_spark as quote
from icestream.formats.debezium.values import micros_of_day
from icestream.verify.checksums import common_type
from icestream.verify.debezium import PASSES, RETRY_SECS
from icestream.verify.mysql_server import MySqlServer
from icestream.verify.side import DatabaseSide, Point, SideReader, SideTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from icestream.contracts.offset import Offset
    from icestream.sources.kafka.database import DatabaseOptions
    from icestream.verify.debezium import TopicLag
    from icestream.verify.side import LakeTable, TableNames

BLOCK_ROWS = 10_000
# Smaller parts cost more in connections than they save.
MIN_ROWS_PER_PART = 100_000
MAX_DIGITS = 38
MILLIS = 3
NAME_PARTS = 2  # database and table

COLUMNS = """
SELECT column_name, data_type, column_type, numeric_precision, numeric_scale, datetime_precision
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
KEY = """
SELECT column_name FROM information_schema.key_column_usage
WHERE table_schema = %s AND table_name = %s AND constraint_name = 'PRIMARY'
ORDER BY ordinal_position
"""

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TIMES = ("time", "datetime", "timestamp")


@dataclass(frozen=True)
class MySqlColumn:
    """A column as the database describes it.

    Attributes:
        name: its name.
        data_type: its type without length: `decimal`.
        column_type: its type in full: `decimal(10,2) unsigned`.
        precision: the digits of a number.
        scale: the decimal places of a number.
        fraction: the fractional digits of a time.
    """

    name: str
    data_type: str
    column_type: str
    precision: int | None = None
    scale: int | None = None
    fraction: int | None = None


def arrow_type(column: MySqlColumn, in_lake: pa.DataType) -> pa.DataType | None:
    """Return the type in which to compare a column; None if no form of it can be compared.

    The settings of the connector decide the form of some values, and the table's type shows it.
    """
    kind = column.data_type
    if kind in _INTEGERS:
        if pa.types.is_boolean(in_lake):
            return in_lake
        return pa.decimal128(20, 0) if pa.types.is_decimal(in_lake) else pa.int64()
    if kind == "decimal":
        digits, scale = column.precision or 10, column.scale or 0
        is_text = pa.types.is_string(in_lake) or digits > MAX_DIGITS
        return pa.string() if is_text else pa.decimal128(digits, scale)
    if kind == "bit":
        return pa.bool_() if column.precision == 1 else pa.binary()
    plain = {
        "double": pa.float64(),
        "date": pa.date32(),
        "time": pa.string(),
        "datetime": pa.timestamp("us"),
        "timestamp": pa.timestamp("us", "UTC"),
        **dict.fromkeys(_TEXTS, pa.string()),
        **dict.fromkeys(_BYTES, pa.binary()),
    }
    return plain.get(kind)


def column_problem(
    column: MySqlColumn, in_lake: pa.DataType, *, cuts_fractions: bool = False
) -> str:
    """Return why the values of a column can't be compared; empty if they can."""
    if column.data_type == "float":
        return "float, of which snapshots and the binary log give different digits"
    kind = arrow_type(column, in_lake)
    if kind is None:
        return f"{column.column_type}, which Debezium writes in another form"
    if cuts_fractions and column.data_type in _TIMES and (column.fraction or 0) > MILLIS:
        cut = "`time.precision.mode: connect` cuts to milliseconds"
        return f"{column.column_type}, which {cut}"
    if common_type(kind, in_lake) is None:
        return f"{column.column_type} in the database, {in_lake} in the lake"
    return ""


class MySqlSide(DatabaseSide):
    """Databases of a MySQL or MariaDB server whose tables Debezium captures.

    Args:
        options: how to connect.
        tables: the mirrored tables, by database and name.
        lag: counts the records that these do not have yet.
    """

    passes = PASSES
    retry_secs = RETRY_SECS

    def __init__(
        self, options: DatabaseOptions, tables: Mapping[TableNames, LakeTable], lag: TopicLag
    ) -> None:
        self._server = MySqlServer(options)
        self._lakes, self._lag = tables, lag
        self._columns: dict[TableNames, dict[str, MySqlColumn]] = {}

    def identity(self) -> str:
        return self._server.where

    def tables(self) -> list[TableNames]:
        return sorted(self._lakes)

    def is_fully_loaded(self, table: TableNames, mark: Offset) -> bool:  # noqa: ARG002
        return True

    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        behind = self._lag.behind(marks)
        with self._server.connect() as session:
            described = {name: self._describe(session, name) for name in marks}
        label = datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        tables = {name: table for name, table in described.items() if table is not None}
        return Point(label, tables, behind=behind)

    def _describe(self, session: Any, name: TableNames) -> SideTable | None:
        # Records of other databases may name their tables in another way.
        rows = session.rows(COLUMNS, name) if len(name) == NAME_PARTS else []
        if not rows:
            return None
        columns = [MySqlColumn(*row) for row in rows]
        self._columns[name] = {column.name: column for column in columns}
        lake = self._lakes[name].columns
        fields, left_out = [], {}
        for column in columns:
            in_lake = lake.field(column.name).type if column.name in lake.names else pa.string()
            cuts = self._server.options.cuts_fractions
            problem = column_problem(column, in_lake, cuts_fractions=cuts)
            if column.name in lake.names and problem:
                left_out[column.name] = problem
            else:
                fields.append(pa.field(column.name, arrow_type(column, in_lake) or in_lake))
        key = tuple(row[0] for row in session.rows(KEY, name))
        return SideTable(name, pa.schema(fields), key, left_out=left_out)

    def parts(self, table: SideTable, count: int) -> Sequence[MySqlRange]:
        whole = [MySqlRange()]
        key = table.key[0] if len(table.key) == 1 else None
        if key is None or self._columns[table.names][key].data_type not in _INTEGERS:
            return whole
        column, name = quote(key), quote(*table.names)
        with self._server.connect() as session:
            query = f"SELECT min({column}), max({column}), count(*) FROM {name}"  # noqa: S608
            ((first, last, rows),) = session.rows(query)
        parts = min(count, (rows or 0) // MIN_ROWS_PER_PART)
        if parts < 2:
            return whole
        step = (last - first) // parts + 1
        edges = [first + step * number for number in range(1, parts)]
        return [
            MySqlRange(key, low, high)
            for low, high in zip([None, *edges], [*edges, None], strict=True)
        ]

    def reader(self, table: SideTable) -> MySqlReader:
        columns = self._columns[table.names]
        return MySqlReader(
            self._server.options,
            table.names,
            tuple(columns[name] for name in table.columns.names),
            table.columns,
        )

    def close(self) -> None:
        self._lag.close()


@dataclass(frozen=True)
class MySqlRange:
    """Some rows of a table: all of them, or those whose key is in a range.

    Attributes:
        key: the column of the key; None for all rows.
        first: the smallest key; None for no limit.
        before: the first key that is not in the range; None for no limit.
    """

    key: str | None = None
    first: int | None = None
    before: int | None = None

    def where(self) -> tuple[str, list[int]]:
        """Return the SQL condition and its parameters."""
        if self.key is None:
            return "true", []
        tests = [(">=", self.first), ("<", self.before)]
        given = [(sign, value) for sign, value in tests if value is not None]
        conditions = " AND ".join(f"{quote(self.key)} {sign} %s" for sign, _ in given)
        return conditions or "true", [value for _, value in given]


@dataclass(frozen=True)
class MySqlReader(SideReader):
    """Reads ranges of a table, each in a transaction of its own.

    Attributes:
        options: how to connect.
        table: database and name.
        columns: the columns to read.
        schema: their types.
    """

    options: DatabaseOptions
    table: TableNames
    columns: tuple[MySqlColumn, ...]
    schema: pa.Schema

    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        names = ", ".join(quote(column.name) for column in self.columns)
        condition, values = part.where()
        query = f"SELECT {names} FROM {quote(*self.table)} WHERE {condition}"  # noqa: S608
        converters = [
            converter(column, field.type)
            for column, field in zip(self.columns, self.schema, strict=True)
        ]
        with MySqlServer(self.options).connect() as session:
            for rows in session.blocks(query, values, BLOCK_ROWS):
                arrays = [
                    convert(list(column))
                    for convert, column in zip(converters, zip(*rows, strict=True), strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def converter(column: MySqlColumn, kind: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    """Return the function from values of PyMySQL to those that Debezium's become in the lake."""
    one: Callable[[Any], Any] | None = None
    if column.data_type == "time":
        return lambda values: micros_of_day(pa.array(map(_micros, values), pa.int64()))
    if column.data_type == "decimal" and pa.types.is_string(kind):
        one = "{:f}".format
    elif column.data_type == "bit":
        length = -(-(column.precision or 1) // 8)
        one = any if pa.types.is_boolean(kind) else lambda value: _little_endian(value, length)
    elif pa.types.is_boolean(kind):
        one = bool
    elif column.data_type == "bigint" and pa.types.is_integer(kind):
        one = _signed
    elif column.data_type in ("date", "datetime", "timestamp"):
        one = _valid_date

    def convert(values: list[Any]) -> pa.Array:
        if one is not None:
            values = [None if value is None else one(value) for value in values]
        return pa.array(values, kind)

    return convert


def _micros(value: timedelta | None) -> int | None:
    return None if value is None else value // timedelta(microseconds=1)


def _little_endian(value: bytes, length: int) -> bytes:
    return value[::-1].ljust(length, b"\0")


def _signed(value: int) -> int:
    """Return an unsigned number as the signed one with the same bits, as Debezium does."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _valid_date(value: Any) -> Any:
    """Return a date; None for a zero date, which PyMySQL returns as text."""
    return value if isinstance(value, date) else None
