"""Puts a plan into words: as data that can be printed as JSON, and as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from icestream.contracts.secrets import HIDDEN, is_secret
from icestream.contracts.sink import MirroredTables
from icestream.errors import IcestreamError, SchemaMismatchError
from icestream.plan.upsert_way import upsert_way
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.partition import parse_terms
from icestream.sinks.iceberg.properties import table_properties
from icestream.sinks.iceberg.sort import parse_sort

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.sink import Sink
    from icestream.plan.plan import PipelinePlan, Plan

FORMAT_VERSION = 1
MARKS = {
    "create": "+",
    "change": "~",
    "none": " ",
    "missing": "!",
    "refused": "!",
    "unknown": "?",
}


def describe(plan: Plan, *, ask: bool = True) -> dict[str, Any]:
    """Return the plan as data, fit for JSON and free of secrets.

    Args:
        plan: the plan.
        ask: ask the catalogs which tables exist; without, that is `unknown`.
    """
    pipelines = [_pipeline(pipeline, ask=ask) for pipeline in plan.pipelines]
    tables = [
        table
        for pipeline in pipelines
        for table in (pipeline["table"], pipeline["dead_letter"])
        if table is not None
    ]
    actions = {table["name"]: table["action"] for table in tables}
    return {
        "format_version": FORMAT_VERSION,
        "file": str(plan.path),
        "state": str(plan.state),
        "pipelines": pipelines,
        "unused": {"sources": _unused_sources(plan), "sinks": _unused_sinks(plan)},
        "catalogs": {name: catalog.identity() for name, catalog in plan.catalogs.items()},
        "jars": list(plan.jars),
        "spark": {"master": plan.master, "conf": plan.visible_conf()},
        "metrics": {"host": plan.metrics_host, "port": plan.metrics_port},
        "planned": [{"where": item.where, "name": item.name} for item in plan.planned],
        "counts": {
            **{action: list(actions.values()).count(action) for action in MARKS},
            "planned": len(plan.planned),
        },
    }


def _unused_sources(plan: Plan) -> dict[str, str]:
    used = {pipeline.source_name for pipeline in plan.pipelines}
    return {name: part.identity() for name, part in plan.sources.items() if name not in used}


def _unused_sinks(plan: Plan) -> dict[str, str]:
    used = {pipeline.sink_name for pipeline in plan.pipelines}
    return {name: part.identity() for name, part in plan.sinks.items() if name not in used}


def _pipeline(pipeline: PipelinePlan, *, ask: bool) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "source": {"name": pipeline.source_name, "reads": pipeline.source.identity()},
        "transforms": list(pipeline.steps),
        "sink": pipeline.sink_name,
        "table": _table(pipeline.sink, ask=ask, fills=pipeline),
        "on_error": pipeline.on_error,
        "dead_letter": _table(pipeline.dead_letter, ask=ask) if pipeline.dead_letter else None,
        "batching": {
            "batch_size": pipeline.batching.batch_size,
            "flush_interval_secs": pipeline.batching.flush_interval_secs,
            "max_batch_rows": pipeline.batching.max_batch_rows,
        },
        "restart": {
            "max": pipeline.restart.max,
            "backoff_secs": pipeline.restart.backoff_secs,
        },
    }


def _table(sink: Sink[Any], *, ask: bool, fills: PipelinePlan | None = None) -> dict[str, Any]:
    options = getattr(sink, "options", None)
    catalog = getattr(sink, "catalog", None)
    if not isinstance(options, IcebergOptions) or catalog is None:
        return {"name": sink.identity(), "action": "unknown", "reason": "not an Iceberg table"}
    wanted = {
        "name": sink.identity(),
        "route_by": options.route_by,
        "commit_mode": _commit_mode(sink, options),
        "branch": options.branch,
        "publish": None
        if options.publish is None
        else {"to": options.publish.to, "checks": [one.name for one in options.publish.checks]},
        "format_version": options.format_version,
        "partitioning": [str(term) for term in _terms(options)],
        "sort_order": [str(term) for term in parse_sort(options)],
        "properties": {
            key: HIDDEN if is_secret(key, value) else value
            for key, value in table_properties(options, abilities=catalog.abilities).items()
        },
    }
    return {**wanted, **_action(options, catalog, fills, ask=ask)}


def _commit_mode(sink: Sink[Any], options: IcebergOptions) -> str:
    # Changes are applied by key unless the file says otherwise.
    mirrored = isinstance(sink, MirroredTables) and "commit_mode" not in options.model_fields_set
    return "upsert" if mirrored else options.commit_mode


def _terms(options: IcebergOptions) -> Iterable[Any]:
    # A change source brings the fields of its partitioning itself.
    named = not isinstance(options.partitioning, str) or options.partition_fields
    return parse_terms(options) if named else ()


def _action(
    options: IcebergOptions, catalog: Catalog[Any], fills: PipelinePlan | None, *, ask: bool
) -> dict[str, Any]:
    """Tell what a run would do: create, change, none, or that it would stop; or `unknown`."""
    way = upsert_way(options, None)
    missing = {"action": "create" if options.create else "missing", "upsert": way}
    if not ask:
        return {"action": "unknown", "reason": "not asked"}
    if not options.table:
        who = "the source names the table" if options.route_by is None else "the rows name them"
        return {"action": "unknown", "reason": who, "upsert": way}
    if _is_unmade(catalog):
        return missing
    try:
        table = _existing(options, catalog)
        if table is None:
            return missing
        changes = _changes(options, table, fills)
    except IcestreamError as exc:
        return _hindered(exc)
    action = "change" if changes else "none"
    return {"action": action, "changes": changes, "upsert": upsert_way(options, table)}


def _hindered(exc: IcestreamError) -> dict[str, Any]:
    """Tell a table that a run would refuse too from one that can't be looked at now."""
    if isinstance(exc, SchemaMismatchError):
        return {"action": "refused", "reason": exc.what, "todo": exc.todo}
    return {"action": "unknown", "reason": exc.what}


def _changes(
    options: IcebergOptions, table: Table, fills: PipelinePlan | None
) -> list[dict[str, Any]]:
    from icestream.plan.table_changes import column_changes, partition_changes

    properties = [
        {"property": key, "from": table.properties.get(key), "to": value}
        for key, value in options.table_properties.items()
        if table.properties.get(key) != value and not is_secret(key, value)
    ]
    if fills is None:
        return properties
    return [*properties, *partition_changes(options, table), *column_changes(fills, table)]


def _is_unmade(catalog: Catalog[Any]) -> bool:
    """Tell whether the catalog is a file that is not there yet; asking it would make it."""
    uri = catalog.pyiceberg_properties().get("uri", "")
    if not uri.startswith("sqlite:///"):
        return False
    return not Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0])).exists()


def _existing(options: IcebergOptions, catalog: Catalog[Any]) -> Table | None:
    try:
        return catalog.find_table((*options.namespace, options.table))
    except OSError as exc:
        raise IcestreamError(f"the table's metadata cannot be read ({exc})") from exc
