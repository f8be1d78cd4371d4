"""Describes a plan, as data for JSON and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.secrets import HIDDEN, is_secret
from icestream.errors import IcestreamError, SchemaMismatchError
from icestream.plan.columns import column_lines, describe_columns
from icestream.plan.describe_tables import (
    ACTIONS,
    MARKS,
    NAMED_BY,
    describe_objects,
    describe_tables,
    mirrored_text,
    object_lines,
    tables_lines,
)
from icestream.plan.pipeline_tables import (
    PipelineTables,
    find_pipeline_tables,
    is_missing_catalog_file,
)
from icestream.plan.stores import describe_store
from icestream.plan.table_changes import (
    change_text,
    column_changes,
    partition_changes,
    property_changes,
)
from icestream.plan.upsert_strategy import upsert_strategy
from icestream.sinks.iceberg.options import MAIN, IcebergOptions
from icestream.sinks.iceberg.partition_terms import parse_partition_terms, parse_sort
from icestream.sinks.iceberg.properties import table_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.sink import Sink
    from icestream.plan.packages import MissingPackage
    from icestream.plan.plan import PipelinePlan, Plan


FORMAT_VERSION = 1


def describe(
    plan: Plan, *, ask: bool = True, missing: Iterable[MissingPackage] = ()
) -> dict[str, Any]:
    """Return the plan as data, fit for JSON and free of secrets.

    Args:
        plan: the plan.
        ask: connect to the catalogs to find which tables exist; else that is `unknown`.
        missing: packages that a run needs, and that are not installed.
    """
    pipelines = [_describe_pipeline(plan, pipeline, ask=ask) for pipeline in plan.pipelines]
    actions = dict(one for pipeline in pipelines for one in _actions(pipeline))
    return {
        "format_version": FORMAT_VERSION,
        "file": str(plan.path),
        "state": str(plan.state),
        "pipelines": pipelines,
        "unused": {"sources": _unused_sources(plan), "sinks": _unused_sinks(plan)},
        "catalogs": {name: catalog.identity() for name, catalog in plan.catalogs.items()},
        "stores": {name: describe_store(catalog) for name, catalog in plan.catalogs.items()},
        "jars": list(plan.jars),
        "spark": {"master": plan.master, "conf": plan.visible_conf()},
        "metrics": {"host": plan.metrics_host, "port": plan.metrics_port},
        "needs": [{**each.to_json(), "words": str(each)} for each in missing],
        "planned": [{"where": item.where, "name": item.name} for item in plan.planned],
        "counts": {
            **{action: list(actions.values()).count(action) for action in MARKS},
            "planned": len(plan.planned),
        },
    }


def _actions(pipeline: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the name and action of everything that a run of the pipeline needs."""
    for one in pipeline["source"]["objects"]:
        yield (one["kind"], one["name"]), one["action"]
    table, dead_letter = pipeline["table"], pipeline["dead_letter"]
    if "reason" in table or not pipeline["tables"]:
        yield table["name"], table["action"]
    for one in (*pipeline["tables"], *([dead_letter] if dead_letter else [])):
        yield one["name"], one["action"]


def _unused_sources(plan: Plan) -> dict[str, str]:
    used = {pipeline.source_name for pipeline in plan.pipelines}
    return {name: part.identity() for name, part in plan.sources.items() if name not in used}


def _unused_sinks(plan: Plan) -> dict[str, str]:
    used = {pipeline.sink_name for pipeline in plan.pipelines}
    return {name: part.identity() for name, part in plan.sinks.items() if name not in used}


