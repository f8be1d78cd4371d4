"""Writes a described plan as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.plan.describe import MARKS
from icestream.sinks.iceberg.options import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

UNAVAILABLE = "not available in this version"
ACTIONS = {
    "create": "would be created",
    "change": "would be changed",
    "none": "exists",
    "missing": "does not exist, and `create` is false",
    "refused": "does not fit, a run would stop",
    "unknown": "unknown",
}


def render_text(description: dict[str, Any]) -> str:
    """Return a plan as text; `+` marks what would be created and `~` what would be changed."""
    return "\n".join(_lines(description))


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    yield f"{plan['file']}, state in {plan['state']}"
    for pipeline in plan["pipelines"]:
        yield ""
        yield from _pipeline(pipeline)
    yield ""
    yield from _section("Sources that no pipeline runs", plan["unused"]["sources"])
    yield from _section("Sinks that no pipeline runs", plan["unused"]["sinks"])
    yield from _section("Catalogs", plan["catalogs"])
    yield "Jars"
    yield from (f"    {jar}" for jar in plan["jars"])
    yield from _section("Spark", {"spark.master": plan["spark"]["master"], **plan["spark"]["conf"]})
    metrics = plan["metrics"]
    port = metrics["port"]
    yield f"Metrics {metrics['host']}:{port}" if port else "Metrics off"
    if plan["planned"]:
        yield f"Named in the file, {UNAVAILABLE}"
        yield from (f"  ! {item['where']}: {item['name']!r}" for item in plan["planned"])
    yield ""
    yield _closing(plan["counts"], len(plan["pipelines"]))


def _section(title: str, values: dict[str, Any]) -> Iterator[str]:
    if values:
        yield title
        width = max(map(len, values))
        yield from (f"    {key.ljust(width)}  {value}" for key, value in values.items())


def _pipeline(pipeline: dict[str, Any]) -> Iterator[str]:
    yield f"Pipeline {pipeline['name']}"
    source = pipeline["source"]
    yield f"    source     {source['name']}: {source['reads']}"
    for step in pipeline["transforms"]:
        yield f"    transform  {step}"
    yield from _table("table", pipeline["table"])
    yield from _branch(pipeline["table"])
    yield from _upsert(pipeline["table"].get("upsert"))
    batching = pipeline["batching"]
    mode = pipeline["table"].get("commit_mode", "append")
    how = "" if mode == "append" else f"{mode}, "
    yield (
        f"    commit     {how}after {batching['batch_size']} rows or "
        f"{batching['flush_interval_secs']:g} s, at most {batching['max_batch_rows']} rows"
    )
    yield f"    bad rows   {pipeline['on_error']}"
    if pipeline["dead_letter"]:
        yield from _table("bad rows", pipeline["dead_letter"])


def _table(label: str, table: dict[str, Any]) -> Iterator[str]:
    if table.get("route_by"):
        yield f"    {label.ljust(9)}  routed by {table['route_by']} into {table['name']}"
        return
    action = table["action"]
    reason = f": {table['reason']}" if "reason" in table else ""
    yield f"  {MARKS[action]} {label.ljust(9)}  {table['name']} {ACTIONS[action]}{reason}"
    if table.get("todo"):
        yield f"  !   {table['todo']}"
    if action == "create" and label == "table":
        yield f"  +   partitioned by {', '.join(table['partitioning']) or 'nothing'}"
        if table["sort_order"]:
            yield f"  +   sorted by {', '.join(table['sort_order'])}"
        yield from (f"  +   {key} = {value}" for key, value in table["properties"].items())
    yield from (f"  ~   {_change(change)}" for change in table.get("changes", ()))


def _change(change: dict[str, Any]) -> str:
    if "property" in change:
        return f"{change['property']} = {change['from']} -> {change['to']}"
    if "layout" in change:
        return f"partitioned by {change['from']}, new files by {change['to']}"
    return str(change["words"])


def _branch(table: dict[str, Any]) -> Iterator[str]:
    branch, publish = table.get("branch", MAIN), table.get("publish")
    if publish:
        yield (
            f"    branch     {branch}, published to {publish['to']} once its checks hold: "
            f"{', '.join(publish['checks'])}"
        )
    elif branch != MAIN:
        yield f"    branch     {branch}"


def _upsert(upsert: dict[str, Any] | None) -> Iterator[str]:
    if upsert:
        yield f"    upsert     {upsert['way']}"
        yield from (f"  !   {warning}" for warning in upsert["warnings"])


def _closing(counts: dict[str, int], pipelines: int) -> str:
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
