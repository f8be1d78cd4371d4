"""`icestream schema`: shows a table's columns and compares them with the stream's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_config_option
from icestream.cli.plan import DIFFERENCES
from icestream.cli.snapshots import print_listing, select
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

    from icestream.plan.pipeline_tables import PipelineTable
    from icestream.plan.plan import PipelinePlan, Plan
    from icestream.schemas.changes import SchemaChange
    from icestream.schemas.comparison import SchemaComparison

UNKNOWN_REASONS = {
    "routed": "the stream is routed to many tables; their columns are only known during a run",
    "unlisted": "the source no longer lists the table",
    "transformed": "the pipeline has transforms; its columns are only known during a run",
    "unknown": "the stream's columns are not known before the first run",
}
ORIGINS = {
    "declared": "declared by the source",
    "listed": "of the source's table",
    "seen": "seen in earlier batches",
}
HEADERS = ("id", "column", "type", "required", "comment")


@click.group("schema", short_help="Show a table's columns, and compare them with the stream's.")
def command() -> None:
    """Show a table's columns, and compare them with the stream's. Spark is not started."""


@command.command("show", short_help="Show a table's columns and partitions.")
@click.argument("table", required=False)
@click.option("--pipeline", metavar="NAME", help="Use the table that this pipeline writes.")
@with_config_option
def show_command(printer: Printer, path: Path, table: str | None, pipeline: str | None) -> int:
    """Show a table's columns, with their ids, and its partition specs.

    TABLE is `namespace.table` or `catalog.namespace.table`; it may be omitted if the file has
    one table. For a mirror or `route_by`, lists the tables; TABLE may then be the table's name in
    the source.
    """
    from icestream.config import read
    from icestream.plan.planner import build

    found = select(build(read(path)).export_environment(), table, pipeline)
    if isinstance(found, list):
        print_listing(printer, "schema show", found, _listed)
        return 0
    document = {"table": found.name, **_table_document(found.table)}
    lines = [
        f"table           {found.name}",
        f"format version  {document['format_version']}",
        f"partitioning    {document['partitioned_by']}",
        *(f"  older files   {words}" for words in document["partitioned_before"]),
        "",
        output.format_table(HEADERS, [tuple(column.values()) for column in document["columns"]]),
    ]
    printer.print_result(document, "\n".join(lines))
    return 0


@command.command("diff", short_help="Compare the stream's columns with the table's.")
@click.option(
    "--pipeline", "names", multiple=True, metavar="NAME", help="Only this pipeline; repeatable."
)
@click.option(
    "--detailed-exitcode", is_flag=True, help=f"Exit with {DIFFERENCES} if anything differs."
)
@with_config_option
def diff_command(
    printer: Printer, path: Path, names: tuple[str, ...], *, detailed_exitcode: bool
) -> int:
    """Compare the columns of each pipeline's stream with its table.

    The stream's columns are those that its source declares, or those seen in earlier batches; a
    mirror's are asked from its database, for each table. Each
    change is listed with its Spark SQL statement, whether or not `schema_evolution` lets the
    pipeline make the change itself.
    """
    from icestream.config import read
    from icestream.plan.planner import build

    plan = build(read(path), only=names).export_environment()
    reports = [report for pipeline in plan.pipelines for report in _diff_reports(plan, pipeline)]
    printer.print_result({"pipelines": reports}, "\n\n".join(map(_text, reports)))
    differs = any(report["changes"] or report["refused"] for report in reports)
    return DIFFERENCES if detailed_exitcode and differs else 0


def _table_document(table: Table) -> dict[str, Any]:
    from icestream.sinks.iceberg.partitioning import describe_spec

    schema, spec = table.schema(), table.spec()
    older = [each for each in table.specs().values() if each.spec_id != spec.spec_id]
    return {
        "schema_id": schema.schema_id,
        "format_version": table.format_version,
        "columns": list(_columns(schema)),
        "partitioned_by": describe_spec(spec, schema),
        "partitioned_before": [describe_spec(each, schema) for each in reversed(older)],
    }


def _listed(table: Table) -> dict[str, Any]:
    from icestream.sinks.iceberg.partitioning import describe_spec

    schema = table.schema()
    return {
        "columns": len(schema.fields),
        "partitioning": describe_spec(table.spec(), schema),
        "format_version": table.format_version,
    }


def _columns(schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the columns in order; the fields of a nested column follow it."""
    for field_id in schema.field_ids:
        field = schema.find_field(field_id)
        yield {
            "id": field_id,
            "column": schema.find_column_name(field_id),
            "type": _type_name(field.field_type),
            "required": field.required,
            "comment": field.doc,
        }


def _type_name(kind: IcebergType) -> str:
    """Return a type's name; of a nested type only the outermost: its fields have own lines."""
    return str(kind) if kind.is_primitive else type(kind).__name__.removesuffix("Type").lower()


