"""The Iceberg sink: rows appended to one table, each batch exactly once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from icestream.contracts.check import CheckStep
from icestream.contracts.mark import overtaken
from icestream.contracts.sink import Sink
from icestream.errors import ConnectorError, SchemaMismatchError
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.properties import (
    properties_to_set,
    table_properties,
    write_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.mark import BatchMark
    from icestream.contracts.sink import Commit, WrittenFile
    from icestream.sinks.iceberg.java import JavaCatalog, JavaTable, TableState
    from icestream.sinks.iceberg.writer import IcebergWriter

logger = logging.getLogger(__name__)


class IcebergSink(Sink[IcebergOptions]):
    """One Iceberg table."""

    options_type = IcebergOptions
    task_modules = ("icestream.sinks.iceberg.writer",)

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        self.options = options
        self.catalog = catalog
        self.name = name
        self.namespace: tuple[str, ...] = tuple(options.namespace or ())
        self.table = options.table or ""
        self._pipeline = ""
        self._java: JavaCatalog | None = None
        self._handle: JavaTable | None = None
        self._state: TableState | None = None
        self._seen: str | None = None
        self._fitting: pa.Schema | None = None
        self._adopted = False

    def identity(self) -> str:
        return ".".join((self.catalog.name, *self.namespace, self.table))

    def open(self, spark: SparkSession, pipeline: str) -> None:
        from icestream.sinks.iceberg.java import JavaCatalog

        self._pipeline = pipeline
        # Makes the catalog's own store where it is missing, and puts its faults into our words.
        self.catalog.client()
        self._java = JavaCatalog(spark, self.catalog.name)
        self._handle = self._state = self._seen = self._fitting = None
        self._adopted = False
        if self._java.exists(self.namespace, self.table):
            self._handle = self._java.load(self.namespace, self.table)
            self._state = self._handle.read_state()
            self._seen = self._state.properties.get(ledger.property_key(pipeline))

    def last_mark(self) -> BatchMark | None:
        if self._seen is None:
            return None
        return ledger.parse_mark(self._seen, ledger.property_key(self._pipeline))

    def foreign_marks(self) -> list[BatchMark]:
        if self._state is None:
            return []
        marks = ledger.read_marks(self._state.properties)
        return [mark for name, mark in marks.items() if name != self._pipeline]

    def holds(self, mark: BatchMark) -> bool:
        return ledger.covers(self.last_mark(), mark)

    def columns(self) -> pa.Schema | None:
        from icestream.sinks.iceberg.evolve import to_arrow

        return None if self._state is None else to_arrow(self._state.schema)

    def prepare(self, columns: pa.Schema) -> None:
        if self._fitting is not None and self._fitting.equals(columns):
            return
        try:
            if self._state is None:
                self._create(columns)
            # Also a table just made: another pipeline may have been quicker.
            self._fit(columns)
        except SchemaMismatchError as exc:
            exc.at(f"pipeline {self._pipeline!r}, table {self.identity()}")
            raise
        self._fitting = columns

    def adds_columns(self) -> bool:
        return self.options.schema_evolution != "strict"

    def sorts(self) -> bool:
        return bool(self.options.sort_order)

    def sort_columns(self) -> list[Any]:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        from icestream.sinks.iceberg.sort import parse_sort

        columns = []
        for term in parse_sort(self.options):
            column = F.col(term.column)
            order = ("desc" if term.descending else "asc") + (
                "_nulls_first" if term.nulls_first else "_nulls_last"
            )
            columns.append(getattr(column, order)())
        return columns

    def writer(self) -> IcebergWriter:
        from icestream.sinks.iceberg.writer import IcebergWriter

        state = self._required_state()
        return IcebergWriter(
            schema=state.schema.model_dump_json(),
            spec=state.spec.model_dump_json(),
            location=state.location,
            properties=state.properties,
            io_properties=self.catalog.pyiceberg_properties(),
            sort_order_id=self._sort_order_id(state),
            settings=write_settings(self.options, state.properties),
        )

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        from icestream.sinks.iceberg.commit import append_once

        commit = append_once(
            self._required_handle(),
            files,
            mark,
            seen=self._seen,
            properties=self.options.snapshot_properties,
            where=f"pipeline {mark.pipeline!r}, batch {mark.epoch}, table {self.identity()}",
        )
        self._seen = mark.to_json()
        return commit

    def commit_unmarked(self, files: list[WrittenFile]) -> Commit:
        """Append files that no pipeline wrote, such as rows fed by hand."""
        from icestream.sinks.iceberg.commit import append_unmarked

        return append_unmarked(
            self._required_handle(),
            files,
            properties=self.options.snapshot_properties,
            where=f"table {self.identity()}",
        )

    def discard(self, files: list[WrittenFile]) -> None:
        from pyiceberg.io import load_file_io

        if not files:
            return
        io = load_file_io(self.catalog.pyiceberg_properties(), self._required_state().location)
        for file in files:
            io.delete(file.what["file-path"])

    def check(self) -> Iterator[CheckStep]:
        yield from self.catalog.check()
        yield CheckStep("find table", self._describe_table)

    def _describe_table(self) -> str:
        table = self.catalog.find_table((*self.namespace, self.table))
        if table is not None:
            return f"{self.identity()}, {len(table.schema().fields)} columns"
        if not self.options.create:
            raise self._table_missing()
        return f"{self.identity()} will be created"

    def _table_missing(self) -> ConnectorError:
        return ConnectorError(
            "the table does not exist, and `create` is false",
            where=f"sink {self.name!r}, table {self.identity()}",
            todo="Create the table, set `create: true`, or look at the spelling of "
            "`namespace` and `table`.",
        )

    def _create(self, columns: pa.Schema) -> None:
        from icestream.sinks.iceberg.evolve import to_iceberg
        from icestream.sinks.iceberg.layout import partition_spec, sort_order
        from icestream.sinks.iceberg.partition import parse_terms
        from icestream.sinks.iceberg.sort import parse_sort

        if not self.options.create:
            raise self._table_missing()
        assert self._java is not None  # noqa: S101 - `open` comes first
        schema = to_iceberg(columns, self.options.format_version)
        self._java.create_namespace(self.namespace)
        self._handle = self._java.create_table(
            self.namespace,
            self.table,
            schema=schema,
            spec=partition_spec(schema, parse_terms(self.options)),
            sort_order=sort_order(schema, parse_sort(self.options)),
            properties=table_properties(self.options),
        )
        logger.info("created table %s", self.identity())
        self._look()

    def _sort_order_id(self, state: TableState) -> int:
        """Return the table's order if that is the one that the rows of a file come in."""
        from icestream.sinks.iceberg.layout import sort_order
        from icestream.sinks.iceberg.sort import parse_sort

        ours = sort_order(state.schema, parse_sort(self.options))
        same = ours.fields == state.sort_order.fields
        return state.sort_order.order_id if same and ours.fields else 0

    def _adopt(self, state: TableState) -> None:
        """Look whether a table that was there already is the one that the file describes."""
        from icestream.sinks.iceberg.layout import partition_spec, shown
        from icestream.sinks.iceberg.partition import parse_terms

        given = "partitioning" in self.options.model_fields_set
        if given and self.options.partitioning != "table_default":
            wanted = partition_spec(state.schema, parse_terms(self.options))
            if not wanted.compatible_with(state.spec):
                raise SchemaMismatchError(
                    f"the table is partitioned by {shown(state.spec, state.schema)}, the file "
                    f"says {shown(wanted, state.schema)}",
                    todo="Use `partitioning: table_default`, or change the table's partition "
                    "spec. Changing it by the file is not available in this version.",
                )
        changed = properties_to_set(self.options, state.properties)
        if changed:
            self._required_handle().set_properties(changed)
            self._look()

    def _fit(self, columns: pa.Schema) -> None:
        from icestream.sinks.iceberg.evolve import missing_columns, to_iceberg

        if not self._adopted:
            self._adopt(self._required_state())
            self._adopted = True
        state, handle = self._required_state(), self._required_handle()
        missing = missing_columns(state.schema, to_iceberg(columns, state.format_version))
        if not missing:
            return
        named = ", ".join(map(str, missing))
        if not self.adds_columns():
            raise SchemaMismatchError(
                f"the stream has columns that the table lacks: {named}",
                todo="Use `schema_evolution: add_columns`, or alter the table.",
            )
        handle.add_columns(
            [
                (parent, column.name, column.field_type.model_dump_json(), column.doc)
                for parent, column in missing
            ]
        )
        logger.info("table %s: added %s", self.identity(), named)
        self._look()

    def _look(self) -> None:
        """Read the table as it is now.

        The mark that we saw stays: taking up one that another instance wrote meanwhile would
        open the fence for the batch that it has written already.
        """
        self._state = self._required_handle().read_state()
        key = ledger.property_key(self._pipeline)
        found = self._state.properties.get(key)
        if found != self._seen and found is not None:
            where = f"pipeline {self._pipeline!r}, table {self.identity()}"
            raise overtaken(ledger.parse_mark(found, key), where)

    def _required_state(self) -> TableState:
        assert self._state is not None  # noqa: S101 - `prepare` comes first
        return self._state

    def _required_handle(self) -> JavaTable:
        assert self._handle is not None  # noqa: S101 - `open` or `prepare` comes first
        return self._handle
