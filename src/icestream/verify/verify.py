"""Compares every mirrored table of a plan with its database, at one point.

First the table is loaded, then the database is fixed at a point, the changes since the table's mark
are read from its log, and the table is loaded again. If the pipeline wrote to it in between, the
log may have dropped changes that the first load did not see: then the table is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.changes import ChangeSchema
from icestream.errors import PlanError
from icestream.sinks.iceberg.multi.mirror_table import identifier_of, op_name_of
from icestream.sinks.iceberg.options import MAIN
from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.verify.checksums import differing_chunks
from icestream.verify.comparison import (
    DIFFERS,
    NOT_COMPARED,
    SAME,
    SideReport,
    TableComparison,
    TableReport,
    comparison_spec,
    find_shared_columns,
)
from icestream.verify.side import LakeTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icestream.contracts.catalog import Catalog
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.verify.checksums import SideChecksums
    from icestream.verify.comparison import SharedColumns
    from icestream.verify.side import DatabaseSide, Point, ReadChanges, SideTable, TableNames


@dataclass(frozen=True)
class Mirror:
    """A pipeline that mirrors tables.

    Attributes:
        pipeline: its name.
        source: the options of the source.
        sink: the options of the sink.
        catalog: the catalog of the tables.
    """

    pipeline: str
    source: PostgresCdcOptions
    sink: IcebergOptions
    catalog: Catalog[Any]

    def side(self) -> DatabaseSide:
        """Return the database."""
        from icestream.verify.postgres_side import PostgresSide

        return PostgresSide(self.source)

    def identifier(self, table: TableNames) -> tuple[str, ...]:
        """Return namespace and name of the mirror of a database table."""
        return identifier_of(self.sink, ChangeSchema(table), self.catalog)

    def name(self, table: TableNames) -> str:
        """Return the full name of a table's mirror, which starts with the catalog."""
        return ".".join((self.catalog.name, *self.identifier(table)))

    def look_up(self, table: TableNames) -> LakeTable | None:
        """Return the current mirror of a table; None if there is none."""
        mirror = self.catalog.find_table(self.identifier(table))
        if mirror is None:
            return None
        branch = None if self.sink.branch == MAIN else self.sink.branch
        return LakeTable(self.name(table), mirror, self.pipeline, branch)

    def matches(self, table: TableNames, word: str) -> bool:
        """Return whether a word names a table: by its name in the database or in the lake."""
        source_name = ".".join(table)
        name = self.name(table)
        return word in (source_name, table[-1], name, name.partition(".")[2])


def find_mirrors(plan: Plan) -> list[Mirror]:
    """Return the mirrors of a plan.

    Raises:
        PlanError: it has none.
    """
    mirrors = [mirror for pipeline in plan.pipelines if (mirror := _mirror(pipeline)) is not None]
    if not mirrors:
        raise PlanError(
            "no pipeline mirrors a database",
            where=str(plan.path),
            todo="Only tables of a `postgres-cdc` source, without transforms and without "
            "`commit_mode: append`, can be compared with their source.",
        )
    return mirrors


def skipped_pipelines(plan: Plan) -> dict[str, str]:
    """Return the CDC pipelines that can't be compared with their database, and why."""
    reasons = {}
    for pipeline in plan.pipelines:
        if pipeline.sink.is_mirror and _mirror(pipeline) is None:
            is_postgres = isinstance(pipeline.source.options, PostgresCdcOptions)
            reasons[pipeline.name] = (
                "with `commit_mode: append` its tables hold every change"
                if is_postgres
                else "only tables of a `postgres-cdc` source can be compared"
            )
    return reasons


def _mirror(pipeline: PipelinePlan) -> Mirror | None:
    source = pipeline.source.options
    if not pipeline.sink.is_mirror or not isinstance(source, PostgresCdcOptions):
        return None
    sink: Any = pipeline.sink
    if op_name_of(sink.options) is not None:
        return None
    return Mirror(pipeline.name, source, sink.options, sink.catalog)


MAX_ATTEMPTS = 5
PARTS_PER_SLOT = 3
RUN_FIRST = "run `icestream run --once`, then compare again"


def verify(
    plan: Plan,
    spark: Callable[[], SparkSession],
    *,
    tables: Sequence[str] = (),
    limit: int = 20,
) -> Iterator[TableReport]:
    """Yield how each mirrored table compares with its database, as soon as it is known.

    Args:
        plan: the plan whose pipelines to compare.
        spark: returns the session; called once something can be compared.
        tables: the only tables to compare, by their name in the database or in the lake.
        limit: how many differing rows to list per table.

    Raises:
        PlanError: no pipeline mirrors a database, or no mirrored table has such a name.
        UnreachableError: a database or a catalog does not respond.
        RefusedError: credentials or permissions were refused.
    """
    unmatched = set(tables)
    mirrored: list[str] = []
    for mirror in find_mirrors(plan):
        side = mirror.side()
        try:
            names = side.tables()
            mirrored += (".".join(name) for name in names)
            if tables:
                matched = {w for w in tables if any(mirror.matches(n, w) for n in names)}
                names = [n for n in names if any(mirror.matches(n, w) for w in matched)]
                unmatched -= matched
            yield from _MirrorVerifier(mirror, side, spark, limit).reports(names)
        finally:
            side.close()
    if unmatched:
        raise PlanError(
            f"no mirrored table is called {min(unmatched)!r}",
            where=str(plan.path),
            todo=f"Available: {', '.join(sorted(mirrored)) or 'none'}.",
        )


