"""Verifies the tables of a plan: mirrors against their database, others against their marks.

A mirror is compared at one point. First the table is loaded, then the database is fixed at a
point, the changes since the table's mark are read from its log, and the table is loaded again. If
the pipeline wrote to it in between, the log may have dropped changes that the first load did not
see: then the table is tried again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from icestream.errors import PlanError
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
from icestream.verify.offsets import OffsetReport
from icestream.verify.pipelines import find_mirrors, find_offset_pipelines, skipped_pipelines
from icestream.verify.side import LakeTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icestream.plan.plan import Plan
    from icestream.verify.checksums import SideChecksums
    from icestream.verify.comparison import SharedColumns
    from icestream.verify.pipelines import Mirror, OffsetPipeline
    from icestream.verify.side import DatabaseSide, Point, ReadChanges, SideTable, TableNames


PARTS_PER_SLOT = 3
RUN_FIRST = "run `icestream run --once`, then compare again"
NOTHING_YET = (NOT_COMPARED, f"the pipeline has not written this table yet; {RUN_FIRST}")


def verify(
    plan: Plan,
    spark: Callable[[], SparkSession],
    *,
    tables: Sequence[str] = (),
    limit: int = 20,
) -> Iterator[TableReport | OffsetReport]:
    """Yield the report of each table as soon as it is known.

    Args:
        plan: the plan whose pipelines to verify.
        spark: returns the session; called once a mirror can be compared.
        tables: the only tables to verify, by their name in the database or in the lake.
        limit: how many differing rows to list per table.

    Raises:
        PlanError: no pipeline can be verified, or no table has such a name.
        UnreachableError: a database or a catalog does not respond.
        RefusedError: credentials or permissions were refused.
    """
    mirrors, pipelines = find_mirrors(plan), find_offset_pipelines(plan)
    if not mirrors and not pipelines:
        reasons = (f"{name!r}: {why}" for name, why in skipped_pipelines(plan).items())
        raise PlanError(
            "no pipeline can be verified", where=str(plan.path), todo="\n".join(reasons)
        )
    selection = _TableSelection(tables)
    for mirror in mirrors:
        yield from _mirror_reports(mirror, spark, selection, limit)
    for pipeline in pipelines:
        yield from _offset_reports(pipeline, selection)
    if selection.unmatched:
        raise PlanError(
            f"no table is called {min(selection.unmatched)!r}",
            where=str(plan.path),
            todo=f"Available: {', '.join(sorted(selection.available)) or 'none'}.",
        )


class _TableSelection:
    """The tables that the user named; all tables if there are none.

    Attributes:
        unmatched: the names that no table had so far.
        available: the tables so far.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.unmatched = set(words)
        self.available: list[str] = []

    def includes(self, name: str, is_named: Callable[[str], bool]) -> bool:
        """Return whether to verify a table, and remember its name."""
        self.available.append(name)
        named = {word for word in self.words if is_named(word)}
        self.unmatched -= named
        return bool(named) or not self.words


def _mirror_reports(
    mirror: Mirror, spark: Callable[[], SparkSession], selection: _TableSelection, limit: int
) -> Iterator[TableReport]:
    side = mirror.side()
    try:
        found = side.tables()
        if not found and not selection.words:
            name = f"{mirror.catalog.name}.*"
            yield TableReport(mirror.pipeline, side.identity(), name, *NOTHING_YET)
        names = []
        for table in found:
            if not selection.includes(".".join(table), partial(mirror.matches, table)):
                continue
            problem = mirror.problem(table)
            if not problem:
                names.append(table)
            elif selection.words:  # else it is listed with the skipped pipelines
                name = mirror.name(table)
                yield TableReport(mirror.pipeline, ".".join(table), name, NOT_COMPARED, problem)
        yield from _MirrorVerifier(mirror, side, spark, limit).reports(names)
    finally:
        side.close()


def _offset_reports(pipeline: OffsetPipeline, selection: _TableSelection) -> Iterator[OffsetReport]:
    found, identity = pipeline.tables(), pipeline.check.source.identity()
    if not found and not selection.words:
        name = ".".join((pipeline.catalog.name, *pipeline.sink.namespace, "*"))
        yield OffsetReport(pipeline.pipeline, identity, name, *NOTHING_YET)
    for table in found:
        name = pipeline.name(table)
        if not selection.includes(name, _names_of(name).__contains__):
            continue
        if isinstance(table, LakeTable):
            yield pipeline.check.report(table)
        else:
            yield OffsetReport(pipeline.pipeline, identity, name, *NOTHING_YET)


