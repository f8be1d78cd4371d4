"""What a run would change in an existing table: its partitioning and its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.faults import CheckStep
from icestream.contracts.secrets import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyiceberg.table import Table

    from icestream.plan.plan import PipelinePlan
    from icestream.schemas.comparison import SchemaComparison
    from icestream.sinks.iceberg.migration import TableLayout
    from icestream.sinks.iceberg.options import IcebergOptions


UNKNOWN_BEFORE_RUN = "only known during a run"


def compatibility_steps(pipeline: PipelinePlan) -> Iterator[CheckStep]:
    """Yield the steps that compare a pipeline's rows with its table."""
    yield CheckStep("fit table", lambda: _check_compatibility(pipeline))


def _check_compatibility(pipeline: PipelinePlan) -> str:
    sink = pipeline.sink
    identifier = sink.single_table()
    if identifier is None:
        return f"the stream is routed to many tables; their columns are {UNKNOWN_BEFORE_RUN}"
    table = sink.catalog.find_table(identifier)
    if table is None:
        return "the table will be created from the source schema"
    changes = [*partition_changes(sink.options, table)]
    if pipeline.transforms:
        return _changes_text(
            changes, f"the pipeline has transforms; its columns are {UNKNOWN_BEFORE_RUN}"
        )
    if pipeline.source.schema() is None:
        return _changes_text(
            changes, f"the source declares no columns; they are {UNKNOWN_BEFORE_RUN}"
        )
    return _changes_text(
        [*changes, *column_changes(pipeline, table)], "the source schema matches the table"
    )


def _changes_text(changes: list[dict[str, Any]], otherwise: str) -> str:
    if not changes:
        return otherwise
    words = [each.get("words") or partitioning_text(each["to"]) for each in changes]
    return f"would change: {'; '.join(words)}"


def partitioning_text(terms: str) -> str:
    """Return a phrase for the partitioning of a table, as `describe_spec` returns it."""
    return terms if terms == "unpartitioned" else f"partitioned by {terms}"


def change_text(change: dict[str, Any]) -> str:
    """Return a phrase for a change of a property, of the partitioning or of a column."""
    if "property" in change:
        return f"{change['property']} = {change['from']} -> {change['to']}"
    if "layout" in change:
        new = partitioning_text(change["to"]).removeprefix("partitioned ")
        return f"{partitioning_text(change['from'])}, new files {new}"
    return str(change["words"])


def property_changes(options: IcebergOptions, table: Table) -> list[dict[str, Any]]:
    """Return the properties of the file that a run would set, without secrets."""
    return [
        {"property": key, "from": table.properties.get(key), "to": value}
        for key, value in options.table_properties.items()
        if table.properties.get(key) != value and not is_secret(key, value)
    ]


def partition_changes(options: IcebergOptions, table: Table) -> list[dict[str, Any]]:
    """Return the change of partitioning that a run would make, if any."""
    from icestream.sinks.iceberg.partition_terms import parse_partition_terms
    from icestream.sinks.iceberg.partitioning import describe_spec, sets_partitioning

    if not sets_partitioning(options):
        return []
    terms = parse_partition_terms(options)
    names = set(table.schema().column_names)
    if all(term.column in names for term in terms) and not _differs(table, terms):
        return []
    wanted = ", ".join(map(str, terms))
    return [
        {
            "layout": "partitioning",
            "from": describe_spec(table.spec(), table.schema()),
            "to": f"[{wanted}]" if terms else "unpartitioned",
        }
    ]


def _differs(table: Table, terms: list[Any]) -> bool:
    from icestream.sinks.iceberg.partitioning import spec_change

    return bool(spec_change(table.schema(), table.spec(), table.specs().values(), terms))


def column_changes(pipeline: PipelinePlan, table: Table) -> list[dict[str, Any]]:
    """Return the column changes that follow from the schema the source declares.

    Raises:
        SchemaMismatchError: the table may not be changed like that, or can't be.
    """
    from icestream.sinks.iceberg.migration import allowed_changes

    columns = None if pipeline.transforms else pipeline.source.schema()
    if columns is None:
        return []
    options = pipeline.sink.options
    found = compare_columns(pipeline, table, columns)
    changes = allowed_changes(found, options.schema_evolution, options.branch)
    return [{**change.to_json(), "words": str(change)} for change in changes]


def compare_columns(pipeline: PipelinePlan, table: Table, columns: pa.Schema) -> SchemaComparison:
    """Return what rows with `columns` ask of a pipeline's table."""
    from icestream.sinks.iceberg.migration import compare_with_table

    sink: Any = pipeline.sink
    shape = table_layout(table, pipeline.name)
    declared = pipeline.source.declares()
    return compare_with_table(
        shape, sink.mode.table_columns(columns), sink.options, declared=declared
    )


def table_layout(table: Table, pipeline: str) -> TableLayout:
    """Return the shape of a table that PyIceberg loaded."""
    from icestream.sinks.iceberg.migration import TableLayout, is_shared, read_declared_columns

    return TableLayout(
        schema=table.schema(),
        spec=table.spec(),
        specs=list(table.specs().values()),
        sort_order=table.sort_order(),
        format_version=table.format_version,
        is_shared=is_shared(table.properties, pipeline),
        declared_before=read_declared_columns(table.properties, pipeline),
    )
