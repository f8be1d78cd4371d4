"""Describes the tables of a mirror or fan-out, and what a run creates in their source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icestream.errors import IcestreamError, SchemaMismatchError
from icestream.plan.table_changes import (
    change_text,
    partition_changes,
    partitioning_text,
    property_changes,
    table_layout,
)
from icestream.plan.upsert_strategy import upsert_strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.table import Table

    from icestream.contracts.changes import ChangeSchema
    from icestream.plan.pipeline_tables import PipelineTable, PipelineTables
    from icestream.plan.plan import PipelinePlan
    from icestream.schemas.comparison import SchemaComparison
    from icestream.schemas.mirror_columns import MirrorSchema
    from icestream.sinks.iceberg.options import IcebergOptions


# Of more tables, only those that a run would change, and a number of the others, are shown as text.
MAX_SHOWN_TABLES = 20
# With more new tables than this, their columns are only in the JSON document.
MAX_TABLES_WITH_COLUMNS = 3
MARKS = {
    "create": "+",
    "change": "~",
    "none": " ",
    "missing": "!",
    "refused": "!",
    "unknown": "?",
}
ACTIONS = {
    "create": "would be created",
    "change": "would be changed",
    "none": "exists",
    "missing": "does not exist, and `create` is false",
    "refused": "does not match the rows, a run would stop",
    "unknown": "unknown",
}
UNLISTED = "the source no longer lists its table"
# Of the many reasons for which a run refuses a table, the text names one.
STOPS = "would stop the run"
NAMED_BY = {"source": "the source names the tables", "rows": "the rows name the tables"}


def describe_objects(found: PipelineTables) -> list[dict[str, Any]]:
    """Return what a run needs in the source, and whether it would create it."""
    return [
        {"kind": one.kind, "name": one.name, "action": "none" if one.exists else "create"}
        for one in found.objects
    ]


def describe_tables(pipeline: PipelinePlan, found: PipelineTables) -> list[dict[str, Any]]:
    """Return each table of a mirror or fan-out, and what a run would do with it."""
    described = [_describe(pipeline, one) for one in found.tables]
    if found.named_by == "source":
        for one, table in zip(described, found.tables, strict=True):
            if table.schema is None and one["action"] == "none":
                one["reason"] = UNLISTED
    return described


def _describe(pipeline: PipelinePlan, one: PipelineTable) -> dict[str, Any]:
    described = {
        "name": one.name,
        "source": None if one.source is None else ".".join(one.source),
    }
    try:
        if one.error is not None:
            raise one.error
        return {**described, **_action(pipeline, one)}
    except IcestreamError as exc:
        action = "refused" if isinstance(exc, SchemaMismatchError) else "unknown"
        return {**described, "action": action, "reason": exc.what, "todo": exc.todo}


def _action(pipeline: PipelinePlan, one: PipelineTable) -> dict[str, Any]:
    from icestream.sinks.iceberg.ledger import foreign_table_error
    from icestream.sinks.iceberg.multi.tables import DROPPED

    if one.table is None and one.is_written:
        return {"action": "refused", "reason": DROPPED, "todo": ""}
    if one.table is not None and not _may_write(pipeline, one.identifier, one.table):
        error = foreign_table_error(one.identifier)
        return {"action": "refused", "reason": error.what, "todo": error.todo}
    is_known = one.schema is not None and not pipeline.transforms_table(one.source or ())
    if one.table is None:
        return _new_table(pipeline, one.schema) if is_known else _transformed_table(pipeline)
    if is_known:
        return _existing_table(pipeline, one.schema, one.table)
    changes = property_changes(pipeline.sink.options, one.table)
    if not pipeline.sink.is_mirror:
        changes += partition_changes(pipeline.sink.options, one.table)
    return {"action": "change" if changes else "none", "changes": changes}


def _may_write(pipeline: PipelinePlan, identifier: tuple[str, ...], table: Table) -> bool:
    from icestream.sinks.iceberg.ledger import is_own_table
    from icestream.sinks.iceberg.multi.table_names import TableNameRules

    sink = pipeline.sink
    is_named = bool(sink.options.table)
    return (
        is_named
        or TableNameRules.of(sink.options, sink.catalog).is_listed(identifier)
        or is_own_table(table.properties, pipeline.name)
    )


def _transformed_table(pipeline: PipelinePlan) -> dict[str, Any]:
    action = "create" if pipeline.sink.options.create else "missing"
    return {"action": action, "reason": "its transforms decide the columns"}


def _new_table(pipeline: PipelinePlan, schema: pa.Schema) -> dict[str, Any]:
    from icestream.schemas.comparison import arrow_to_iceberg
    from icestream.sinks.iceberg.partition_terms import parse_partition_terms

    mirror_schema = _mirror_schema(pipeline, schema, None)
    options = _options(pipeline, mirror_schema, exists=False)
    columns = arrow_to_iceberg(_columns(pipeline, options, mirror_schema), options.format_version)
    size = mirror_schema.change_schema.source_bytes
    terms = [str(term) for term in parse_partition_terms(options)]
    return {
        "action": "create" if options.create else "missing",
        "commit_mode": options.commit_mode,
        "columns": [{"name": one.name, "type": str(one.field_type)} for one in columns.fields],
        "key": list(options.key_fields or mirror_schema.change_schema.key),
        "partitioning": terms,
        "partitioning_reason": _partitioning_reason(
            pipeline.sink.options, mirror_schema.change_schema, terms
        ),
        "source_bytes": size,
    }


def compare_mirror(
    pipeline: PipelinePlan, schema: pa.Schema, table: Table
) -> tuple[IcebergOptions, SchemaComparison]:
    """Return the options of a mirrored table, and what its source's schema asks of it.

    Raises:
        SchemaMismatchError: the source's table has no key, or another than the file.
    """
    from icestream.sinks.iceberg.migration import compare_with_table
    from icestream.sinks.iceberg.multi.mirror_table import source_renames

    mirror_schema = _mirror_schema(pipeline, schema, table)
    options = _options(pipeline, mirror_schema, exists=True)
    renames = source_renames(
        table.schema(), table.properties, pipeline.name, mirror_schema.row_columns
    )
    comparison = compare_with_table(
        table_layout(table, pipeline.name),
        _columns(pipeline, options, mirror_schema),
        options.model_copy(update={"renames": {**options.renames, **renames}}),
        declared=mirror_schema.change_schema.is_whole,
    )
    return options, comparison


def _existing_table(pipeline: PipelinePlan, schema: pa.Schema, table: Table) -> dict[str, Any]:
    from icestream.sinks.iceberg.migration import allowed_changes
    from icestream.sinks.iceberg.partitioning import describe_spec

    options, comparison = compare_mirror(pipeline, schema, table)
    changes = allowed_changes(comparison, options.schema_evolution, options.branch)
    described = [
        *property_changes(options, table),
        *partition_changes(options, table),
        *({**change.to_json(), "words": str(change)} for change in changes),
    ]
    return {
        "action": "change" if described else "none",
        "commit_mode": options.commit_mode,
        "changes": described,
        "key": list(options.key_fields),
        "partitioned_by": describe_spec(table.spec(), table.schema()),
        "upsert": upsert_strategy(options, table),
    }


def _mirror_schema(pipeline: PipelinePlan, schema: pa.Schema, table: Table | None) -> MirrorSchema:
    from icestream.schemas.mirror_columns import merge_change_schemas
    from icestream.sinks.iceberg.multi.mirror_table import op_name_of

    current = None if table is None else table.schema().as_arrow()
    op_name = op_name_of(pipeline.sink.options)
    merged = merge_change_schemas([schema], current, op_name=op_name)
    return replace(merged, keeps_missing=pipeline.sink.keeps_missing_fields())


def _options(
    pipeline: PipelinePlan, mirror_schema: MirrorSchema, *, exists: bool
) -> IcebergOptions:
    from icestream.sinks.iceberg.multi.mirror_table import table_options

    return table_options(pipeline.sink.options, mirror_schema, keeps_spec=exists)


def _columns(
    pipeline: PipelinePlan, options: IcebergOptions, mirror_schema: MirrorSchema
) -> pa.Schema:
    from icestream.sinks.iceberg.multi.mirror_table import table_columns
    from icestream.sinks.iceberg.sink import IcebergTableSink

    sink = IcebergTableSink(options, pipeline.sink.catalog, pipeline.sink.name)
    return table_columns(mirror_schema, sink.mode)


def _partitioning_reason(
    options: IcebergOptions, change_schema: ChangeSchema, terms: list[str]
) -> str:
    from icestream.sinks.iceberg.multi.mirror_table import default_buckets

    if {"partitioning", "num_buckets"} & options.model_fields_set:
        return "set in the file"
    size = change_schema.source_bytes
    if size is None:
        return "no first load"
    about = f"about {_format_size(size)} in the source" if size else "empty in the source"
    is_bucketed = bool(terms) or not default_buckets(size)
    return about if is_bucketed else f"{about}, but no key column can be bucketed"


def _format_size(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def object_lines(objects: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each object of the source."""
    for one in objects:
        mark, words = ("+", "would be created") if one["action"] == "create" else (" ", "exists")
        yield f"  {mark} source     {one['kind']} {one['name']} {words}"