def _describe_pipeline(plan: Plan, pipeline: PipelinePlan, *, ask: bool) -> dict[str, Any]:
    found = _many_tables(plan, pipeline, ask=ask)
    tables = [] if found is None else describe_tables(pipeline, found)
    options, catalog = pipeline.sink.options, pipeline.sink.catalog
    if found is None:
        action = _table_action(options, catalog, pipeline, ask=ask)
        action |= describe_columns(pipeline.columns, options.format_version)
    else:
        action = _tables_action(found, tables, ask=ask)
        action["upsert"] = upsert_strategy(options, None)
    return {
        "name": pipeline.name,
        "source": {
            "name": pipeline.source_name,
            "reads": pipeline.source.identity(),
            "objects": [] if found is None else describe_objects(found),
        },
        "transforms": pipeline.all_steps(),
        "sink": pipeline.sink_name,
        "table": {**_table_options(pipeline.sink), **action},
        "tables": tables,
        "named_by": "file" if found is None else found.named_by,
        "on_error": pipeline.on_error,
        "dead_letter": _describe_dead_letters(pipeline.dead_letter, ask=ask),
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


def _many_tables(plan: Plan, pipeline: PipelinePlan, *, ask: bool) -> PipelineTables | None:
    """Return the tables of a mirror or fan-out; None for a pipeline with one table."""
    if pipeline.sink.single_table() is not None:
        return None
    if not ask:
        return PipelineTables(pipeline.name, named_by="rows")
    return find_pipeline_tables(plan, pipeline, asks_source=True)


def _describe_dead_letters(sink: Sink[Any] | None, *, ask: bool) -> dict[str, Any] | None:
    if sink is None:
        return None
    return {**_table_options(sink), **_table_action(sink.options, sink.catalog, None, ask=ask)}


def _table_options(sink: Sink[IcebergOptions]) -> dict[str, Any]:
    options, catalog = sink.options, sink.catalog
    return {
        "name": sink.identity(),
        "route_by": options.route_by,
        "commit_mode": _commit_mode(sink, options),
        "branch": options.branch,
        "publish": None
        if options.publish is None
        else {"to": options.publish.to, "checks": [one.name for one in options.publish.checks]},
        "format_version": options.format_version,
        "partitioning": [str(term) for term in _partition_terms(options)],
        "sort_order": [str(term) for term in parse_sort(options)],
        "properties": {
            key: HIDDEN if is_secret(key, value) else value
            for key, value in table_properties(options, abilities=catalog.abilities).items()
        },
    }


def _tables_action(
    found: PipelineTables, tables: list[dict[str, Any]], *, ask: bool
) -> dict[str, Any]:
    """Return what a run would do with the tables of a mirror or fan-out as a whole."""
    if not ask:
        return {"action": "unknown", "reason": "skipped"}
    if found.error is not None:
        where = f"{found.error.where}: " if found.error.where else ""
        return {
            "action": "unknown",
            "reason": f"{where}{found.error.what}",
            "todo": found.error.todo,
        }
    if not tables:
        return {"action": "unknown", "reason": NAMED_BY[found.named_by]}
    actions = {table["action"] for table in tables}
    order = ("refused", "missing", "unknown", "create", "change", "none")
    return {"action": next(action for action in order if action in actions)}


def _commit_mode(sink: Sink[Any], options: IcebergOptions) -> str:
    # Changes are applied by key unless the file says otherwise.
    mirrored = sink.is_mirror and "commit_mode" not in options.model_fields_set
    return "upsert" if mirrored else options.commit_mode


def _partition_terms(options: IcebergOptions) -> Iterable[Any]:
    # A change source brings the fields of its partitioning itself.
    named = not isinstance(options.partitioning, str) or options.partition_fields
    return parse_partition_terms(options) if named else ()


def _table_action(
    options: IcebergOptions, catalog: Catalog[Any], fills: PipelinePlan | None, *, ask: bool
) -> dict[str, Any]:
    """Tell what a run would do: create, change, none, or that it would stop; or `unknown`."""
    way = upsert_strategy(options, None)
    missing = {"action": "create" if options.create else "missing", "upsert": way}
    if not ask:
        return {"action": "unknown", "reason": "skipped"}
    if is_missing_catalog_file(catalog):
        return missing
    try:
        table = _find_table(options, catalog)
        if table is None:
            return missing
        changes = _table_changes(options, table, fills)
    except IcestreamError as exc:
        return _action_of_error(exc)
    action = "change" if changes else "none"
    return {"action": action, "changes": changes, "upsert": upsert_strategy(options, table)}


def _action_of_error(exc: IcestreamError) -> dict[str, Any]:
    """Distinguish a table that a run would refuse from one that cannot be read now."""
    if isinstance(exc, SchemaMismatchError):
        return {"action": "refused", "reason": exc.what, "todo": exc.todo}
    return {"action": "unknown", "reason": exc.what}


def _table_changes(
    options: IcebergOptions, table: Table, fills: PipelinePlan | None
) -> list[dict[str, Any]]:
    properties = property_changes(options, table)
    if fills is None:
        return properties
    return [*properties, *partition_changes(options, table), *column_changes(fills, table)]


def _find_table(options: IcebergOptions, catalog: Catalog[Any]) -> Table | None:
    try:
        return catalog.find_table((*options.namespace, options.table))
    except OSError as exc:
        raise IcestreamError(f"the table's metadata cannot be read ({exc})") from exc


UNAVAILABLE = "not available in this version"


def render_text(description: dict[str, Any]) -> str:
    """Return a plan as text; `+` marks what would be created and `~` what would be changed."""
    return "\n".join(_lines(description))


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    yield f"{plan['file']}, state in {plan['state']}"
    for pipeline in plan["pipelines"]:
        yield ""
        yield from _pipeline_lines(pipeline)
    yield ""
    yield from _section("Unused sources", plan["unused"]["sources"])
    yield from _section("Unused sinks", plan["unused"]["sinks"])
    yield from _section("Catalogs", plan["catalogs"])
    yield from _section("Stores", plan["stores"])
    yield "Jars"
    yield from (f"    {jar}" for jar in plan["jars"])
    yield from _section("Spark", {"spark.master": plan["spark"]["master"], **plan["spark"]["conf"]})
    metrics = plan["metrics"]
    port = metrics["port"]
    yield f"Metrics {metrics['host']}:{port}" if port else "Metrics off"
    if plan["needs"]:
        yield "Needed by a run, but not installed"
        yield from (f"  ! {item['words']}" for item in plan["needs"])
    if plan["planned"]:
        yield f"In the file, but {UNAVAILABLE}"
        yield from (f"  ! {item['where']}: {item['name']!r}" for item in plan["planned"])
    yield ""
    yield _summary(plan["counts"], len(plan["pipelines"]))


def _section(title: str, values: dict[str, Any]) -> Iterator[str]:
    if values:
        yield title
        width = max(map(len, values))
        yield from (f"    {key.ljust(width)}  {value}" for key, value in values.items())


def _pipeline_lines(pipeline: dict[str, Any]) -> Iterator[str]:
    yield f"Pipeline {pipeline['name']}"
    source = pipeline["source"]
    yield f"    source     {source['name']}: {source['reads']}"
    yield from object_lines(source["objects"])
    for step in pipeline["transforms"]:
        yield f"    transform  {step}"
    is_single = pipeline["named_by"] == "file"
    yield from _table_lines("table", pipeline["table"]) if is_single else _many_lines(pipeline)
    yield from _branch_lines(pipeline["table"])
    yield from _upsert_lines(pipeline["table"].get("upsert"))
    batching = pipeline["batching"]
    mode = pipeline["table"].get("commit_mode", "append")
    how = "" if mode == "append" else f"{mode}, "
    yield (
        f"    commit     {how}after {batching['batch_size']} rows or "
        f"{batching['flush_interval_secs']:g} s, at most {batching['max_batch_rows']} rows"
    )
    yield f"    bad rows   {pipeline['on_error']}"
    if pipeline["dead_letter"]:
        yield from _table_lines("bad rows", pipeline["dead_letter"])


def _many_lines(pipeline: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables of a mirror or fan-out."""
    table, tables = pipeline["table"], pipeline["tables"]
    if table["route_by"]:
        yield f"    table      routed by {table['route_by']} into {table['name']}"
    elif "reason" not in table:
        yield f"    table      {table['name']} {mirrored_text(tables)}"
    if "reason" in table and (tables or not table["route_by"]):
        yield from _table_lines("table", table)
    yield from tables_lines(tables)
    if tables and pipeline["named_by"] == "rows" and "reason" not in table:
        yield "    table      the rows may name further ones"
    if any(one["action"] == "create" for one in tables):
        yield "  + table      properties of a new table:"
        yield from _property_lines(table)


def _table_lines(label: str, table: dict[str, Any]) -> Iterator[str]:
    action = table["action"]
    reason = f": {table['reason']}" if "reason" in table else ""
    yield f"  {MARKS[action]} {label.ljust(9)}  {table['name']} {ACTIONS[action]}{reason}"
    if table.get("todo"):
        yield f"  !   {table['todo']}"
    if action == "create" and label == "table":
        yield from (f"  +   {line}" for line in column_lines(table))
        terms = ", ".join(table["partitioning"])
        yield f"  +   partitioned by {terms}" if terms else "  +   unpartitioned"
        yield from _property_lines(table)
    yield from (f"  ~   {change_text(change)}" for change in table.get("changes", ()))


def _property_lines(table: dict[str, Any]) -> Iterator[str]:
    if table["sort_order"]:
        yield f"  +   sorted by {', '.join(table['sort_order'])}"
    yield from (f"  +   {key} = {value}" for key, value in table["properties"].items())


def _branch_lines(table: dict[str, Any]) -> Iterator[str]:
    branch, publish = table.get("branch", MAIN), table.get("publish")
    if publish:
        yield (
            f"    branch     {branch}, published to {publish['to']} once its checks hold: "
            f"{', '.join(publish['checks'])}"
        )
    elif branch != MAIN:
        yield f"    branch     {branch}"


def _upsert_lines(upsert: dict[str, Any] | None) -> Iterator[str]:
    if upsert:
        yield f"    upsert     {upsert['way']}"
        yield from (f"  !   {warning}" for warning in upsert["warnings"])


def _summary(counts: dict[str, int], pipelines: int) -> str:
    parts = [
        f"{pipelines} pipeline{'' if pipelines == 1 else 's'}",
        f"{counts['create']} to create",
        f"{counts['change']} to change",
        f"{counts['none']} unchanged",
    ]
    if counts["missing"]:
        parts.append(f"{counts['missing']} missing")
    if counts["refused"]:
        parts.append(f"{counts['refused']} refused")
    if counts["unknown"]:
        parts.append(f"{counts['unknown']} unknown")
    if counts["planned"]:
        parts.append(f"{counts['planned']} {UNAVAILABLE}")
    return f"Plan: {', '.join(parts)}."