def _diff_reports(plan: Plan, pipeline: PipelinePlan) -> Iterator[dict[str, Any]]:
    """Yield a report for the table of a pipeline, or for each table that its source lists."""
    from icestream.plan.pipeline_tables import find_pipeline_tables

    if not pipeline.sink.is_mirror:
        yield _diff_report(plan, pipeline)
        return
    found = find_pipeline_tables(plan, pipeline, asks_source=True)
    if found.error is not None:
        raise found.error
    if found.named_by == "rows":
        yield _diff_report(plan, pipeline)
        return
    for one in found.tables:
        yield _mirror_report(pipeline, one)


def _mirror_report(pipeline: PipelinePlan, one: PipelineTable) -> dict[str, Any]:
    from icestream.plan.describe_tables import compare_mirror
    from icestream.sinks.iceberg.multi.mirror_table import evolution_of

    evolution = evolution_of(pipeline.sink.options)
    report: dict[str, Any] = {
        "pipeline": pipeline.name,
        "table": one.name,
        "schema_evolution": evolution,
        "stream": _mirror_stream(pipeline, one),
        "exists": one.table is not None,
        "changes": [],
        "sql": [],
        "refused": None if one.error is None else str(one.error),
    }
    if one.table is None or one.schema is None or report["stream"] != "listed":
        return report
    try:
        options, found = compare_mirror(pipeline, one.schema, one.table)
    except SchemaMismatchError as exc:
        return {**report, "refused": str(exc)}
    return {**report, **_changes_document(found, evolution, options.branch, one.name)}


def _mirror_stream(pipeline: PipelinePlan, one: PipelineTable) -> str:
    if one.schema is None and one.error is None:
        return "unlisted"
    is_transformed = one.source is not None and pipeline.transforms_table(one.source)
    return "transformed" if is_transformed and one.error is None else "listed"


def _diff_report(plan: Plan, pipeline: PipelinePlan) -> dict[str, Any]:
    from icestream.plan.table_changes import compare_columns
    from icestream.tables.lookup import load_table

    options = pipeline.sink.options
    evolution, branch = options.schema_evolution, options.branch
    name = pipeline.sink.identity()
    columns, origin = _stream_columns(plan, pipeline)
    report: dict[str, Any] = {
        "pipeline": pipeline.name,
        "table": name,
        "schema_evolution": evolution,
        "stream": origin,
        "exists": False,
        "changes": [],
        "sql": [],
        "refused": None,
    }
    if columns is None:
        return report
    table = load_table(name.split("."), plan.catalogs)
    if table is None:
        return report
    found = compare_columns(pipeline, table, columns)
    return {**report, "exists": True, **_changes_document(found, evolution, branch, name)}


def _stream_columns(plan: Plan, pipeline: PipelinePlan) -> tuple[pa.Schema | None, str]:
    """Return the columns of the rows that reach the table, and where they are known from."""
    from icestream.engine.batch.columns import remembered_columns
    from icestream.engine.state import PipelineState

    if pipeline.sink.single_table() is None:
        return None, "routed"
    if pipeline.transforms:
        return None, "transformed"
    declared = pipeline.source.schema()
    if declared is not None:
        return declared, "declared"
    known = remembered_columns(PipelineState(plan.state, pipeline.name))
    return known, "unknown" if known is None else "seen"


def _changes_document(
    found: SchemaComparison, evolution: str, branch: str, table: str
) -> dict[str, Any]:
    from icestream.sinks.iceberg.migration import allowed_changes

    refused = None
    try:
        made = allowed_changes(found, evolution, branch)
    except SchemaMismatchError as exc:
        made, refused = [], str(exc)
    # A nullable column for a required one is no schema change: rows are checked one by one.
    changes = made if refused is None else list(found.changes)
    return {
        "changes": [{**change.to_json(), "words": str(change)} for change in changes],
        "sql": [_statement(change, table) for change in changes],
        "refused": refused,
    }


def _statement(change: SchemaChange, table: str) -> str:
    from icestream.tables.schema import to_sql

    try:
        return to_sql([change], table)[0]
    except SchemaMismatchError as exc:
        return f"-- {exc.what}"


def _text(report: dict[str, Any]) -> str:
    evolution = f"schema_evolution: {report['schema_evolution']}"
    head = f"{report['pipeline']} -> {report['table']} ({evolution})"
    return "\n".join([head, *_lines(report)])


def _lines(report: dict[str, Any]) -> Iterator[str]:
    if report["stream"] in UNKNOWN_REASONS:
        yield f"  {UNKNOWN_REASONS[report['stream']]}"
        return
    if not report["exists"] and report["refused"] is None:
        yield "  the table does not exist yet; `icestream run` will create it"
        return
    if not report["changes"] and report["refused"] is None:
        yield f"  the columns {ORIGINS[report['stream']]} match the table"
        return
    for change in report["changes"]:
        yield f"  ~ {change['words']}"
    if report["refused"] is not None:
        yield from (f"  ! {line.strip()}" for line in report["refused"].splitlines())
    if report["sql"]:
        yield ""
        yield from (f"  {statement};" for statement in report["sql"])
