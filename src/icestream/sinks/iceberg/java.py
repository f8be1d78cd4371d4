"""Iceberg's Java catalogs, through the JVM that Spark runs in.

PyIceberg can't commit to format v3, and Spark SQL can neither set a mark in the same commit as the
rows nor check it inside the commit. Everything that needs Py4J is in this module and in
`java_table`; schemas, specs and files are passed as JSON.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from icestream.errors import CheckpointLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyspark.sql import SparkSession

    from icestream.sinks.iceberg.java_table import JavaTable


COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
# What a catalog raises for a table that was dropped, possibly with its files or namespace.
TABLE_MISSING_ERRORS = {
    "org.apache.iceberg.exceptions.NoSuchNamespaceException",
    "org.apache.iceberg.exceptions.NoSuchTableException",
    "org.apache.iceberg.exceptions.NotFoundException",
}
RUN_AGAIN = "Nothing was written. Run the pipeline again: it lists the ways to continue."
VALIDATION_FAILED = "org.apache.iceberg.exceptions.ValidationException"


def activate_session(spark: SparkSession) -> None:
    """Make a session the active one of this thread, from which catalogs read their settings."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def reset_catalogs(spark: SparkSession) -> None:
    """Make a session create its catalogs again on their next use.

    A REST client that was refused a new token a few times never requests one again, and Spark
    keeps the client for the lifetime of the session.
    """
    session: Any = spark._jsparkSession
    # A JVM that has exited has nothing to reset; the next call reports it.
    with suppress(*java_errors()):
        session.sessionState().catalogManager().reset()


class JavaCatalog:
    """The catalog object behind one of Spark's catalogs."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self._gateway = gateway
        jvm: Any = spark._jvm
        self._jvm = jvm
        activate_session(spark)
        self._catalog = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
            spark._jsparkSession, name
        )

    def exists(self, namespace: Sequence[str], table: str) -> bool:
        return bool(self._catalog.tableExists(self._identifier(namespace, table)))

    def load(self, namespace: Sequence[str], table: str) -> JavaTable:
        loaded = self._catalog.loadTable(self._identifier(namespace, table))
        return self._handle(loaded, namespace, table)

    def create_namespace(self, namespace: Sequence[str]) -> None:
        """Create a namespace and its parents, if missing."""
        for depth in range(1, len(namespace) + 1):
            name = self._namespace(namespace[:depth])
            if self._catalog.namespaceExists(name):
                continue
            try:
                self._catalog.createNamespace(name)
            except java_errors():
                # Another pipeline may have created it in the meantime.
                if not self._catalog.namespaceExists(name):
                    raise

    def create_table(
        self,
        namespace: Sequence[str],
        table: str,
        *,
        schema: Schema,
        spec: PartitionSpec,
        sort_order: SortOrder,
        properties: Mapping[str, str],
    ) -> JavaTable:
        api = self._jvm.org.apache.iceberg
        java_schema = api.SchemaParser.fromJson(schema.model_dump_json())
        java_properties = self._jvm.java.util.HashMap()
        for key, value in properties.items():
            java_properties.put(key, value)
        builder = (
            self._catalog.buildTable(self._identifier(namespace, table), java_schema)
            .withPartitionSpec(
                api.PartitionSpecParser.fromJson(java_schema, spec.model_dump_json())
            )
            .withSortOrder(api.SortOrderParser.fromJson(java_schema, sort_order.model_dump_json()))
            .withProperties(java_properties)
        )
        try:
            return self._handle(builder.create(), namespace, table)
        except java_errors():
            # Another pipeline may have created it in the meantime.
            if not self.exists(namespace, table):
                raise
            return self.load(namespace, table)

    def default_location(self, namespace: Sequence[str], table: str) -> str:
        """Return where the catalog would put a table, without creating it."""
        schema = self._jvm.org.apache.iceberg.SchemaParser.fromJson(
            '{"type":"struct","schema-id":0,"fields":[]}'
        )
        builder = self._catalog.buildTable(self._identifier(namespace, table), schema)
        return str(builder.createTransaction().table().location())

    def _handle(self, loaded: Any, namespace: Sequence[str], table: str) -> JavaTable:
        # The module imports PyIceberg, which planning does not need.
        from icestream.sinks.iceberg.java_table import JavaTable

        return JavaTable(self._jvm, loaded, partial(self.exists, namespace, table))

    def _namespace(self, parts: Sequence[str]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.String, len(parts))
        for index, part in enumerate(parts):
            array[index] = part
        return self._jvm.org.apache.iceberg.catalog.Namespace.of(array)

    def _identifier(self, namespace: Sequence[str], table: str) -> Any:
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.of(
            self._namespace(namespace), table
        )


def java_errors() -> tuple[type[Exception], ...]:
    """Return the classes of everything that a call into Java raises."""
    from py4j.protocol import Py4JError
    from pyspark.errors.exceptions.captured import CapturedException

    # PySpark has its own classes for some Java exceptions, such as an illegal argument; a JVM that
    # has exited raises only an error of Py4J.
    return Py4JError, CapturedException


def java_class(error: Exception) -> str:
    """Return the class name of the Java exception behind an error, or an empty string."""
    exception = _java_exception(error)
    return str(exception.getClass().getName()) if exception is not None else ""


def java_message(error: Exception) -> str:
    """Return the first line of the Java exception's message."""
    exception = _java_exception(error)
    text = str(exception.getMessage()) if exception is not None else str(error)
    return text.splitlines()[0] if text else type(error).__name__


