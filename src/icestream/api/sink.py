"""An Iceberg sink for Python: part of a pipeline, or written to directly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from icestream.api.rows import to_table
from icestream.api.settings import Settings, build_catalog, build_plan
from icestream.contracts.catalog import Catalog
from icestream.contracts.option_errors import describe_type, require_options
from icestream.contracts.packages import require_packages
from icestream.errors import PlanError
from icestream.metrics.registry import SinkMetrics
from icestream.sinks.iceberg.sink import IcebergTableSink as TableSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icestream.api.rows import WritableRows
    from icestream.contracts.sink import Commit, Sink
    from icestream.sinks.iceberg.options import IcebergOptions


class IcebergSink(TableSink):
    """One Iceberg table or, in a pipeline with a CDC source, the mirrors of the source's tables.

    Rows that are written with `write` carry no mark: the caller keeps track of them.

    Args:
        options: as in the `config` block of a sink in the file.
        settings: where state is kept and how Spark runs.
        catalog: the table's catalog, if not the one in the options.
    """

    def __init__(
        self,
        options: IcebergOptions,
        settings: Settings | None = None,
        *,
        catalog: Catalog[Any] | None = None,
    ) -> None:
        require_options(self, options)
        if not isinstance(settings, Settings | None):
            raise PlanError(
                f"expected Settings, found {describe_type(settings)}",
                where="IcebergSink",
                todo="Write Settings(state=..., master=..., conf=...).",
            )
        if not isinstance(catalog, Catalog | None):
            raise PlanError(
                f"expected a catalog, found {describe_type(catalog)}",
                where="IcebergSink",
                todo="Pass the catalog's block in the options: "
                "IcebergOptions(catalog={'type': ...}).",
            )
        self.settings = settings or Settings()
        super().__init__(options, catalog or build_catalog(options, self.settings), "python")
        require_packages(self.catalog.required_packages(), f"catalog {self.catalog.identity()}")
        self._unflushed: list[pa.Table | DataFrame] = []
        self._metrics = SinkMetrics()
        self._spark: SparkSession | None = None

    def write(self, rows: WritableRows) -> None:
        """Buffer rows; `flush` commits them.

        Args:
            rows: an Arrow table or record batch, a Spark or pandas DataFrame, or a list of dicts.

        Raises:
            PlanError: the rows are none of these, or have no common types; the options name no
                table, or have `route_by`, which is for pipelines.
        """
        if self.options.route_by is not None:
            raise PlanError(
                "`write` writes to one table, and `route_by` names many",
                todo="Use the sink in a pipeline, or create one sink per table.",
            )
        if not self.options.namespace or not self.options.table:
            raise PlanError(
                "`write` needs a table, and the options name none",
                where="IcebergOptions",
                todo="Set `namespace` and `table`; only changes name their own tables.",
            )
        if not isinstance(rows, list | tuple) or rows:
            self._unflushed.append(to_table(rows))

    def flush(self) -> int | None:
        """Commit all rows written since the last flush, in one snapshot.

        Returns:
            The snapshot's id, or None if there was nothing to commit. If this raises, the rows
            stay buffered.
        """
        if not self._unflushed:
            return None
        started = time.monotonic()
        spark = self._session()
        files = []
        for rows in self._unflushed:
            files += self._write_files(spark, rows)
        write_secs = time.monotonic() - started
        commit = self.commit_unmarked(files)
        self._unflushed = []
        self._count(commit, write_secs)
        return commit.snapshot_id

    def metrics(self) -> SinkMetrics:
        """Return the counters of the rows written with `write`."""
        return self._metrics

    def _session(self) -> SparkSession:
        if self._spark is None:
            from icestream.engine.run import open_plan_session

            self._spark = open_plan_session(build_plan(self.settings, self.catalog), [self])
            self.open(self._spark, "")
        return self._spark

    def _write_files(self, spark: SparkSession, rows: pa.Table | DataFrame) -> list[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from icestream.contracts.reports import REPORT_COLUMN, gather_reports
        from icestream.engine.batch.sql_path import map_in_arrow
        from icestream.engine.batch.tasks import WriteOnly

        if isinstance(rows, pa.Table):
            if not self.sort_columns():
                self.prepare(rows.schema)
                return self.writer().write(rows.to_batches())
            rows = spark.createDataFrame(rows)
        self.prepare(to_arrow_schema(rows.schema))
        if self.sort_columns():
            rows = rows.sortWithinPartitions(*self.sort_columns())
        reports = gather_reports(map_in_arrow(rows, WriteOnly(self.writer()), REPORT_COLUMN))
        for report in reports:
            if report.error is not None:
                raise report.error
        return [file for report in reports for file in report.files]

    def _count(self, commit: Commit, write_secs: float) -> None:
        self._metrics.record_batch(
            rows=commit.rows, size=commit.bytes, files=commit.files, write_secs=write_secs
        )
        self._metrics.record_commit(commit_secs=commit.seconds, retries=commit.retries)

    def for_pipeline(self, *, changes: bool = False) -> Sink[Any]:
        """Return a separate sink for a pipeline, which keeps the pipeline's mark.

        Args:
            changes: whether the pipeline writes changes, each of which names its table.
        """
        return TableSink.build(self.options, self.catalog, self.name, changes=changes)

    def dead_letters(self) -> TableSink | None:
        """Return the sink for dead letters; None if the options have none."""
        options = self.options.dead_letter_options()
        if options is None:
            return None
        return TableSink(options, self.catalog, f"{self.name}.dead_letter")
