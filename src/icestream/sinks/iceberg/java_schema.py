"""Changes of a table's columns and partition fields, through Iceberg's Java API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionSpec

from icestream.schemas.changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    UpdateType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.types import IcebergType

    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.partition import Term
    from icestream.sinks.iceberg.spec_change import SpecChange


def read_versions(table: JavaTable) -> tuple[int, int]:
    """Return the ids of the schema and the partition spec that the table has now."""
    table.java.refresh()
    return int(table.java.schema().schemaId()), int(table.java.spec().specId())


def read_specs(table: JavaTable) -> list[PartitionSpec]:
    """Return every partition spec that the table ever had."""
    parser = table.jvm.org.apache.iceberg.PartitionSpecParser
    return [
        PartitionSpec.model_validate_json(parser.toJson(spec))
        for spec in dict(table.java.specs()).values()
    ]


def change_columns(table: JavaTable, changes: Iterable[SchemaChange]) -> None:
    """Change the table's columns in one commit.

    Renames must come alone: Iceberg finds every other column by the name that it had before.
    """
    update = table.java.updateSchema()
    for change in changes:
        _change_column(table, update, change)
    update.commit()


def _change_column(table: JavaTable, update: Any, change: SchemaChange) -> None:
    if isinstance(change, AddColumn):
        *parents, name = change.path
        # Always with a parent, if only null: without one a dot in the name is refused.
        parent = ".".join(parents) or None
        update.addColumn(parent, name, _java_type(table, change.field_type), change.doc)
    elif isinstance(change, DropColumn):
        update.deleteColumn(change.column)
    elif isinstance(change, RenameColumn):
        update.renameColumn(change.column, change.new_name)
    elif isinstance(change, UpdateType):
        update.updateColumn(change.column, _java_type(table, change.new_type))
    elif isinstance(change, MakeOptional):
        update.makeColumnOptional(change.column)


def _java_type(table: JavaTable, kind: IcebergType) -> Any:
    """Return a type in Java, by the one parser that there is: that of whole schemas."""
    field = {
        "id": 1,
        "name": "x",
        "required": False,
        "type": json.loads(kind.model_dump_json()),
    }
    holder = json.dumps({"type": "struct", "schema-id": 0, "fields": [field]})
    return table.jvm.org.apache.iceberg.SchemaParser.fromJson(holder).findField("x").type()


def change_spec(table: JavaTable, change: SpecChange) -> None:
    """Change how new files are partitioned, in one commit; files that are there stay."""
    update = table.java.updateSpec()
    for name in change.removed:
        update.removeField(name)
    for name, term in change.added:
        update.addField(name, _java_term(table, term))
    update.commit()


def _java_term(table: JavaTable, term: Term) -> Any:
    terms = table.jvm.org.apache.iceberg.expressions.Expressions
    if term.transform == "identity":
        return terms.ref(term.column)
    if term.width is not None:
        by_width = {"bucket": terms.bucket, "truncate": terms.truncate}
        return by_width[term.transform](term.column, term.width)
    plain = {"year": terms.year, "month": terms.month, "day": terms.day, "hour": terms.hour}
    return plain[term.transform](term.column)
