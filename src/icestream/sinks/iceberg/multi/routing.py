"""Routes rows to tables: finds the table of each row and stages rows by table."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.arrow import conform, group_by_bytes
from icestream.contracts.catalog import shorten
from icestream.contracts.sink import ROUTE, TaskWriter, WrittenFile
from icestream.contracts.transform import ROW
from icestream.errors import AttentionError, BadRecordError, SchemaMismatchError
from icestream.sinks.iceberg.multi.table_names import TableNameRules, column_path
from icestream.sinks.iceberg.writer import as_arrow_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.sinks.iceberg.missing_values import MissingValues
    from icestream.sinks.iceberg.options import IcebergOptions

NULL_ROUTE = "`route_by` is null for the row"


@dataclass(frozen=True)
class Route:
    """Maps a row to its table.

    Attributes:
        path: the column that holds the table name; for a member of a struct, the path to it.
        namespace: the namespace of names without one.
        naming: which names are valid.
    """

    path: tuple[str, ...]
    namespace: Identifier
    naming: TableNameRules

    @classmethod
    def of(cls, options: IcebergOptions, catalog: Catalog[Any]) -> Route:
        assert options.route_by is not None  # noqa: S101 - a fan-out has one
        path = column_path(options.route_by) or (ROUTE,)
        return cls(path, options.namespace, TableNameRules.of(options, catalog))

    def check(self, columns: pa.Schema) -> None:
        """Check that rows with these columns can name a table.

        Raises:
            SchemaMismatchError: the column is missing, or is not text.
        """
        column_name = ".".join(self.path)
        kind: Any = pa.struct(list(columns))
        for name in self.path:
            index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if index < 0:
                raise SchemaMismatchError(
                    f"route_by: the rows have no column {column_name!r}",
                    todo=f"Their columns: {', '.join(columns.names)}.",
                )
            kind = kind.field(index).type
        if pa.types.is_nested(kind):
            raise SchemaMismatchError(
                f"route_by: column {column_name!r} must be text, found {kind}",
                todo="Use a column of text, or a Spark SQL expression that gives text.",
            )

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the table name in each row, as text."""
        top, *rest = self.path
        column = batch.column(batch.schema.get_field_index(top))
        names = pc.struct_field(column, rest) if rest else column
        return names if pa.types.is_string(names.type) else names.cast(pa.string())

    def table_of(self, value: str) -> Identifier:
        """Return the namespace and table that a value names.

        Raises:
            ValueError: it is not a valid table name; the message says why.
        """
        *namespace, table = value.split(".")
        try:
            return self.naming.identifier(namespace or self.namespace, table)
        except ValueError as exc:
            raise ValueError(f"route_by: {shorten(value)!r} {exc}") from None

    def tables(self, values: pa.Array) -> dict[str, Identifier]:
        """Return the table of each name among the values.

        Raises:
            BadRecordError: a row names no table.
        """
        try:
            if values.null_count:
                raise ValueError(NULL_ROUTE)
            return {value: self.table_of(value) for value in values.unique().to_pylist()}
        except ValueError as exc:
            raise unroutable_row_error(str(exc)) from None


def unroutable_row_error(reason: str) -> BadRecordError:
    """Return the error for a row without a table."""
    return BadRecordError(
        reason,
        todo="Nothing of the batch was written. Leave such rows out with a `filter` transform, or "
        "set `on_error: dead_letter` with a `dead_letter` table, or `on_error: drop`.",
    )


@dataclass(frozen=True)
class RouteFaults:
    """Explains why rows name no table, or lack a part of their key.

    Attributes:
        route: maps a row to its table.
        missing: finds rows that lack a part of their key; None if there are no keys.
    """

    route: Route
    missing: MissingValues | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.Array | None:
        nameless = self._nameless(batch)
        keyless = None if self.missing is None else self.missing(batch)
        if nameless is None or keyless is None:
            return keyless if nameless is None else nameless
        return pc.coalesce(nameless, keyless)

    def _nameless(self, batch: pa.RecordBatch) -> pa.Array | None:
        values = self.route.values(batch)
        reasons = {value: self._reason(value) for value in values.unique().to_pylist()}
        if not any(reasons.values()):
            return None
        return pa.array([reasons[value] for value in values.to_pylist()], pa.string())

    def _reason(self, value: str | None) -> str | None:
        if value is None:
            return NULL_ROUTE
        try:
            self.route.table_of(value)
        except ValueError as exc:
            return str(exc)
        return None


FLUSH_BYTES = 64 << 20
MAX_TABLES = 10_000


@dataclass
class StagedTable:
    """The rows of one table in one file.

    Attributes:
        blocks: number and row count of each record batch that holds them.
        filled_columns: the columns that have a value in some row.
    """

    blocks: list[tuple[int, int]] = field(default_factory=list)
    filled_columns: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.blocks)


