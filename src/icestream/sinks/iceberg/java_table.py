"""A table of Iceberg's Java API: what it looks like, and what one commit does to it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
from icestream.sinks.iceberg.ledger import find_lost_history, head_mark_snapshot
from icestream.sinks.iceberg.options import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.types import IcebergType

    from icestream.schemas.changes import SchemaChange
    from icestream.sinks.iceberg.ledger import MarkSnapshot
    from icestream.sinks.iceberg.partition_terms import PartitionTerm
    from icestream.sinks.iceberg.partitioning import SpecChange


# By what PyIceberg and Iceberg's Java both call them, or begin them with.
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
# The name that is meant for PyIceberg counts before Java's own.
REGIONS = ("s3.region", "client.region")


def vended_properties(table: Any) -> dict[str, str]:
    """Return what PyIceberg needs for the files of a table of the Java API.

    A server hands credentials out as properties of the table, or as credentials of a place each:
    then those of the longest place that the table lies below count.
    """
    location, io = str(table.location()), table.io()
    found = _to_dict(io.properties())
    places = [
        (str(each.prefix()), each.config())
        for each in _storage_credentials(io)
        if location.startswith(str(each.prefix()))
    ]
    if places:
        found |= _to_dict(max(places, key=lambda place: len(place[0]))[1])
    return {**_storage_properties(found), **_credentials(found)}


def expiry_ms(properties: dict[str, str]) -> int | None:
    """Return when handed-out credentials run out, in milliseconds since 1970; None if unknown."""
    ends = [int(value) for key, value in properties.items() if key.startswith(EXPIRY_KEYS)]
    return min(ends, default=None)


def _to_dict(properties: Any) -> dict[str, str]:
    return {str(key): str(properties.get(key)) for key in properties}


def _credentials(found: dict[str, str]) -> dict[str, str]:
    named = (*CREDENTIAL_KEYS, *EXPIRY_KEYS)
    return {key: value for key, value in found.items() if key.startswith(named)}


def _storage_properties(found: dict[str, str]) -> dict[str, str]:
    """Return where the store is, by PyIceberg's names and with the defaults that Java has."""
    told = {ENDPOINT: found[ENDPOINT]} if ENDPOINT in found else {}
    regions = [found[key] for key in REGIONS if key in found]
    if regions:
        told["s3.region"] = regions[0]
    if ENDPOINT in found or PATH_STYLE in found:
        is_in_path = found.get(PATH_STYLE, "").lower() == "true"
        told["s3.force-virtual-addressing"] = "false" if is_in_path else "true"
    return told


def _storage_credentials(io: Any) -> list[Any]:
    from py4j.protocol import Py4JError

    try:
        return list(io.credentials())
    except Py4JError:  # a FileIO that has no such method
        return []


class Fence:
    """Checks, inside every attempt of a commit, the mark that we last saw and its snapshot.

    Iceberg compares and swaps the table's metadata, and calls this on the metadata that it will
    swap. So no commit of another instance, no rollback and no replaced table goes unnoticed.

    Attributes:
        attempts: how often Iceberg called it.
        is_refused: whether the last call refused the commit.
        found_mark: the mark that the table had then.
        lost_history: why the table no longer holds the rows of the mark, if that is so.
    """

    def __init__(
        self,
        table: JavaTable,
        key: str,
        expected: str | None,
        recorded: MarkSnapshot | None,
        branch: str,
    ) -> None:
        self._table = table
        self._key = key
        self._expected = expected
        self._recorded = recorded
        self._branch = branch
        self.attempts = 0
        self.is_refused = False
        self.found_mark: str | None = None
        self.lost_history: str | None = None

    def validate(self, snapshots: object) -> bool:  # noqa: ARG002 - the interface's signature
        self.attempts += 1
        java = self._table.java
        self.found_mark = java.properties().get(self._key)
        self.is_refused = self.found_mark != self._expected
        if not self.is_refused:
            self.lost_history = find_lost_history(
                self._table.jvm, java, self._recorded, self._branch
            )
            self.is_refused = self.lost_history is not None
        return not self.is_refused

    def errorMessage(self) -> str:  # noqa: N802 - the interface's name
        return "the mark of this pipeline, or its snapshot, is not the one last seen"

    def toString(self) -> str:  # noqa: N802 - asked by Java for messages
        return f"Fence({self._key})"

    class Java:
        """Tells Py4J which interface this is."""

        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


