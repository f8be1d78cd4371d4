"""The Iceberg sink: one table, and the commit mode by which each batch changes it exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.changes import DELETES
from icestream.contracts.faults import CheckStep, exception_text
from icestream.contracts.sink import RowExpectation, Sink
from icestream.schemas.column_names import reserved_problem
from icestream.sinks.iceberg import ledger
from icestream.sinks.iceberg.commit import Append, Mode
from icestream.sinks.iceberg.options import MAIN, IcebergOptions
from icestream.sinks.iceberg.overwrite import Overwrite
from icestream.sinks.iceberg.publish import publish
from icestream.sinks.iceberg.store_check import storage_check_steps
from icestream.sinks.iceberg.table import TargetTable
from icestream.sinks.iceberg.upsert import Upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog, Identifier
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, LostRows, TaskWriter, WrittenFile
    from icestream.errors import IcestreamError


# The commit modes by their names in the file.
MODES: dict[str, type[Mode]] = {
    "append": Append,
    "overwrite": Overwrite,
    "overwrite_table": Overwrite,
    "overwrite_partitions": Overwrite,
    "upsert": Upsert,
}


def expectations_of(options: IcebergOptions) -> tuple[RowExpectation, ...]:
    """Return the conditions that a sink's rows should meet.

    A delete carries little more than its key, so the conditions do not apply to it.
    """
    unless = ""
    if options.commit_mode == "upsert" and options.op_field is not None:
        op = f"lower(cast({quote_for_spark(options.op_field)} as string))"
        deletes = ", ".join(f"'{word}'" for word in DELETES)
        unless = f"coalesce({op} in ({deletes}), false) or "
    return tuple(
        RowExpectation(item.name, f"{unless}({item.expr})" if unless else item.expr, item.on_fail)
        for item in options.expect
    )


class IcebergTableSink(Sink[IcebergOptions]):
    """One Iceberg table."""

    options_type = IcebergOptions

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        super().__init__(options, catalog, name)
        self.target = TargetTable(options, catalog, name)
        self.mode = MODES[options.commit_mode](options, self.target)
        self.task_modules = self.mode.task_modules
        self._columns: tuple[Schema, pa.Schema] | None = None

    @classmethod
    def build(
        cls, options: IcebergOptions, catalog: Catalog[Any], name: str, *, changes: bool = False
    ) -> Sink[Any]:
        if changes:
            from icestream.sinks.iceberg.multi.mirror import MirrorSink

            catalog.validate_namespace(tuple(options.namespace))
            return MirrorSink(options, catalog, name)
        if options.route_by is None:
            return cls(options, catalog, name)
        from icestream.sinks.iceberg.multi.fan_out import FanOutSink

        catalog.validate_namespace(tuple(options.namespace))
        return FanOutSink(options, catalog, name)

    @property
    def namespace(self) -> tuple[str, ...]:
        return self.target.namespace

    @property
    def table(self) -> str:
        return self.target.table

    def identity(self) -> str:
        return self.target.identity

    def single_table(self) -> Identifier:
        return (*self.namespace, self.table)

    def open(self, spark: SparkSession, pipeline: str, cache: Path | None = None) -> None:  # noqa: ARG002 - one table keeps no state file
        self.target.open(spark, pipeline)
        self.mode.reset()

    def last_mark(self) -> BatchMark | None:
        return self.target.last_mark()

    def foreign_marks(self) -> list[BatchMark]:
        return self.target.foreign_marks()

    def holds(self, mark: BatchMark) -> bool:
        return ledger.covers(self.last_mark(), mark)

    def columns(self) -> pa.Schema | None:
        from icestream.schemas.comparison import iceberg_to_arrow

        schema = self.target.schema()
        if schema is None:
            return None
        # Called for each batch; the schema is the same object unless the table was changed.
        if self._columns is None or self._columns[0] is not schema:
            self._columns = (schema, self.mode.stream_columns(iceberg_to_arrow(schema)))
        return self._columns[1]

    def prepare(self, columns: pa.Schema, *, declared: bool = False) -> None:
        self.target.prepare(self.mode.table_columns(columns), declared=declared)

    def refuse_columns(self, columns: pa.Schema) -> None:
        self.target.new_layout(self.mode.table_columns(columns))

    def refuses_column(self, name: str) -> str | None:
        problem = reserved_problem(name)
        if problem is None and self.target.exists:
            from icestream.sinks.iceberg.java_table import read_specs

            specs = read_specs(self.target.handle)
            partition_fields = {field.name for spec in specs for field in spec.fields}
            if name in partition_fields and name not in self.target.state.schema.column_names:
                return f"column {name!r} has the name of a partition field of the table"
        return problem

    def keeps_missing_fields(self) -> bool:
        return self.options.missing_fields == "keep" and self.options.commit_mode == "upsert"

    def adds_columns(self) -> bool:
        return self.options.schema_evolution != "strict"

    def widens_columns(self) -> bool:
        return self.options.schema_evolution == "full"

    def sorts(self) -> bool:
        return bool(self.options.sort_order) and not self.mode.sorts_itself

    def sort_columns(self) -> list[Any]:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        from icestream.sinks.iceberg.partition_terms import parse_sort

        if not self.sorts():
            return []
        columns = []
        for term in parse_sort(self.options):
            column = F.col(self._in_spark(term.column))
            order = ("desc" if term.descending else "asc") + (
                "_nulls_first" if term.nulls_first else "_nulls_last"
            )
            columns.append(getattr(column, order)())
        return columns

    def _in_spark(self, column: str) -> str:
        """Quote a column's name. A dot is part of it, or separates a struct from its member."""
        fields = self.target.state.schema.fields if self.target.exists else ()
        is_whole = any(field.name == column for field in fields)
        return quote_for_spark(*([column] if is_whole else column.split(".")))

    def replaces(self) -> bool:
        return self.mode.replaces

    def needs_end(self) -> bool:
        # `overwrite` is meant to replace what each batch touches.
        return self.mode.replaces and self.options.commit_mode != "overwrite"

    def expectations(self) -> tuple[RowExpectation, ...]:
        return expectations_of(self.options)

    def row_faults(self) -> Callable[[pa.RecordBatch], pa.Array | None] | None:
        from icestream.sinks.iceberg.missing_values import missing_values

        schema = self.target.state.schema if self.target.exists else None
        return missing_values(schema, self.options)

    def writer(self) -> TaskWriter:
        return self.mode.writer()

    def commit(self, files: list[WrittenFile], mark: BatchMark) -> Commit:
        branch = self.options.branch
        return self.mode.commit(files, mark if branch == MAIN else replace(mark, branch=branch))

    def lost_rows(
        self,
        loaded: Collection[tuple[str, ...]] | None = None,  # noqa: ARG002 - for mirrors
    ) -> list[LostRows]:
        lost = self.target.lost_rows()
        return [] if lost is None else [lost]

    def accept_lost_rows(self) -> None:
        self.target.accept_lost_rows()

    def audits(self) -> bool:
        return self.options.publish is not None

    def publish(self, mark: BatchMark) -> None:
        if self.options.publish is not None:
            publish(self.target, self.options.publish, mark)

    def commit_unmarked(self, files: list[WrittenFile]) -> Commit:
        """Commit rows that belong to no pipeline, such as those of a manual write."""
        return self.mode.commit(files, None)

    def discard(self, files: list[WrittenFile]) -> None:
        self.mode.discard(files)

    def disconnect(self, spark: SparkSession) -> None:
        from icestream.sinks.iceberg.java import reset_catalogs

        self.catalog.close()
        reset_catalogs(spark)

    def explain(self, fault: BaseException) -> IcestreamError | None:
        return self.catalog.explain(exception_text(fault), f"table {self.identity()}")

    def check(self) -> Iterator[CheckStep]:
        yield from self.catalog.check()
        yield CheckStep("find namespace", self._describe_namespace)
        yield CheckStep("find table", self._describe_table)
        yield from storage_check_steps(self.catalog, (*self.namespace, self.table))

    def _describe_namespace(self) -> str:
        name = ".".join(self.namespace)
        if self.catalog.has_namespace(self.namespace):
            return name
        if not self.options.create:
            raise self.target.missing_table_error()
        return f"{name} will be created"

    def _describe_table(self) -> str:
        table = self.catalog.find_table((*self.namespace, self.table))
        if table is not None:
            # A run asks a catalog without a store for the table's, before Spark starts.
            if self.catalog.storage is not None:
                self.catalog.require_storage(table.location(), f"table {self.identity()}")
            return f"{self.identity()}, {len(table.schema().fields)} columns"
        if not self.options.create:
            raise self.target.missing_table_error()
        return f"{self.identity()} will be created"