@dataclass(frozen=True)
class _MirrorVerifier:
    mirror: Mirror
    side: DatabaseSide
    spark: Callable[[], SparkSession]
    limit: int

    def reports(self, names: Sequence[TableNames]) -> Iterator[TableReport]:
        pending = list(names)
        for _ in range(MAX_ATTEMPTS):
            if not pending:
                return
            lakes = {name: self.mirror.look_up(name) for name in pending}
            for name, lake in lakes.items():
                reason = self._not_ready_reason(name, lake)
                if reason:
                    yield self._report(name, NOT_COMPARED, reason)
                    pending.remove(name)
            ready = {name: lake for name in pending if (lake := lakes[name]) is not None}
            point = self._point(ready)
            for name, lake in ready.items():
                reloaded = self.mirror.look_up(name)
                if reloaded is not None and reloaded.version == lake.version:
                    yield self._compare(name, lake, point)
                    pending.remove(name)
        for name in pending:
            reason = "it is written to faster than it can be compared; stop the pipeline first"
            yield self._report(name, NOT_COMPARED, reason)

    def _not_ready_reason(self, name: TableNames, lake: LakeTable | None) -> str:
        if lake is None or lake.mark is None:
            return f"the pipeline has not written this table yet; {RUN_FIRST}"
        if not self.side.is_fully_loaded(name, lake.mark.end):
            return f"its initial snapshot is not complete yet; {RUN_FIRST}"
        return ""

    def _point(self, lakes: Mapping[TableNames, LakeTable]) -> Point:
        marks = {name: lake.mark.end for name, lake in lakes.items() if lake.mark is not None}
        return self.side.point(marks)

    def _compare(self, name: TableNames, lake: LakeTable, point: Point) -> TableReport:
        table, changes = point.tables.get(name), point.changes.get(name)
        if table is None:
            return self._report(name, NOT_COMPARED, "the table no longer exists in the database")
        if changes is not None and changes.is_truncated:
            reason = f"it was truncated after the newest batch; {RUN_FIRST}"
            return self._report(name, NOT_COMPARED, reason)
        if changes is not None and changes.rows and not table.key:
            reason = f"it has no key, and {changes.rows:,} rows changed since the newest batch"
            return self._report(name, NOT_COMPARED, f"{reason}; {RUN_FIRST}")
        shared = find_shared_columns(table.columns, lake.columns)
        missing = [key for key in table.key if key not in shared.columns.names]
        if missing:
            reason = f"the table has no key column {missing[0]!r} of a matching type"
            return self._report(name, DIFFERS, reason)
        return self._compare_rows(table, lake, point, shared, changes)

    def _compare_rows(
        self,
        table: SideTable,
        lake: LakeTable,
        point: Point,
        shared: SharedColumns,
        changes: ReadChanges | None,
    ) -> TableReport:
        spark = self.spark()
        count = spark.sparkContext.defaultParallelism * PARTS_PER_SLOT
        changed_keys = None if changes is None else changes.keys
        rows = lake.estimated_rows()
        comparison = TableComparison(
            spark,
            comparison_spec(shared.columns, table.key, rows, changed_keys, table.own),
            (self.side.reader(table), lake.reader(shared.columns.names)),
            (self.side.parts(table, count), lake.parts(count)),
        )
        in_source, in_lake = comparison.checksums()
        counts, differences = comparison.differences(in_source, in_lake, self.limit)
        differing = differing_chunks(in_source, in_lake)
        reason = table.caveat if differing else ""
        if shared.incompatible:
            reason = f"columns of other types, not compared: {', '.join(shared.incompatible)}"
        return TableReport(
            pipeline=self.mirror.pipeline,
            source=".".join(table.names),
            table=lake.name,
            status=DIFFERS if differing or shared.incompatible else SAME,
            reason=reason,
            point=point.label,
            snapshot_id=lake.snapshot_id,
            in_source=_side_report(in_source, table),
            in_lake=_side_report(in_lake, table),
            changed_since=0 if changed_keys is None else changed_keys.num_rows,
            chunks=comparison.spec.chunks,
            chunks_differing=len(differing),
            only_in_lake=tuple(
                name for name in shared.only_in_lake if name not in lake.soft_delete_columns
            ),
            only_in_source=tuple(name for name in shared.only_in_source if name not in table.own),
            counts=counts,
            rows=differences,
        )

    def _report(self, name: TableNames, status: str, reason: str) -> TableReport:
        return TableReport(
            self.mirror.pipeline, ".".join(name), self.mirror.name(name), status, reason
        )


def _side_report(sums: SideChecksums, table: SideTable) -> SideReport:
    if sums.first is None or sums.last is None or set(table.key) <= set(table.own):
        return SideReport(sums.rows)
    return SideReport(sums.rows, tuple(map(str, sums.first)), tuple(map(str, sums.last)))