class RoutingWriter(TaskWriter):
    """Stages rows in a file, grouped by table.

    Args:
        columns: the columns of the rows.
        route: maps a row to its table.
        missing: finds rows that lack a part of their key; None if there are no keys.
        folder: where to stage the files; every machine can reach it.
        io_properties: how PyIceberg reaches the store, secrets included.
    """

    def __init__(
        self,
        *,
        columns: pa.Schema,
        route: Route,
        folder: str,
        io_properties: Mapping[str, str],
        missing: MissingValues | None = None,
    ) -> None:
        self._columns = columns
        self._route = route
        self._missing = missing
        self._folder = folder
        self._io_properties = dict(io_properties)

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        file = _StagedFile(self._columns, self._route, self._folder, self._io_properties)
        try:
            for batch in batches:
                if batch.num_rows:
                    self._refuse_missing(batch)
                    file.add(batch)
            return file.close()
        except BaseException:
            file.discard()
            raise

    def _refuse_missing(self, batch: pa.RecordBatch) -> None:
        reasons = None if self._missing is None else self._missing(batch)
        if reasons is not None:
            raise unroutable_row_error(reasons.drop_null()[0].as_py())


class _StagedFile:
    """One open file of a task. Not part of the writer, which is pickled and holds nothing open."""

    def __init__(
        self, columns: pa.Schema, route: Route, folder: str, io_properties: dict[str, str]
    ) -> None:
        from pyiceberg.io import load_file_io

        self._columns = columns
        self._route = route
        self._path = f"{folder}/staged-{uuid.uuid4()}.arrow"
        self._io = load_file_io(io_properties, self._path)
        self._stream: Any = None
        self._file: Any = None
        self._blocks = 0
        self._waiting: dict[Identifier, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._staged: dict[Identifier, StagedTable] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        values = self._route.values(batch)
        tables = self._route.tables(values)
        encoded = values.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if self._file is None:
            self._open(batch.schema)
        rows = conform(batch, self._columns)
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        if len(names) > 1:
            order = np.argsort(codes, kind="stable")
            rows, codes = rows.take(pa.array(order)), codes[order]
        edges = np.searchsorted(codes, np.arange(len(names) + 1))
        for number, name in enumerate(names):
            start, stop = int(edges[number]), int(edges[number + 1])
            part = rows.slice(start, stop - start)
            self._waiting.setdefault(tables[name], []).append(part)
        _refuse_too_many(len(self._staged.keys() | self._waiting.keys()))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= FLUSH_BYTES:
            self._flush()

    def close(self) -> list[WrittenFile]:
        if self._file is None:
            return []
        self._flush()
        self._file.close()
        size = int(self._stream.tell())
        self._stream.close()
        rows = sum(staged.rows for staged in self._staged.values())
        return [WrittenFile(rows, size, {"file-path": self._path, "tables": self._staged})]

    def discard(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._io.delete(self._path)

    def _open(self, schema: pa.Schema) -> None:
        if ROW in schema.names:
            self._columns = self._columns.append(schema.field(ROW))
        self._stream = self._io.new_output(self._path).create()
        self._file = pa.ipc.new_file(pa.PythonFile(self._stream, mode="w"), self._columns)

    def _flush(self) -> None:
        for table, parts in self._waiting.items():
            staged = self._staged.setdefault(table, StagedTable())
            for piece in group_by_bytes(parts):
                block = piece[0] if len(piece) == 1 else pa.concat_batches(piece)
                self._file.write_batch(block)
                staged.blocks.append((self._blocks, block.num_rows))
                staged.filled_columns |= {
                    name
                    for name, column in zip(block.schema.names, block.columns, strict=True)
                    if column.null_count < block.num_rows
                }
                self._blocks += 1
        self._waiting = {}
        self._waiting_bytes = 0


@dataclass(frozen=True)
class StagedRows:
    """Staged rows of one table. Calling it, in a task, yields them."""

    path: str
    blocks: tuple[tuple[int, int], ...]
    io_properties: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.blocks)

    def __call__(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.io import load_file_io

        io = load_file_io(dict(self.io_properties), self.path)
        with io.new_input(self.path).open() as stream:
            file = pa.ipc.open_file(as_arrow_file(stream))
            for number, _ in self.blocks:
                yield file.get_batch(number)


def _refuse_too_many(tables: int) -> None:
    if tables > MAX_TABLES:
        raise AttentionError(
            f"route_by: the rows of one batch name more than {MAX_TABLES} tables",
            todo="Nothing of the batch was written. Check that `route_by` names a column with "
            "few values.",
        )
