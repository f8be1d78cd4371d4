"""PostgreSQL, captured by Debezium, as a side of the comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.sources.postgres_cdc.tables import DEFAULT, FULL
from icestream.sources.postgres_cdc.types import NUMERIC
from icestream.verify.checksums import common_type
from icestream.verify.debezium import PASSES, RETRY_SECS
from icestream.verify.postgres_side import PostgresReader, PostgresSide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icestream.contracts.offset import Offset
    from icestream.sources.kafka.database import DatabaseOptions
    from icestream.sources.postgres_cdc.tables import PgColumn, PgTable
    from icestream.verify.debezium import TopicLag
    from icestream.verify.side import LakeTable, Point, SideTable, TableNames

# Types whose text PostgreSQL and Debezium write alike, and elements of arrays that they do.
_SAME_TEXT = {
    *("text", "character varying", "character", "name", "json", "jsonb", "xml", "citext"),
    *("time without time zone", "inet", "cidr", "macaddr", "numeric"),
    *("int4range", "int8range", "numrange", "daterange"),
}
_SAME_ELEMENTS = {
    *("text", "character varying", "smallint", "integer", "bigint", "boolean", "real"),
    "double precision",
}
_MILLIS = 3
_TIMES = {1083, 1114, 1184, 1266}


class DebeziumPostgresSide(PostgresSide):
    """A PostgreSQL database whose tables Debezium captures.

    Args:
        options: how to connect.
        tables: the mirrored tables.
        lag: counts the records that these do not have yet.
    """

    passes = PASSES
    retry_secs = RETRY_SECS

    def __init__(
        self, options: DatabaseOptions, tables: Mapping[TableNames, LakeTable], lag: TopicLag
    ) -> None:
        schemas = sorted({name[0] for name in tables})
        super().__init__(
            PostgresCdcOptions(
                host=options.host,
                port=options.server_port,
                database=options.database or "",
                user=options.user,
                password=options.password,
                sslmode=options.sslmode,
                tables=tuple(f"{schema}.*" for schema in schemas),
                snapshot="only",
                unrepresentable="null",
            )
        )
        self._database, self._lakes, self._lag = options, tables, lag

    def tables(self) -> list[TableNames]:
        if not self._lakes:
            return []
        super().tables()
        self._tables = {
            name: _without_row_key(table)
            for name, table in self._tables.items()
            if name in self._lakes
        }
        return sorted(self._lakes)

    def is_fully_loaded(self, table: TableNames, mark: Offset) -> bool:  # noqa: ARG002
        return True

    def point(self, marks: Mapping[TableNames, Offset]) -> Point:
        behind = self._lag.behind(marks)
        return replace(super().point(marks), behind=behind)

    def _describe(self, table: PgTable) -> SideTable:
        described = replace(super()._describe(table), caveat="")
        lake = self._lakes[table.names].columns
        left_out = {}
        for column in table.relation.columns:
            if column.name in lake.names:
                reason = self._problem(column, described.columns, lake)
                if reason:
                    left_out[column.name] = reason
        kept = [column for column in described.columns if column.name not in left_out]
        return replace(described, columns=pa.schema(kept), left_out=left_out)

    def _problem(self, column: PgColumn, columns: pa.Schema, lake: pa.Schema) -> str:
        """Return why the values of a column can't be compared; empty if they can."""
        name = self._driver.types.name_of(column.type_oid, column.typmod)
        kind, in_lake = columns.field(column.name).type, lake.field(column.name).type
        is_precise = not 0 <= column.typmod <= _MILLIS
        if self._database.cuts_fractions and column.type_oid in _TIMES and is_precise:
            return f"{name}, which `time.precision.mode: connect` cuts to milliseconds"
        if common_type(kind, in_lake) is None:
            return f"{name} in the database, {in_lake} in the lake"
        base = name.partition("(")[0]
        is_other = base not in _SAME_TEXT and not self._is_enum(column.type_oid)
        if pa.types.is_string(kind) and is_other:
            return f"{name}, which Debezium writes in another form"
        if pa.types.is_list(kind) and base.removesuffix("[]") not in _SAME_ELEMENTS:
            return f"{name}, which Debezium writes in another form"
        return ""

    def _is_enum(self, oid: int) -> bool:
        found = self._driver.session.row(
            "SELECT coalesce((SELECT typtype = 'e' FROM pg_catalog.pg_type WHERE oid = %s), false)",
            [oid],
        )
        return bool(found[0])

    def reader(self, table: SideTable) -> DebeziumPostgresReader:
        plain = super().reader(table)
        relation = self._tables[table.names].relation
        numbers = tuple(
            column.name
            for column in relation.columns
            if column.type_oid == NUMERIC and column.name in table.columns.names
        )
        return DebeziumPostgresReader(plain.options, plain.snapshot, numbers)

    def close(self) -> None:
        super().close()
        self._lag.close()


@dataclass(frozen=True)
class DebeziumPostgresReader(PostgresReader):
    """Reads rows with numbers of any scale as Debezium writes them: without zeros at the end.

    Attributes:
        numbers: the columns of type `numeric`.
    """

    numbers: tuple[str, ...] = ()

    def read(self, part: Any) -> Iterator[pa.RecordBatch]:
        for batch in super().read(part):
            arrays = [
                _trimmed(array)
                if name in self.numbers and pa.types.is_string(array.type)
                else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)


def _trimmed(numbers: pa.Array) -> pa.Array:
    is_fraction = pc.match_substring(numbers, ".")
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(numbers, "0"), ".")
    # Debezium has no form for these.
    is_finite = pc.match_substring_regex(numbers, r"^-?\d")
    return pc.if_else(is_finite, pc.if_else(is_fraction, trimmed, numbers), None)


def _without_row_key(table: PgTable) -> PgTable:
    """Return a table whose equal rows each count, as Debezium appends them."""
    relation = table.relation
    if relation.identity == FULL and not relation.key:
        return replace(table, relation=replace(relation, identity=DEFAULT))
    return table
