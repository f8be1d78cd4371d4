"""A table of Iceberg's Java API: its state, and changes to its columns, spec and properties."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from icestream.schemas.changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    RenameColumn,
    UpdateType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.types import IcebergType

    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.partition_terms import PartitionTerm
    from icestream.sinks.iceberg.partitioning import SpecChange


# Names, or prefixes of names, that PyIceberg and Iceberg's Java share.
CREDENTIAL_KEYS = (
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "gcs.oauth2.token",
    "adls.sas-token",
)
EXPIRY_KEYS = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at",
)

ENDPOINT = "s3.endpoint"
PATH_STYLE = "s3.path-style-access"
# PyIceberg's name takes precedence over Java's.
REGIONS = ("s3.region", "client.region")


def vended_properties(table: Any) -> dict[str, str]:
    """Return the properties that PyIceberg needs for the files of a Java table.

    A server vends credentials as properties of the table, or as credentials per location prefix:
    then those of the longest prefix of the table's location apply.
    """
    location, io = str(table.location()), table.io()
    properties = _to_dict(io.properties())
    matching = [
        (str(credential.prefix()), credential.config())
        for credential in _storage_credentials(io)
        if location.startswith(str(credential.prefix()))
    ]
    if matching:
        properties |= _to_dict(max(matching, key=lambda match: len(match[0]))[1])
    return {**_storage_properties(properties), **_credentials(properties)}


def expiry_ms(properties: dict[str, str]) -> int | None:
    """Return when vended credentials expire, in epoch milliseconds; None if unknown."""
    ends = [int(value) for key, value in properties.items() if key.startswith(EXPIRY_KEYS)]
    return min(ends, default=None)


def _to_dict(properties: Any) -> dict[str, str]:
    return {str(key): str(properties.get(key)) for key in properties}


def _credentials(properties: dict[str, str]) -> dict[str, str]:
    named = (*CREDENTIAL_KEYS, *EXPIRY_KEYS)
    return {key: value for key, value in properties.items() if key.startswith(named)}


def _storage_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the address of the store, by PyIceberg's names and with Java's defaults."""
    result = {ENDPOINT: properties[ENDPOINT]} if ENDPOINT in properties else {}
    regions = [properties[key] for key in REGIONS if key in properties]
    if regions:
        result["s3.region"] = regions[0]
    if ENDPOINT in properties or PATH_STYLE in properties:
        is_in_path = properties.get(PATH_STYLE, "").lower() == "true"
        result["s3.force-virtual-addressing"] = "false" if is_in_path else "true"
    return result


def _storage_credentials(io: Any) -> list[Any]:
    from py4j.protocol import Py4JError

    try:
        return list(io.credentials())
    except Py4JError:  # this FileIO has no such method
        return []


@dataclass(frozen=True)
class TableState:
    """The state of a table when it was last read."""

    schema: Schema
    spec: PartitionSpec
    sort_order: SortOrder
    location: str
    properties: Mapping[str, str]
    format_version: int


class JavaTable:
    """A table handle of Iceberg's Java API.

    Args:
        jvm: Spark's JVM.
        table: the Java table.
        exists: asks the catalog whether it has a table of that name.
    """

    def __init__(self, jvm: Any, table: Any, exists: Callable[[], bool]) -> None:
        self.jvm = jvm
        self.java = table
        self.exists = exists
        self._uuid: str | None = None

    def uuid(self) -> str:
        """Return the table's UUID, which stays when it is renamed."""
        # Iceberg refuses to refresh a handle to another table, so the UUID never changes.
        if self._uuid is None:
            self._uuid = str(self.java.uuid())
        return self._uuid

    def read_state(self) -> TableState:
        """Return the current state of the table in the catalog."""
        self.java.refresh()
        table = self.java
        return TableState(
            schema=Schema.model_validate_json(
                self.jvm.org.apache.iceberg.SchemaParser.toJson(table.schema())
            ),
            spec=PartitionSpec.model_validate_json(
                self.jvm.org.apache.iceberg.PartitionSpecParser.toJson(table.spec())
            ),
            sort_order=SortOrder.model_validate_json(
                self.jvm.org.apache.iceberg.SortOrderParser.toJson(table.sortOrder())
            ),
            location=table.location(),
            properties=dict(table.properties()),
            format_version=table.operations().current().formatVersion(),
        )

    def read_property(self, key: str) -> str | None:
        """Return the current value of a property in the catalog."""
        self.java.refresh()
        value: str | None = self.java.properties().get(key)
        return value

    def vended_properties(self) -> dict[str, str]:
        """Return the credentials that the catalog vended for the table's files, if any."""
        return vended_properties(self.java)

    def commit_attempts(self) -> int:
        """Return the maximum number of attempts at a commit, by the table's retry policy."""
        properties = self.java.properties()
        return int(properties.get("commit.retry.num-retries") or 4) + 1

    def delete_where(self, expression: str) -> None:
        """Delete the rows that match a JSON expression; it must match whole files.

        This is a separate commit; without matching rows, there is none.
        """
        delete = self.java.newDelete()
        parser = self.jvm.org.apache.iceberg.expressions.ExpressionParser
        delete.deleteFromRowFilter(parser.fromJson(expression, self.java.schema()))
        delete.commit()

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set table properties in a separate commit; None removes one."""
        update = self.java.updateProperties()
        for key, value in properties.items():
            if value is None:
                update.remove(key)
            else:
                update.set(key, value)
        update.commit()


def read_versions(table: JavaTable) -> tuple[int, int]:
    """Return the ids of the table's current schema and partition spec."""
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

    Renames need a separate commit: Iceberg looks up every other column by its old name.
    """
    update = table.java.updateSchema()
    for change in changes:
        _change_column(table, update, change)
    update.commit()


def _change_column(table: JavaTable, update: Any, change: SchemaChange) -> None:
    if isinstance(change, AddColumn):
        *parents, name = change.path
        # Always pass a parent, even null: without one Iceberg refuses a dot in the name.
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
    """Return a Java type. Only whole schemas can be parsed, so wrap it in one."""
    field = {
        "id": 1,
        "name": "x",
        "required": False,
        "type": json.loads(kind.model_dump_json()),
    }
    holder = json.dumps({"type": "struct", "schema-id": 0, "fields": [field]})
    return table.jvm.org.apache.iceberg.SchemaParser.fromJson(holder).findField("x").type()


def change_spec(table: JavaTable, change: SpecChange) -> None:
    """Change how new files are partitioned, in one commit; existing files stay."""
    update = table.java.updateSpec()
    for name in change.removed:
        update.removeField(name)
    for name, term in change.added:
        update.addField(name, _java_term(table, term))
    update.commit()


def _java_term(table: JavaTable, term: PartitionTerm) -> Any:
    terms = table.jvm.org.apache.iceberg.expressions.Expressions
    if term.transform == "identity":
        return terms.ref(term.column)
    if term.width is not None:
        by_width = {"bucket": terms.bucket, "truncate": terms.truncate}
        return by_width[term.transform](term.column, term.width)
    plain = {"year": terms.year, "month": terms.month, "day": terms.day, "hour": terms.hour}
    return plain[term.transform](term.column)