@dataclass(frozen=True)
class TableChange:
    """What one commit does to a table. Files are in the JSON form of Iceberg's specification.

    Attributes:
        added: data files that join the table.
        partition_replacements: data files that replace everything in their partitions.
        overwrite_filter: an expression, as JSON; the rows that it matches are removed.
        deletes: delete files that join it.
        replaced_deletes: delete files that leave it, their content being in `deletes`.
        referenced_files: paths of the data files that `deletes` refer to; the commit fails if
            one was removed.
        is_keyed: whether the change was computed from the keys that the table holds.
        base_snapshot_id: snapshot that it was computed on; None if the table was empty.
        branch: the branch to commit to.
        properties: table properties that are set in the same commit.
        summary: further lines for the snapshot's summary.
    """

    added: Sequence[Mapping[str, Any]] = ()
    partition_replacements: Sequence[Mapping[str, Any]] = ()
    overwrite_filter: str | None = None
    deletes: Sequence[Mapping[str, Any]] = ()
    replaced_deletes: Sequence[Mapping[str, Any]] = ()
    referenced_files: Sequence[str] = ()
    is_keyed: bool = False
    base_snapshot_id: int | None = None
    branch: str = MAIN
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_append(self) -> bool:
        return not self.is_keyed

    @property
    def data_files(self) -> list[Mapping[str, Any]]:
        """Every data file that joins the table."""
        return [*self.added, *self.partition_replacements]


@dataclass(frozen=True)
class TableState:
    """What a table looked like when it was last read."""

    schema: Schema
    spec: PartitionSpec
    sort_order: SortOrder
    location: str
    properties: Mapping[str, str]
    format_version: int


