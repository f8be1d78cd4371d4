"""Checks `route_by` and pipelines with CDC sources, before any rows are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.columns import UNKNOWN_COLUMNS
from icestream.errors import IcestreamError, PlanError
from icestream.plan.sources import build_source
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from icestream.config import Component, Config


EXAMPLE = "Write a column, e.g. `route_by: kind`, or SQL that gives text: `lower(kind)`."


def route_problems(
    config: Config, component: Component, options: IcebergOptions
) -> Iterator[PlanError]:
    """Yield what is wrong with the `route_by` of a sink."""
    if options.route_by is None:
        if "allowed_tables" in options.model_fields_set:
            yield PlanError(
                "without `route_by` the sink writes to one table, and ignores 'allowed_tables'",
                where=config.tree.where((*component.path, "allowed_tables")),
                todo="Remove it, or add `route_by`.",
            )
        return
    from icestream.schemas.expressions import bind_expression

    tree, path = config.tree, (*component.path, "route_by")
    if options.table:
        yield PlanError(
            f"`table` names one table, {options.table!r}, and `route_by` another for each row",
            where=tree.where((*component.path, "table")),
            todo="Take one of them out.",
        )
    if not options.namespace:
        yield PlanError(
            "'namespace' is missing",
            where=tree.where((*component.path, "namespace"), key=True, at=path),
            todo="Add e.g. `namespace: analytics`: tables without one of their own go there.",
        )
    for what, _ in bind_expression(options.route_by, UNKNOWN_COLUMNS):
        yield PlanError(what, where=tree.where(path), todo=EXAMPLE)


def reads_changes(config: Config, component: Component | None) -> bool | None:
    """Tell whether a source gives changes, with tables and keys of their own.

    None if it can't be read or built, and so can't be asked.
    """
    if component is None:
        return None
    try:
        return build_source(config, component).traits.changes
    except IcestreamError:
        return None


def mirror_problems(config: Config, sinks: Collection[str] = ()) -> Iterator[PlanError]:
    """Yield what is wrong with the pipelines of sources of changes, and with further sinks."""
    for name in sinks:
        yield from _sink_problems(config, config.sinks[name])
    for pipeline in config.pipelines.values():
        if not reads_changes(config, config.sources.get(pipeline.source)):
            continue
        if pipeline.sink in config.sinks:
            yield from _sink_problems(config, config.sinks[pipeline.sink])


def _sink_problems(config: Config, component: Component) -> Iterator[PlanError]:
    options = component.options
    if not isinstance(options, IcebergOptions):
        return
    given = options.model_fields_set
    if "commit_mode" in given and options.commit_mode not in ("append", "upsert"):
        yield PlanError(
            f"commit_mode {options.commit_mode!r} would overwrite the rows of earlier changes",
            where=config.tree.where((*component.path, "commit_mode")),
            todo="Leave it out: changes are then applied by key. `append` keeps every change as a "
            "row.",
        )
    if "route_by" in given:
        yield PlanError(
            "`route_by` can't be used with a CDC source: each change names its table already",
            where=config.tree.where((*component.path, "route_by"), key=True),
            todo="Remove it.",
        )