def refuse_dropped(error: Exception, exists: Callable[[], bool], where: str = "") -> None:
    """Raise if a table can't be read because it was dropped; return on any other fault.

    Args:
        error: what Java raised.
        exists: asks the catalog for the table. A transient failure of the store may also look
            like a missing file.
        where: the location, for the message.

    Raises:
        CheckpointLostError: the table was dropped.
    """
    is_other = "UUID does not match" in java_message(error)
    if not is_other and (java_class(error) not in TABLE_MISSING_ERRORS or not _is_missing(exists)):
        return
    replacement = "and another one was created under its name " if is_other else ""
    raise CheckpointLostError(
        f"the table was dropped {replacement}while the pipeline was running",
        where=where,
        todo=RUN_AGAIN,
    ) from error


def _is_missing(exists: Callable[[], bool]) -> bool:
    try:
        return not exists()
    except java_errors():
        return False


def _java_exception(error: Exception) -> Any:
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def head_snapshot_id(table: JavaTable, branch: str) -> int | None:
    """Return the id of a branch's newest snapshot; None if there is no such branch."""
    snapshot = table.java.snapshot(branch)
    return None if snapshot is None else int(snapshot.snapshotId())


def is_ancestor(table: JavaTable, older: int, newer: int) -> bool:
    """Tell whether one snapshot is another, or an ancestor of it."""
    return bool(
        table.jvm.org.apache.iceberg.util.SnapshotUtil.isAncestorOf(table.java, newer, older)
    )


def fast_forward(table: JavaTable, target: str, branch: str) -> None:
    """Fast-forward a branch to the head of another, in one commit; create it if missing."""
    table.java.manageSnapshots().fastForwardBranch(target, branch).commit()


def has_older_specs(table: JavaTable, branch: str) -> bool:
    """Tell whether a branch has data files of another than the current partition spec."""
    java = table.java
    if java.specs().size() == 1:
        return False
    snapshot = java.snapshot(branch) or java.currentSnapshot()
    if snapshot is None:
        return False
    current = java.spec().specId()
    return any(
        manifest.partitionSpecId() != current
        and (manifest.hasAddedFiles() or manifest.hasExistingFiles())
        for manifest in snapshot.dataManifests(java.io())
    )


# Beyond this, listing the whole table is faster than following its history.
MAX_SNAPSHOTS_BEHIND = 50


@dataclass(frozen=True)
class LiveFile:
    """A data file of the table, with the delete files that apply to it.

    Attributes:
        path: its location.
        rows: its number of rows, deleted ones included.
        first_row_id: id of its first row, if ids are not stored in it; None before format v3.
        metadata: the file in the JSON form of Iceberg's specification.
        deletes: its delete files in the same form.
    """

    path: str
    rows: int
    first_row_id: int | None
    metadata: dict[str, Any]
    deletes: tuple[dict[str, Any], ...] = ()