class JavaTable:
    """A table handle of Iceberg's Java API.

    Args:
        jvm: Spark's.
        table: the Java table.
        exists: asks the catalog whether it has a table of that name.
    """

    def __init__(self, jvm: Any, table: Any, exists: Callable[[], bool]) -> None:
        self.jvm = jvm
        self.java = table
        self.exists = exists
        self._uuid: str | None = None

    def uuid(self) -> str:
        """Return what identifies the table, whatever its name."""
        # A handle never changes to another table: Iceberg refuses to refresh it then.
        if self._uuid is None:
            self._uuid = str(self.java.uuid())
        return self._uuid

    def read_state(self) -> TableState:
        """Return the table as the catalog has it now."""
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
        """Return one property as the catalog has it now."""
        self.java.refresh()
        value: str | None = self.java.properties().get(key)
        return value

    def vended_properties(self) -> dict[str, str]:
        """Return the credentials that the catalog handed out for the table's files, if any."""
        return vended_properties(self.java)

    def commit_attempts(self) -> int:
        """Return how often a commit is tried before it is given up, by the table's own policy."""
        properties = self.java.properties()
        return int(properties.get("commit.retry.num-retries") or 4) + 1

    def commit(
        self,
        change: TableChange,
        summary: Mapping[str, str],
        properties: Mapping[str, str],
        fence: Fence | None,
        snapshot_key: str | None = None,
    ) -> MarkSnapshot:
        """Make a change, the snapshot's summary and table properties one commit.

        Args:
            change: what happens to the table.
            summary: further lines for the snapshot's summary.
            properties: table properties.
            fence: what every attempt is checked by.
            snapshot_key: the table property that records the new snapshot; None for none.

        Returns:
            The snapshot that this made.
        """
        transaction = self.java.newTransaction()
        for number, operation in enumerate(self._operations(transaction, change)):
            for key, value in {**change.summary, **summary}.items():
                operation.set(key, value)
            if change.branch != MAIN:
                operation.toBranch(change.branch)
            if fence is not None and number == 0:
                operation.validateWith(fence)
            operation.commit()
        # What the transaction has staged so far; a retry stages the same snapshot id again.
        staged = head_mark_snapshot(transaction.table(), change.branch)
        assert staged is not None  # noqa: S101 - every operation stages a snapshot
        updated = {**change.properties, **properties}
        if snapshot_key is not None:
            updated[snapshot_key] = staged.to_json()
        if updated:
            update = transaction.updateProperties()
            for key, value in updated.items():
                update.set(key, value)
            update.commit()
        transaction.commitTransaction()
        return staged

    def _operations(self, transaction: Any, change: TableChange) -> Iterator[Any]:
        """Yield the steps of a change; each is committed to the transaction before the next."""
        if change.overwrite_filter is not None:
            yield self._overwrite(transaction, change)
            return
        if change.partition_replacements:
            replacement = transaction.newReplacePartitions()
            for file in change.partition_replacements:
                replacement.addFile(self._file(file))
            yield replacement
        if change.added or not change.partition_replacements:
            yield self._operation(transaction, change)

    def _overwrite(self, transaction: Any, change: TableChange) -> Any:
        overwrite = transaction.newOverwrite()
        parser = self.jvm.org.apache.iceberg.expressions.ExpressionParser
        overwrite.overwriteByRowFilter(parser.fromJson(change.overwrite_filter, self.java.schema()))
        for file in change.added:
            overwrite.addFile(self._file(file))
        return overwrite

    def _operation(self, transaction: Any, change: TableChange) -> Any:
        if change.is_append:
            append = transaction.newAppend()
            for file in change.added:
                append.appendFile(self._file(file))
            return append
        return self._row_delta(transaction, change)

    def _row_delta(self, transaction: Any, change: TableChange) -> Any:
        delta = transaction.newRowDelta()
        for file in change.added:
            delta.addRows(self._file(file))
        for file in change.deletes:
            delta.addDeletes(self._file(file))
        for file in change.replaced_deletes:
            delta.removeDeletes(self._file(file))
        if change.base_snapshot_id is not None:
            delta.validateFromSnapshot(change.base_snapshot_id)
        # A row that another writer added meanwhile may have one of our keys; a file that was
        # compacted away, or a delete that another one put on it, makes our positions wrong.
        paths = self.jvm.java.util.ArrayList()
        for path in change.referenced_files:
            paths.add(path)
        delta.validateDataFilesExist(paths)
        delta.validateDeletedFiles()
        delta.validateNoConflictingDataFiles()
        delta.validateNoConflictingDeleteFiles()
        return delta

    def _file(self, described: Mapping[str, Any]) -> Any:
        mapper = self.jvm.org.apache.iceberg.util.JsonUtil.mapper()
        parser = self.jvm.org.apache.iceberg.ContentFileParser
        return parser.fromJson(mapper.readTree(json.dumps(described)), self.java.specs())

    def delete_where(self, expression: str) -> None:
        """Delete the rows that an expression in JSON matches, which must be those of whole files.

        A commit of its own, and none if there are no such rows.
        """
        delete = self.java.newDelete()
        parser = self.jvm.org.apache.iceberg.expressions.ExpressionParser
        delete.deleteFromRowFilter(parser.fromJson(expression, self.java.schema()))
        delete.commit()

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set table properties in a commit of their own; None removes one."""
        update = self.java.updateProperties()
        for key, value in properties.items():
            if value is None:
                update.remove(key)
            else:
                update.set(key, value)
        update.commit()


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


def _java_term(table: JavaTable, term: PartitionTerm) -> Any:
    terms = table.jvm.org.apache.iceberg.expressions.Expressions
    if term.transform == "identity":
        return terms.ref(term.column)
    if term.width is not None:
        by_width = {"bucket": terms.bucket, "truncate": terms.truncate}
        return by_width[term.transform](term.column, term.width)
    plain = {"year": terms.year, "month": terms.month, "day": terms.day, "hour": terms.hour}
    return plain[term.transform](term.column)
