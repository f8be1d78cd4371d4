"""Selects the tables that a command shows: one by name or pipeline, or those of the whole file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import ConnectorError, PlanError
from icestream.plan.pipeline_tables import find_pipeline_tables
from icestream.tables.lookup import NamedTable, find_table

if TYPE_CHECKING:
    from icestream.plan.pipeline_tables import PipelineTable, PipelineTables
    from icestream.plan.plan import PipelinePlan, Plan


def select_tables(
    plan: Plan, name: str | None = None, pipeline: str | None = None
) -> NamedTable | list[PipelineTables]:
    """Return the table that the arguments select, or all tables to choose from.

    Args:
        plan: the plan of the file.
        name: the table's name; for a table of a mirror or fan-out also its last part, or its name
            in the source. It is taken before `pipeline`.
        pipeline: the pipeline whose tables to select.

    Returns:
        The table, if there is only one. Else the tables of each pipeline, of which one is a mirror
        or fan-out.

    Raises:
        ConnectorError: there is no such table.
        PlanError: the pipeline is unknown, or the file has no table, or several without a mirror
            or fan-out.
    """
    if name is not None:
        return _find_by_name(plan, name)
    if pipeline is not None:
        return _of_pipelines(plan, [_find_pipeline(plan, pipeline)])
    if any(_has_many(one) for one in plan.pipelines):
        return _of_pipelines(plan, list(plan.pipelines))
    return find_table(_only_table(plan).split("."), plan.catalogs)


def multi_tables(plan: Plan) -> list[PipelineTable]:
    """Return the tables of every mirror and fan-out of the file."""
    return [
        table
        for pipeline in plan.pipelines
        if _has_many(pipeline)
        for table in find_pipeline_tables(plan, pipeline).tables
    ]


def _has_many(pipeline: PipelinePlan) -> bool:
    return pipeline.sink.single_table() is None


def _find_by_name(plan: Plan, name: str) -> NamedTable:
    known: list[PipelineTable] = []

    def tables() -> list[PipelineTable]:
        # Only if no table has that name: it may load hundreds.
        known.extend(multi_tables(plan))
        return known

    try:
        return find_table(name.split("."), plan.catalogs, tables)
    except ConnectorError:
        matches = [one for one in known if one.identifier[-1] == name or _is_source(one, name)]
        if len(matches) != 1:
            raise
    return _named(plan, matches[0])


def _is_source(one: PipelineTable, name: str) -> bool:
    return one.source is not None and ".".join(one.source) == name


def _named(plan: Plan, one: PipelineTable) -> NamedTable:
    if one.error is not None:
        raise one.error
    if one.table is None:
        return find_table(one.name.split("."), plan.catalogs)
    return NamedTable(one.catalog, one.identifier, one.table)


def _of_pipelines(plan: Plan, pipelines: list[PipelinePlan]) -> NamedTable | list[PipelineTables]:
    if len(pipelines) == 1 and not _has_many(pipelines[0]):
        return find_table(pipelines[0].sink.identity().split("."), plan.catalogs)
    return [find_pipeline_tables(plan, pipeline) for pipeline in pipelines]


def _find_pipeline(plan: Plan, name: str) -> PipelinePlan:
    for pipeline in plan.pipelines:
        if pipeline.name == name:
            return pipeline
    names = ", ".join(one.name for one in plan.pipelines)
    raise PlanError(
        f"unknown pipeline {name!r}",
        where=str(plan.path),
        todo=f"Pipelines: {names or 'none'}.",
    )


def _only_table(plan: Plan) -> str:
    names = list(dict.fromkeys(sink.identity() for sink in plan.sinks.values()))
    if len(names) == 1:
        return names[0]
    if not names:
        raise PlanError(
            "the file has no table", where=str(plan.path), todo="Pass TABLE or --pipeline."
        )
    raise PlanError(
        f"the file has {len(names)} tables",
        where=str(plan.path),
        todo=f"Pass one of them as TABLE: {', '.join(names)}.",
    )
