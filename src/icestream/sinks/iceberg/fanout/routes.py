"""Reads from a row which table it goes to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.catalog import shorten
from icestream.contracts.sink import ROUTE
from icestream.errors import BadRecordError, SchemaMismatchError
from icestream.sinks.iceberg.fanout.naming import TableNaming

if TYPE_CHECKING:
    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.sinks.iceberg.missing_values import MissingValues
    from icestream.sinks.iceberg.options import IcebergOptions

COLUMN = re.compile(r"(?:\w+|`[^`]+`)(?:\.(?:\w+|`[^`]+`))*")
PART = re.compile(r"\w+|`[^`]+`")
NO_NAME = "route_by: the row names no table, its value is null"


def column_path(route_by: str) -> tuple[str, ...] | None:
    """Return the column that `route_by` names; None if it is an expression."""
    if COLUMN.fullmatch(route_by.strip()) is None:
        return None
    return tuple(part.strip("`") for part in PART.findall(route_by))


@dataclass(frozen=True)
class Route:
    """From a row to its table.

    Attributes:
        path: the column with the name, and the way into it where that is a struct.
        namespace: where a bare name is.
        naming: which names are valid.
    """

    path: tuple[str, ...]
    namespace: Identifier
    naming: TableNaming

    @classmethod
    def of(cls, options: IcebergOptions, catalog: Catalog[Any]) -> Route:
        assert options.route_by is not None  # noqa: S101 - a fan-out has one
        path = column_path(options.route_by) or (ROUTE,)
        return cls(path, options.namespace, TableNaming.of(options, catalog))

    def check(self, columns: pa.Schema) -> None:
        """Look whether rows with these columns can name a table.

        Raises:
            SchemaMismatchError: they lack the column, or it holds no names.
        """
        shown = ".".join(self.path)
        kind: Any = pa.struct(list(columns))
        for name in self.path:
            index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if index < 0:
                raise SchemaMismatchError(
                    f"route_by: the rows have no column {shown!r}",
                    todo=f"Their columns: {', '.join(columns.names)}.",
                )
            kind = kind.field(index).type
        if pa.types.is_nested(kind):
            raise SchemaMismatchError(
                f"route_by: column {shown!r} is a {kind}, which names no table",
                todo="Use a column of text, or a Spark SQL expression that gives text.",
            )

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the name that each row gives, as text."""
        top, *rest = self.path
        column = batch.column(batch.schema.get_field_index(top))
        found = pc.struct_field(column, rest) if rest else column
        if pa.types.is_binary(found.type):
            return found.cast(pa.string())
        return found if pa.types.is_string(found.type) else found.cast(pa.string())

    def table_of(self, value: str) -> Identifier:
        """Return the namespace and table that a value names.

        Raises:
            ValueError: it names none; the message says why.
        """
        *namespace, table = value.split(".")
        try:
            return self.naming.identifier(namespace or self.namespace, table)
        except ValueError as exc:
            raise ValueError(f"route_by: {shorten(value)!r} {exc}") from None

    def tables(self, values: pa.Array) -> dict[str, Identifier]:
        """Return the table of each name among the values.

        Raises:
            BadRecordError: some row names none.
        """
        try:
            if values.null_count:
                raise ValueError(NO_NAME)
            return {value: self.table_of(value) for value in values.unique().to_pylist()}
        except ValueError as exc:
            raise bad_row(str(exc)) from None


def bad_row(reason: str) -> BadRecordError:
    """Return the error of a row that goes to no table."""
    return BadRecordError(
        reason,
        todo="Nothing of the batch was written. Leave such rows out with a `filter` transform, or "
        "set `on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`.",
    )


@dataclass(frozen=True)
class RouteFaults:
    """Tells why rows name no table, or can't be found in it again.

    Attributes:
        route: tells the table of a row.
        missing: tells which rows lack a part of their key; None if there are no keys.
    """

    route: Route
    missing: MissingValues | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.Array | None:
        nameless = self._nameless(batch)
        lacking = None if self.missing is None else self.missing(batch)
        if nameless is None or lacking is None:
            return lacking if nameless is None else nameless
        return pc.coalesce(nameless, lacking)

    def _nameless(self, batch: pa.RecordBatch) -> pa.Array | None:
        values = self.route.values(batch)
        reasons = {value: self._reason(value) for value in values.unique().to_pylist()}
        if not any(reasons.values()):
            return None
        return pa.array([reasons[value] for value in values.to_pylist()], pa.string())

    def _reason(self, value: str | None) -> str | None:
        if value is None:
            return NO_NAME
        try:
            self.route.table_of(value)
        except ValueError as exc:
            return str(exc)
        return None
