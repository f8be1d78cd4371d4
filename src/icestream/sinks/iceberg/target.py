"""The table that a sink writes to: opened, made when missing, and kept fitting the rows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from icestream.contracts.mark import overtaken
from icestream.errors import ConnectorError, SchemaMismatchError
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.properties import (
    properties_to_set,
    table_properties,
    write_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.mark import BatchMark
    from icestream.contracts.sink import Commit
    from icestream.sinks.iceberg.java import JavaCatalog
    from icestream.sinks.iceberg.java_table import Change, JavaTable, TableState
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.writer import IcebergWriter

logger = logging.getLogger(__name__)


class Target:
    """One table of one catalog, and the mark of one pipeline in it.

    Attributes:
        seen: the pipeline's mark that we last saw in the table, or wrote.
        spark: the session, once opened.
    """

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], sink_name: str) -> None:
        self.options = options
        self.catalog = catalog
        self.sink_name = sink_name
        self.namespace: tuple[str, ...] = tuple(options.namespace or ())
        self.table = options.table or ""
        self.seen: str | None = None
        self.spark: SparkSession | None = None
        self.pipeline = ""
        self._java: JavaCatalog | None = None
        self._handle: JavaTable | None = None
        self._state: TableState | None = None
        self._fitting: pa.Schema | None = None
        self._adopted = False

    @property
    def identity(self) -> str:
        return ".".join((self.catalog.name, *self.namespace, self.table))

    @property
    def exists(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> TableState:
        """The table as it was last read."""
        assert self._state is not None  # noqa: S101 - `prepare` comes first
        return self._state

    @property
    def session(self) -> SparkSession:
        assert self.spark is not None  # noqa: S101 - `open` comes first
        return self.spark

    @property
    def handle(self) -> JavaTable:
        assert self._handle is not None  # noqa: S101 - `open` or `prepare` comes first
        return self._handle

    def open(self, spark: SparkSession, pipeline: str) -> None:
        """Connect, and read the table if there is one."""
        from icestream.sinks.iceberg.java import JavaCatalog

        self.pipeline = pipeline
        self.spark = spark
        # Makes the catalog's own store where it is missing, and puts its faults into our words.
        self.catalog.client()
        self._java = JavaCatalog(spark, self.catalog.name)
        self._handle = self._state = self.seen = self._fitting = None
        self._adopted = False
        if self._java.exists(self.namespace, self.table):
            self._handle = self._java.load(self.namespace, self.table)
            self._state = self._handle.read_state()
            self.seen = self._state.properties.get(ledger.property_key(pipeline))

    def last_mark(self) -> BatchMark | None:
        """Return the newest mark of the pipeline that the table held when last looked at."""
        if self.seen is None:
            return None
        return ledger.parse_mark(self.seen, ledger.property_key(self.pipeline))

    def foreign_marks(self) -> list[BatchMark]:
        """Return the newest mark of every other pipeline."""
        if self._state is None:
            return []
        marks = ledger.read_marks(self._state.properties)
        return [mark for name, mark in marks.items() if name != self.pipeline]

    def prepare(self, columns: pa.Schema) -> None:
        """Make the table fit rows with these columns: create it, change it, or refuse."""
        if self._fitting is not None and self._fitting.equals(columns):
            return
        try:
            if self._state is None:
                self._create(columns)
            # Also a table just made: another pipeline may have been quicker.
            self._fit(columns)
        except SchemaMismatchError as exc:
            exc.at(f"pipeline {self.pipeline!r}, table {self.identity}")
            raise
        self._fitting = columns

    def writer(self) -> IcebergWriter:
        """Return a writer of data files for the table as it is now."""
        from icestream.sinks.iceberg.writer import IcebergWriter

        state = self.state
        return IcebergWriter(
            schema=state.schema.model_dump_json(),
            spec=state.spec.model_dump_json(),
            location=state.location,
            properties=state.properties,
            io_properties=self.catalog.pyiceberg_properties(),
            sort_order_id=self._sort_order_id(state),
            settings=write_settings(self.options, state.properties),
        )

    def commit(self, change: Change, mark: BatchMark | None, *, rows: int) -> Commit:
        """Make a change and the mark one commit; without a mark, the change alone."""
        from icestream.sinks.iceberg.commit import commit_once, commit_unmarked

        properties = self.options.snapshot_properties
        if mark is None:
            where = f"table {self.identity}"
            return commit_unmarked(self.handle, change, rows, properties=properties, where=where)
        commit = commit_once(
            self.handle,
            change,
            mark,
            rows,
            seen=self.seen,
            properties=properties,
            where=f"pipeline {mark.pipeline!r}, batch {mark.epoch}, table {self.identity}",
        )
        self.seen = mark.to_json()
        return commit

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that no snapshot will ever hold."""
        from pyiceberg.io import load_file_io

        io = None
        for path in paths:
            if io is None:
                io = load_file_io(self.catalog.pyiceberg_properties(), self.state.location)
            io.delete(path)

    def table_missing(self) -> ConnectorError:
        return ConnectorError(
            "the table does not exist, and `create` is false",
            where=f"sink {self.sink_name!r}, table {self.identity}",
            todo="Create the table, set `create: true`, or look at the spelling of "
            "`namespace` and `table`.",
        )

    def _create(self, columns: pa.Schema) -> None:
        from icestream.sinks.iceberg.evolve import to_iceberg
        from icestream.sinks.iceberg.layout import partition_spec, sort_order
        from icestream.sinks.iceberg.partition import parse_terms
        from icestream.sinks.iceberg.sort import parse_sort

        if not self.options.create:
            raise self.table_missing()
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
        logger.info("created table %s", self.identity)
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
            self.handle.set_properties(changed)
            self._look()

    def _fit(self, columns: pa.Schema) -> None:
        from icestream.sinks.iceberg.evolve import missing_columns, to_iceberg

        if not self._adopted:
            self._adopt(self.state)
            self._adopted = True
        state, handle = self.state, self.handle
        missing = missing_columns(state.schema, to_iceberg(columns, state.format_version))
        if not missing:
            return
        named = ", ".join(map(str, missing))
        if self.options.schema_evolution == "strict":
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
        logger.info("table %s: added %s", self.identity, named)
        self._look()

    def _look(self) -> None:
        """Read the table as it is now.

        The mark that we saw stays: taking up one that another instance wrote meanwhile would
        open the fence for the batch that it has written already.
        """
        self._state = self.handle.read_state()
        key = ledger.property_key(self.pipeline)
        found = self._state.properties.get(key)
        if found != self.seen and found is not None:
            where = f"pipeline {self.pipeline!r}, table {self.identity}"
            raise overtaken(ledger.parse_mark(found, key), where)
