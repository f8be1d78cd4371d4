"""Iceberg's Java API, through the JVM that Spark runs in.

PyIceberg can't commit to format v3, and Spark SQL can't put a mark into the table together with
the rows, nor ask for it inside the commit. Everything that needs Py4J is in this module; schemas,
specs and files cross the border as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"


class Fence:
    """Asked inside every attempt of a commit: is the table's mark still the one we last saw?

    Iceberg compares and swaps the table's metadata, and calls this on the metadata that it will
    swap. So a commit that passes can't follow one of another instance unnoticed.
    """

    def __init__(self, table: Any, key: str, expected: str | None) -> None:
        self._operations = table.operations()
        self._key = key
        self._expected = expected
        self.attempts = 0
        self.refused = False
        self.found: str | None = None

    def validate(self, snapshots: object) -> bool:  # noqa: ARG002 - the interface's signature
        self.attempts += 1
        self.found = self._operations.current().properties().get(self._key)
        self.refused = self.found != self._expected
        return not self.refused

    def errorMessage(self) -> str:  # noqa: N802 - the interface's name
        return "the mark of this pipeline was moved by another instance"

    def toString(self) -> str:  # noqa: N802 - asked by Java for messages
        return f"Fence({self._key})"

    class Java:
        """Tells Py4J which interface this is."""

        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


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
    """A table handle of Iceberg's Java API."""

    def __init__(self, jvm: Any, table: Any) -> None:
        self._jvm = jvm
        self._table = table

    def read_state(self) -> TableState:
        """Return the table as the catalog has it now."""
        self._table.refresh()
        table = self._table
        return TableState(
            schema=Schema.model_validate_json(
                self._jvm.org.apache.iceberg.SchemaParser.toJson(table.schema())
            ),
            spec=PartitionSpec.model_validate_json(
                self._jvm.org.apache.iceberg.PartitionSpecParser.toJson(table.spec())
            ),
            sort_order=SortOrder.model_validate_json(
                self._jvm.org.apache.iceberg.SortOrderParser.toJson(table.sortOrder())
            ),
            location=table.location(),
            properties=dict(table.properties()),
            format_version=table.operations().current().formatVersion(),
        )

    def read_property(self, key: str) -> str | None:
        """Return one property as the catalog has it now."""
        self._table.refresh()
        value: str | None = self._table.properties().get(key)
        return value

    def commit_attempts(self) -> int:
        """Return how often a commit is tried before it is given up, by the table's own policy."""
        properties = self._table.properties()
        return int(properties.get("commit.retry.num-retries") or 4) + 1

    def fence(self, key: str, expected: str | None) -> Fence:
        """Return a fence for the next commit."""
        return Fence(self._table, key, expected)

    def append(
        self,
        files: Sequence[Mapping[str, Any]],
        summary: Mapping[str, str],
        properties: Mapping[str, str],
        fence: Fence | None,
    ) -> int:
        """Add files, the snapshot's summary and table properties in one commit.

        Returns:
            The id of the snapshot that this made.
        """
        mapper = self._jvm.org.apache.iceberg.util.JsonUtil.mapper()
        parser = self._jvm.org.apache.iceberg.ContentFileParser
        specs = self._table.specs()
        transaction = self._table.newTransaction()
        append = transaction.newAppend()
        for file in files:
            append.appendFile(parser.fromJson(mapper.readTree(json.dumps(file)), specs))
        for key, value in summary.items():
            append.set(key, value)
        if fence is not None:
            append.validateWith(fence)
        append.commit()
        if properties:
            update = transaction.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
        transaction.commitTransaction()
        return int(self._table.currentSnapshot().snapshotId())

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties in a commit of their own."""
        update = self._table.updateProperties()
        for key, value in properties.items():
            update.set(key, value)
        update.commit()

    def add_columns(self, added: Sequence[tuple[str | None, str, str, str | None]]) -> None:
        """Add optional columns, each `(parent, name, type as JSON, doc)`, in one commit."""
        update = self._table.updateSchema()
        types = self._jvm.org.apache.iceberg.SchemaParser
        for parent, name, type_json, doc in added:
            holder = json.dumps(
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [
                        {"id": 1, "name": "x", "required": False, "type": json.loads(type_json)}
                    ],
                }
            )
            column_type = types.fromJson(holder).findField("x").type()
            # Always with a parent, if only null: without one a dot in the name is refused.
            update.addColumn(parent, name, column_type, doc)
        update.commit()


class JavaCatalog:
    """The catalog object behind one of Spark's catalogs."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        gateway: Any = spark.sparkContext._gateway
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self._gateway = gateway
        jvm: Any = spark._jvm
        self._jvm = jvm
        # Catalog settings are read from the thread's active session, and each pipeline has a
        # thread of its own.
        self._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        self._catalog = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
            spark._jsparkSession, name
        )

    def exists(self, namespace: Sequence[str], table: str) -> bool:
        return bool(self._catalog.tableExists(self._identifier(namespace, table)))

    def load(self, namespace: Sequence[str], table: str) -> JavaTable:
        return JavaTable(self._jvm, self._catalog.loadTable(self._identifier(namespace, table)))

    def create_namespace(self, namespace: Sequence[str]) -> None:
        """Create a namespace and those it lies in, where missing."""
        for depth in range(1, len(namespace) + 1):
            name = self._namespace(namespace[:depth])
            if self._catalog.namespaceExists(name):
                continue
            try:
                self._catalog.createNamespace(name)
            except java_errors():
                # Another pipeline may have made it since we asked.
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
            return JavaTable(self._jvm, builder.create())
        except java_errors():
            # Another pipeline may have made it since we asked.
            if not self.exists(namespace, table):
                raise
            return self.load(namespace, table)

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

    # PySpark gives some of Java's exceptions classes of its own, such as an illegal argument; and
    # a JVM that is gone is an error of Py4J alone.
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


def _java_exception(error: Exception) -> Any:
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)