class LiveFiles:
    """The files of one branch, updated by reading only what changed since the last refresh.

    Args:
        table: the table.
        branch: the branch.
        columns: names of the columns whose bounds are needed.
    """

    def __init__(self, table: JavaTable, branch: str, columns: Sequence[str]) -> None:
        self.table = table
        self._branch = branch
        self._columns = list(columns)
        self._files: dict[str, LiveFile] = {}
        self.snapshot_id: int | None = None

    def refresh(self) -> list[LiveFile]:
        """Return the files as of the branch's newest snapshot."""
        java = self.table.java
        try:
            java.refresh()
        except java_errors() as exc:
            refuse_dropped(exc, self.table.exists)
            raise
        newest = java.snapshot(self._branch) or java.currentSnapshot()
        if newest is None:
            self._files, self.snapshot_id = {}, None
            return []
        if newest.snapshotId() != self.snapshot_id:
            steps = self._snapshots_since(java, newest)
            if steps is None or not all(self._apply(java, step) for step in steps):
                self._list_files(java, newest)
            self.snapshot_id = int(newest.snapshotId())
        return list(self._files.values())

    def _snapshots_since(self, java: Any, newest: Any) -> list[Any] | None:
        """Return the snapshots since the last refresh, oldest first; None if unknown."""
        if self.snapshot_id is None:
            return None
        steps: list[Any] = []
        step = newest
        while step is not None and step.snapshotId() != self.snapshot_id:
            steps.append(step)
            parent = step.parentId()
            if parent is None or len(steps) > MAX_SNAPSHOTS_BEHIND:
                return None
            step = java.snapshot(parent)
        return None if step is None else steps[::-1]

    def _apply(self, java: Any, snapshot: Any) -> bool:
        """Apply one snapshot; False if a delete file does not name its data file."""
        api = self.table.jvm.org.apache.iceberg
        changes = api.SnapshotChanges.builderFor(java).snapshot(snapshot).build()
        for file in _iterate(changes.removedDataFiles()):
            self._files.pop(str(file.location()), None)
        for file in _iterate(changes.addedDataFiles()):
            live = self._to_live_file(java, file, ())
            self._files[live.path] = live
        for file in _iterate(changes.removedDeleteFiles()):
            if not self._change_deletes(java, file, add=False):
                return False
        for file in _iterate(changes.addedDeleteFiles()):
            if not self._change_deletes(java, file, add=True):
                return False
        return True

    def _change_deletes(self, java: Any, file: Any, *, add: bool) -> bool:
        target = file.referencedDataFile()
        if target is None:
            return False
        live = self._files.get(target)
        if live is not None:
            described = self._to_json(java, file)
            others = tuple(one for one in live.deletes if _file_key(one) != _file_key(described))
            self._files[target] = replace(live, deletes=(*others, described) if add else others)
        return True

    def _list_files(self, java: Any, snapshot: Any) -> None:
        # Columns by their current names: the snapshot may be older than a rename.
        scan = java.newScan().includeColumnStats(self._columns).useSnapshot(snapshot.snapshotId())
        self._files = {}
        tasks = scan.planFiles()
        try:
            for task in _iterate(tasks):
                live = self._to_live_file(java, task.file(), task.deletes())
                self._files[live.path] = live
        finally:
            tasks.close()

    def _to_live_file(self, java: Any, file: Any, deletes: Iterable[Any]) -> LiveFile:
        first = file.firstRowId()
        return LiveFile(
            path=str(file.location()),
            rows=int(file.recordCount()),
            first_row_id=None if first is None else int(first),
            metadata=self._to_json(java, file),
            deletes=tuple(self._to_json(java, one) for one in deletes),
        )

    def _to_json(self, java: Any, file: Any) -> dict[str, Any]:
        spec = java.specs().get(file.specId())
        parser = self.table.jvm.org.apache.iceberg.ContentFileParser
        described: dict[str, Any] = json.loads(parser.toJson(file, spec))
        return described


def _iterate(iterable: Any) -> Iterator[Any]:
    """Iterate over a Java iterable, which Py4J does not convert."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _file_key(described: dict[str, Any]) -> tuple[str, int | None]:
    return described["file-path"], described.get("content-offset")
