"""The common base of the sinks of many Iceberg tables: fan-out and mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.faults import exception_text
from icestream.contracts.sink import LostRows, Sink
from icestream.errors import ConnectorError
from icestream.schemas.column_names import reserved_problem
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.offset import BatchMark, Offset
    from icestream.errors import IcestreamError
    from icestream.sinks.iceberg.multi.tables import TableSet
    from icestream.sinks.iceberg.sink import IcebergTableSink


class MultiTableSink(Sink[IcebergOptions]):
    """Tables of one catalog, each with the marks of one pipeline."""

    options_type = IcebergOptions
    may_refuse_rows = True
    _replaces = False

    def __init__(self, options: IcebergOptions, catalog: Catalog[Any], name: str) -> None:
        stored = catalog.abilities.stored_name(options.namespace)
        is_stored = stored == options.namespace
        if not is_stored:
            options = options.model_copy(update={"namespace": stored})
        super().__init__(options, catalog, name)
        self._tables: TableSet | None = None
        self._batch_sinks: list[IcebergTableSink] | None = None

    @property
    def tables(self) -> TableSet:
        assert self._tables is not None  # noqa: S101 - `open` comes first
        return self._tables

    def single_table(self) -> None:
        return None

    def last_mark(self) -> BatchMark | None:
        return self.tables.newest_mark()

    def marks(self) -> list[BatchMark]:
        return self.tables.marks()

    def foreign_marks(self) -> list[BatchMark]:
        return self.tables.foreign_marks()

    def holds(self, mark: BatchMark) -> bool:  # noqa: ARG002 - the contract's
        return False

    def columns(self) -> pa.Schema | None:
        return None

    def replaces(self) -> bool:
        return self._replaces

    def needs_end(self) -> bool:
        return self._replaces and self.options.commit_mode != "overwrite"

    def resume(self, mark: BatchMark, letters: BatchMark | None) -> tuple[Offset, Offset | None]:
        """Return where to resume.

        The newest mark of any table says how far the source was read, not that every table holds
        that batch: a crash may have come between two commits. So the batch is read again, and the
        tables that hold it stay unchanged.
        """
        is_same_query = letters is not None and letters.query_id == mark.query_id
        if letters is not None and is_same_query and letters.epoch >= mark.epoch:
            # Dead letters are committed last, so every table holds that batch.
            self._record_replay(None)
            return letters.end, None
        self._record_replay(mark)
        return mark.start, mark.end

    def start_over(self) -> None:
        self._record_replay(None)

    def _record_replay(self, batch: BatchMark | None) -> None:
        newest = self.last_mark()
        self.tables.state_file.record_restart(0 if newest is None else newest.generation + 1, batch)

    def replayed_batch(self) -> BatchMark | None:
        return self.tables.state_file.replayed_batch()

    def lost_rows(
        self,
        loaded: Collection[tuple[str, ...]] | None = None,  # noqa: ARG002 - for mirrors
    ) -> list[LostRows]:
        old = self.tables.moved_from()
        if old is not None:
            return [self._moved(old)]
        return list(self.tables.lost_rows().values())

    def _moved(self, old: str) -> LostRows:
        """Describe the rows that are in other tables than those that the file names now."""
        before = f"{self.catalog.name}.{old}"
        return LostRows(
            self.identity(),
            f"the rows of this pipeline are in {before}, and the file says {self.identity()}",
            f"To continue with the tables that hold them, change the file back to {before}.",
        )

    def accept_lost_rows(self) -> None:
        self.tables.accept_lost_rows()

    def audits(self) -> bool:
        return self.options.publish is not None

    def publish(self, mark: BatchMark) -> None:
        if self.options.publish is None:
            return
        # After a restart any table may be unpublished, if the last run ended before this.
        sinks = self.tables.all() if self._batch_sinks is None else self._batch_sinks
        self.tables.run_concurrently(lambda sink: sink.publish(mark), sinks)
        self._batch_sinks = []

    def disconnect(self, spark: SparkSession) -> None:
        from icestream.sinks.iceberg.java import reset_catalogs

        self.catalog.close()
        reset_catalogs(spark)

    def explain(self, fault: BaseException) -> IcestreamError | None:
        return self.catalog.explain(exception_text(fault), f"table {self.identity()}")

    def _holds(self, table: IcebergTableSink, mark: BatchMark) -> bool:
        """Tell whether a table holds the batch, possibly under the checkpoint that was lost."""
        if table.holds(mark):
            # A table that was rolled back still has the mark.
            return not table.lost_rows()
        held, replayed = table.last_mark(), self.replayed_batch()
        if held is None or replayed is None:
            return False
        if (replayed.start, replayed.end) != (mark.start, mark.end):
            return False
        return (held.query_id, held.epoch) == (replayed.query_id, replayed.epoch)

    def refuses_column(self, name: str) -> str | None:
        return reserved_problem(name)

    def keeps_missing_fields(self) -> bool:
        return self.options.missing_fields == "keep"

    def adds_columns(self) -> bool:
        return self.options.schema_evolution != "strict"

    def widens_columns(self) -> bool:
        return self.options.schema_evolution == "full"

    def _describe_namespace(self) -> str:
        name = ".".join(self.options.namespace)
        if self.catalog.has_namespace(tuple(self.options.namespace)):
            return name
        if not self.options.create:
            raise ConnectorError(
                f"the namespace {name!r} does not exist, and `create` is false",
                where=f"sink {self.name!r}, table {self.identity()}",
                todo="Create it with its tables, set `create: true`, or check the spelling of "
                "`namespace`.",
            )
        return f"{name} will be created"