def mirrored_text(tables: list[dict[str, Any]]) -> str:
    """Return how many tables a mirror has, without those that its source no longer lists."""
    count = sum(table.get("reason") != UNLISTED for table in tables)
    return f"mirrors {count} table{'' if count == 1 else 's'}"


def tables_lines(tables: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the tables of a mirror or fan-out: those that exist come last."""
    ordered = sorted(tables, key=lambda table: table["action"] == "none")
    created = [table for table in tables if table["action"] == "create"]
    with_columns = len(created) <= MAX_TABLES_WITH_COLUMNS
    hidden: dict[str, int] = {}
    shown = 0
    for table in ordered:
        action = table["action"]
        if action in ("create", "none") and shown >= MAX_SHOWN_TABLES:
            hidden[action] = hidden.get(action, 0) + 1
            continue
        shown += 1
        yield from _table_lines(table, with_columns=with_columns)
    for action, count in hidden.items():
        words = "would be created" if action == "create" else "exist"
        mark = "+" if action == "create" else " "
        yield f"  {mark} table      ... and {count} more that {words}: see `--output json`"


def _table_lines(table: dict[str, Any], *, with_columns: bool) -> Iterator[str]:
    mark, words = MARKS[table["action"]], {**ACTIONS, "refused": STOPS}[table["action"]]
    reason = f": {table['reason']}" if table.get("reason") else ""
    yield f"  {mark} table      {table['name']} {words}{_layout_text(table)}{reason}"
    if table.get("todo"):
        yield f"  !   {table['todo']}"
    if with_columns:
        columns = table.get("columns", ())
        yield from (f"  +   column {one['name']} {one['type']}" for one in columns)
    yield from (f"  ~   {change_text(change)}" for change in table.get("changes", ()))
    warnings = (table.get("upsert") or {}).get("warnings", ())
    yield from (f"  !   {warning}" for warning in warnings)


def _layout_text(table: dict[str, Any]) -> str:
    if "columns" not in table:
        return ""
    count, key = len(table["columns"]), ", ".join(table["key"])
    columns = f"{count} column{'' if count == 1 else 's'}"
    terms = ", ".join(table["partitioning"]) or "unpartitioned"
    layout = f"{partitioning_text(terms)}: {table['partitioning_reason']}"
    source = f" from {table['source']}" if table["source"] else ""
    return f"{source} with {columns}, {f'key {key}' if key else 'no key'}; {layout}"
