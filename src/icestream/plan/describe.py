"""Describes a plan, as data for JSON and as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from icestream.contracts.secrets import HIDDEN, is_secret
from icestream.errors import IcestreamError, SchemaMismatchError
from icestream.plan.columns import column_lines, describe_columns
from icestream.plan.stores import describe_store
from icestream.plan.table_changes import column_changes, partition_changes, partitioning_text
from icestream.sinks.iceberg.options import MAIN, IcebergOptions
from icestream.sinks.iceberg.partition_terms import parse_partition_terms, parse_sort
from icestream.sinks.iceberg.properties import table_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog
    from icestream.contracts.sink import Sink
    from icestream.plan.plan import PipelinePlan, Plan


# Bytes of index per row: key and position, with twice the key if it is hashed. Optionally also the
# row's id and its sequence.
EXACT_BYTES, HASHED_BYTES, ROW_ID_BYTES, SEQUENCE_BYTES = 12, 20, 8, 8
MANY_FILES = 5_000
LARGE_INDEX = 16 << 30


def upsert_strategy(options: IcebergOptions, table: Table | None) -> dict[str, Any] | None:
    """Return how an upsert finds the old rows, and its warnings; None for other modes."""
    if options.commit_mode != "upsert" or not options.key_fields:
        return None
    keys = ", ".join(options.key_fields)
    if table is None:
        return {"keys": list(options.key_fields), "way": f"rows by {keys}", "warnings": []}
    held = _snapshot_totals(table)
    ranged = _has_integer_key(options, table)
    row = EXACT_BYTES if ranged else HASHED_BYTES
    row += ROW_ID_BYTES * (table.metadata.format_version >= 3)
    row += SEQUENCE_BYTES * (options.sequence_field is not None)
    size = held["total-records"] * row
    way = (
        f"rows by {keys}, looked up in an index of up to {_format_bytes(size)} on each worker "
        f"({held['total-records']} rows in {held['total-data-files']} files)"
    )
    if ranged:
        way += "; files whose key range does not match are skipped"
    return {
        "keys": list(options.key_fields),
        "way": way,
        "warnings": list(_warnings(held, size)),
    }


def _warnings(held: dict[str, int], size: int) -> Any:
    if held["total-equality-deletes"]:
        yield (
            "the table has equality deletes of another writer, and a run will stop at them: "
            "apply them with `rewrite_data_files` first"
        )
    if held["total-data-files"] > MANY_FILES:
        yield (
            f"{held['total-data-files']} files make every batch slow, since each is searched "
            "separately: compact the table"
        )
    if size > LARGE_INDEX:
        yield (
            f"the index takes {_format_bytes(size)} of disk on each worker and is memory-mapped: "
            "a key that grows with time, or a smaller table a tenant (`route_by`), needs less"
        )


def _snapshot_totals(table: Table) -> dict[str, int]:
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    return {
        name: int((summary[name] if summary is not None else None) or 0)
        for name in ("total-records", "total-data-files", "total-equality-deletes")
    }


def _has_integer_key(options: IcebergOptions, table: Table) -> bool:
    from pyiceberg.types import IntegerType, LongType

    if len(options.key_fields) != 1:
        return False
    try:
        kind = table.schema().find_type(options.key_fields[0])
    except ValueError:
        return False
    return isinstance(kind, IntegerType | LongType)


def _format_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


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
        ask: connect to the catalogs to find which tables exist; else that is `unknown`.
    """
    pipelines = [_describe_pipeline(pipeline, ask=ask) for pipeline in plan.pipelines]
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
        "stores": {name: describe_store(catalog) for name, catalog in plan.catalogs.items()},
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


def _describe_pipeline(pipeline: PipelinePlan, *, ask: bool) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "source": {"name": pipeline.source_name, "reads": pipeline.source.identity()},
        "transforms": list(pipeline.steps),
        "sink": pipeline.sink_name,
        "table": _describe_table(pipeline.sink, ask=ask, fills=pipeline),
        "on_error": pipeline.on_error,
        "dead_letter": _describe_table(pipeline.dead_letter, ask=ask)
        if pipeline.dead_letter
        else None,
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


def _describe_table(
    sink: Sink[IcebergOptions], *, ask: bool, fills: PipelinePlan | None = None
) -> dict[str, Any]:
    options, catalog = sink.options, sink.catalog
    wanted = {
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
    if fills is not None:
        wanted |= describe_columns(fills.columns, options.format_version)
    return {**wanted, **_table_action(options, catalog, fills, ask=ask)}


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
    if not options.table:
        who = "the source names the table" if options.route_by is None else "the rows name them"
        return {"action": "unknown", "reason": who, "upsert": way}
    if _is_missing_catalog_file(catalog):
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
    properties = [
        {"property": key, "from": table.properties.get(key), "to": value}
        for key, value in options.table_properties.items()
        if table.properties.get(key) != value and not is_secret(key, value)
    ]
    if fills is None:
        return properties
    return [*properties, *partition_changes(options, table), *column_changes(fills, table)]


def _is_missing_catalog_file(catalog: Catalog[Any]) -> bool:
    """Tell whether the catalog is a file that does not exist; connecting would create it."""
    uri = catalog.pyiceberg_properties().get("uri", "")
    if not uri.startswith("sqlite:///"):
        return False
    return not Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0])).exists()


def _find_table(options: IcebergOptions, catalog: Catalog[Any]) -> Table | None:
    try:
        return catalog.find_table((*options.namespace, options.table))
    except OSError as exc:
        raise IcestreamError(f"the table's metadata cannot be read ({exc})") from exc


UNAVAILABLE = "not available in this version"
ACTIONS = {
    "create": "would be created",
    "change": "would be changed",
    "none": "exists",
    "missing": "does not exist, and `create` is false",
    "refused": "does not match the rows, a run would stop",
    "unknown": "unknown",
}


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
    for step in pipeline["transforms"]:
        yield f"    transform  {step}"
    yield from _table_lines("table", pipeline["table"])
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


def _table_lines(label: str, table: dict[str, Any]) -> Iterator[str]:
    if table.get("route_by"):
        yield f"    {label.ljust(9)}  routed by {table['route_by']} into {table['name']}"
        return
    action = table["action"]
    reason = f": {table['reason']}" if "reason" in table else ""
    yield f"  {MARKS[action]} {label.ljust(9)}  {table['name']} {ACTIONS[action]}{reason}"
    if table.get("todo"):
        yield f"  !   {table['todo']}"
    if action == "create" and label == "table":
        yield from (f"  +   {line}" for line in column_lines(table))
        terms = ", ".join(table["partitioning"])
        yield f"  +   partitioned by {terms}" if terms else "  +   unpartitioned"
        if table["sort_order"]:
            yield f"  +   sorted by {', '.join(table['sort_order'])}"
        yield from (f"  +   {key} = {value}" for key, value in table["properties"].items())
    yield from (f"  ~   {_change_text(change)}" for change in table.get("changes", ()))


def _change_text(change: dict[str, Any]) -> str:
    if "property" in change:
        return f"{change['property']} = {change['from']} -> {change['to']}"
    if "layout" in change:
        new = partitioning_text(change["to"]).removeprefix("partitioned ")
        return f"{partitioning_text(change['from'])}, new files {new}"
    return str(change["words"])


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
