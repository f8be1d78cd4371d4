"""A table of Iceberg's Java API: what it looks like, and what one commit does to it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from icestream.sinks.iceberg.lineage import find_contradiction, snapshot_to_record
from icestream.sinks.iceberg.options import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from icestream.sinks.iceberg.lineage import MarkSnapshot


class Fence:
    """Checks, inside every attempt of a commit, the mark that we last saw and its snapshot.

    Iceberg compares and swaps the table's metadata, and calls this on the metadata that it will
    swap. So no commit of another instance, no rollback and no replaced table goes unnoticed.

    Attributes:
        attempts: how often Iceberg called it.
        refused: whether the last call refused the commit.
        found: the mark that the table had then.
        contradiction: why the table no longer holds the rows of the mark, if that is so.
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
        self.refused = False
        self.found: str | None = None
        self.contradiction: str | None = None

    def validate(self, snapshots: object) -> bool:  # noqa: ARG002 - the interface's signature
        self.attempts += 1
        java = self._table.java
        self.found = java.properties().get(self._key)
        self.refused = self.found != self._expected
        if not self.refused:
            self.contradiction = find_contradiction(
                self._table.jvm, java, self._recorded, self._branch
            )
            self.refused = self.contradiction is not None
        return not self.refused

    def errorMessage(self) -> str:  # noqa: N802 - the interface's name
        return "the mark of this pipeline, or its snapshot, is not the one last seen"

    def toString(self) -> str:  # noqa: N802 - asked by Java for messages
        return f"Fence({self._key})"

    class Java:
        """Tells Py4J which interface this is."""

        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


@dataclass(frozen=True)
class Change:
    """What one commit does to a table. Files are in the JSON form of Iceberg's specification.

    Attributes:
        added: data files that join the table.
        replacing: data files that join the table in place of all that their partitions hold.
        over: an expression, as JSON; the rows that it matches leave the table.
        deletes: delete files that join it.
        replaced_deletes: delete files that leave it, their content being in `deletes`.
        touched: paths of the data files that `deletes` speak of; refused if one has gone.
        keyed: whether the change was worked out from the keys that the table holds.
        base: id of the snapshot that it was worked out on; None if the table was empty.
        branch: the branch to commit to.
        properties: table properties that are set in the same commit.
        summary: further lines for the snapshot's summary.
    """

    added: Sequence[Mapping[str, Any]] = ()
    replacing: Sequence[Mapping[str, Any]] = ()
    over: str | None = None
    deletes: Sequence[Mapping[str, Any]] = ()
    replaced_deletes: Sequence[Mapping[str, Any]] = ()
    touched: Sequence[str] = ()
    keyed: bool = False
    base: int | None = None
    branch: str = MAIN
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_append(self) -> bool:
        return not self.keyed

    @property
    def data_files(self) -> list[Mapping[str, Any]]:
        """Every data file that joins the table."""
        return [*self.added, *self.replacing]


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
        from icestream.sinks.iceberg.vended import vended_properties

        return vended_properties(self.java)

    def commit_attempts(self) -> int:
        """Return how often a commit is tried before it is given up, by the table's own policy."""
        properties = self.java.properties()
        return int(properties.get("commit.retry.num-retries") or 4) + 1

    def commit(
        self,
        change: Change,
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
        staged = snapshot_to_record(transaction.table(), change.branch)
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

    def _operations(self, transaction: Any, change: Change) -> Iterator[Any]:
        """Yield the steps of a change; each is committed to the transaction before the next."""
        if change.over is not None:
            yield self._overwrite(transaction, change)
            return
        if change.replacing:
            replacement = transaction.newReplacePartitions()
            for file in change.replacing:
                replacement.addFile(self._file(file))
            yield replacement
        if change.added or not change.replacing:
            yield self._operation(transaction, change)

    def _overwrite(self, transaction: Any, change: Change) -> Any:
        overwrite = transaction.newOverwrite()
        parser = self.jvm.org.apache.iceberg.expressions.ExpressionParser
        overwrite.overwriteByRowFilter(parser.fromJson(change.over, self.java.schema()))
        for file in change.added:
            overwrite.addFile(self._file(file))
        return overwrite

    def _operation(self, transaction: Any, change: Change) -> Any:
        if change.is_append:
            append = transaction.newAppend()
            for file in change.added:
                append.appendFile(self._file(file))
            return append
        return self._row_delta(transaction, change)

    def _row_delta(self, transaction: Any, change: Change) -> Any:
        delta = transaction.newRowDelta()
        for file in change.added:
            delta.addRows(self._file(file))
        for file in change.deletes:
            delta.addDeletes(self._file(file))
        for file in change.replaced_deletes:
            delta.removeDeletes(self._file(file))
        if change.base is not None:
            delta.validateFromSnapshot(change.base)
        # A row that another writer added meanwhile may have one of our keys; a file that was
        # compacted away, or a delete that another one put on it, makes our positions wrong.
        paths = self.jvm.java.util.ArrayList()
        for path in change.touched:
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