def _names_of(name: str) -> tuple[str, str, str]:
    """Return the names that a user may give a table: in full, without catalog, and the last."""
    return name, name.partition(".")[2], name.rpartition(".")[2]


@dataclass(frozen=True)
class _MirrorVerifier:
    mirror: Mirror
    side: DatabaseSide
    spark: Callable[[], SparkSession]
    limit: int

    def reports(self, names: Sequence[TableNames]) -> Iterator[TableReport]:
        pending = list(names)
        moved: set[TableNames] = set()
        for attempt in range(1, self.side.passes + 1):
            if not pending:
                return
            if attempt > 1:
                time.sleep(self.side.retry_secs)
            lakes = {name: self.mirror.look_up(name) for name in pending}
            for name, lake in lakes.items():
                reason = self._not_ready_reason(name, lake)
                if reason:
                    yield self._report(name, NOT_COMPARED, reason)
                    pending.remove(name)
            ready = {name: lake for name in pending if (lake := lakes[name]) is not None}
            point = self._point(ready)
            is_last = not self.side.retry_secs or attempt == self.side.passes
            for name, lake in ready.items():
                report = self._compare_unchanged(name, lake, point)
                if report is None or name in point.behind:
                    moved.add(name)
                if report is not None and (report.is_same or is_last):
                    yield _explained(report, is_moving=name in moved)
                    pending.remove(name)
        for name in pending:
            reason = "it is written to faster than it can be compared; stop the pipeline first"
            yield self._report(name, NOT_COMPARED, reason)

    def _not_ready_reason(self, name: TableNames, lake: LakeTable | None) -> str:
        if lake is None or lake.mark is None:
            return NOTHING_YET[1]
        if not self.side.is_fully_loaded(name, lake.mark.end):
            return f"its initial snapshot is not complete yet; {RUN_FIRST}"
        return ""

    def _point(self, lakes: Mapping[TableNames, LakeTable]) -> Point:
        marks = {name: lake.mark.end for name, lake in lakes.items() if lake.mark is not None}
        return self.side.point(marks)

    def _compare_unchanged(
        self, name: TableNames, lake: LakeTable, point: Point
    ) -> TableReport | None:
        """Compare a table; None if the pipeline wrote to it since it was looked up."""
        reloaded = self.mirror.look_up(name)
        if reloaded is None or reloaded.version != lake.version:
            return None
        return self._compare(name, lake, point)

    def _compare(self, name: TableNames, lake: LakeTable, point: Point) -> TableReport:
        table, changes = point.tables.get(name), point.changes.get(name)
        if name in point.behind:
            reason = f"{point.behind[name]:,} records of its topics are not in the table yet"
            return self._report(name, NOT_COMPARED, f"{reason}; {RUN_FIRST}")
        if table is None:
            return self._report(name, NOT_COMPARED, "the table no longer exists in the database")
        if changes is not None and changes.is_truncated:
            reason = f"it was truncated after the newest batch; {RUN_FIRST}"
            return self._report(name, NOT_COMPARED, reason)
        if changes is not None and changes.rows and not table.key:
            reason = f"it has no key, and {changes.rows:,} rows changed since the newest batch"
            return self._report(name, NOT_COMPARED, f"{reason}; {RUN_FIRST}")
        lake_columns = [column for column in lake.columns if column.name not in table.left_out]
        shared = find_shared_columns(table.columns, pa.schema(lake_columns))
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
            left_out=dict(table.left_out),
            counts=counts,
            rows=differences,
        )

    def _report(self, name: TableNames, status: str, reason: str) -> TableReport:
        return TableReport(
            self.mirror.pipeline, ".".join(name), self.mirror.name(name), status, reason
        )


def _explained(report: TableReport, *, is_moving: bool) -> TableReport:
    """Add to the report of a table that differs why it may, if rows were in transit."""
    if report.status != DIFFERS or report.reason or not is_moving:
        return report
    reason = "rows changed while it was compared, and rows in transit differ; compare it again "
    return replace(report, reason=reason + "while the database is idle")


def _side_report(sums: SideChecksums, table: SideTable) -> SideReport:
    if sums.first is None or sums.last is None or set(table.key) <= set(table.own):
        return SideReport(sums.rows)
    return SideReport(sums.rows, tuple(map(str, sums.first)), tuple(map(str, sums.last)))
