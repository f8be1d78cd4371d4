"""Finds the mirrors of a plan: pipelines whose tables are to be what a database has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.changes import Shape
from icestream.contracts.sink import MirroredTables
from icestream.errors import PlanError
from icestream.sinks.iceberg.multi.mirror_table import identifier_of, op_name_of
from icestream.sinks.iceberg.options import MAIN
from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.verify.lake_side import LakeTable

if TYPE_CHECKING:
    from icestream.contracts.catalog import Catalog
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.verify.side import Side, TableNames


@dataclass(frozen=True)
class Mirror:
    """A pipeline that mirrors tables.

    Attributes:
        pipeline: its name.
        source: options of the database.
        sink: options of the tables.
        catalog: where they are.
    """

    pipeline: str
    source: PostgresCdcOptions
    sink: IcebergOptions
    catalog: Catalog[Any]

    def side(self) -> Side:
        """Return the database."""
        from icestream.verify.postgres_side import PostgresSide

        return PostgresSide(self.source)

    def identifier(self, table: TableNames) -> tuple[str, ...]:
        """Return namespace and table of what mirrors a table of the database."""
        return identifier_of(self.sink, Shape(table), self.catalog)

    def name(self, table: TableNames) -> str:
        """Return the full name of what mirrors a table, the catalog's first."""
        return ".".join((self.catalog.name, *self.identifier(table)))

    def look_up(self, table: TableNames) -> LakeTable | None:
        """Return what mirrors a table, as it is now."""
        found = self.catalog.find_table(self.identifier(table))
        if found is None:
            return None
        branch = self.sink.branch
        return LakeTable(self.name(table), found, self.pipeline, None if branch == MAIN else branch)

    def is_called(self, table: TableNames, word: str) -> bool:
        """Tell whether a word names a table: as the database, or as the lake calls it."""
        own = ".".join(table)
        name = self.name(table)
        return word in (own, table[-1], name, name.partition(".")[2])


def find_mirrors(plan: Plan) -> list[Mirror]:
    """Return the mirrors of a plan.

    Raises:
        PlanError: it has none.
    """
    found = [mirror for pipeline in plan.pipelines if (mirror := _mirror(pipeline)) is not None]
    if not found:
        raise PlanError(
            "no pipeline mirrors a database",
            where=str(plan.path),
            todo="Only tables that a `postgres-cdc` source fills, with no transforms and without "
            "`commit_mode: append`, can be compared with what they come from.",
        )
    return found


def left_out(plan: Plan) -> dict[str, str]:
    """Return the pipelines that follow a database and can't be compared with it, and why."""
    found = {}
    for pipeline in plan.pipelines:
        if isinstance(pipeline.sink, MirroredTables) and _mirror(pipeline) is None:
            is_other = not isinstance(pipeline.source.options, PostgresCdcOptions)
            found[pipeline.name] = (
                "only tables that a `postgres-cdc` source fills can be compared"
                if is_other
                else "with `commit_mode: append` its tables have every change"
            )
    return found


def _mirror(pipeline: PipelinePlan) -> Mirror | None:
    source = pipeline.source.options
    if not isinstance(pipeline.sink, MirroredTables) or not isinstance(source, PostgresCdcOptions):
        return None
    sink: Any = pipeline.sink
    if op_name_of(sink.options) is not None:
        return None
    return Mirror(pipeline.name, source, sink.options, sink.catalog)
