"""Iceberg's Java catalogs, through the JVM that Spark runs in.

PyIceberg can't commit to format v3, and Spark SQL can't put a mark into the table together with
the rows, nor ask for it inside the commit. Everything that needs Py4J is in this module and in
`java_table`; schemas, specs and files cross the border as JSON.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from icestream.errors import CheckpointLostError
from icestream.sinks.iceberg.java_table import JavaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyspark.sql import SparkSession

COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
# What a catalog raises for a table that was dropped, be it with its files or its namespace.
MISSING = {
    "org.apache.iceberg.exceptions.NoSuchNamespaceException",
    "org.apache.iceberg.exceptions.NoSuchTableException",
    "org.apache.iceberg.exceptions.NotFoundException",
}
RUN_AGAIN = "Nothing was written. Run the pipeline again: it lists the ways to continue."
VALIDATION_FAILED = "org.apache.iceberg.exceptions.ValidationException"


def activate(spark: SparkSession) -> None:
    """Make a session the one of this thread, from which settings of catalogs are read."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def forget_catalogs(spark: SparkSession) -> None:
    """Let a session make its catalogs anew when they are next asked for.

    A REST client that was refused a new token a few times never asks for one again, and Spark
    keeps the client for as long as the session lives.
    """
    session: Any = spark._jsparkSession
    # A JVM that is gone has nothing to forget, and whoever asks next meets that.
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
        activate(spark)
        self._catalog = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(
            spark._jsparkSession, name
        )

    def exists(self, namespace: Sequence[str], table: str) -> bool:
        return bool(self._catalog.tableExists(self._identifier(namespace, table)))

    def load(self, namespace: Sequence[str], table: str) -> JavaTable:
        loaded = self._catalog.loadTable(self._identifier(namespace, table))
        return JavaTable(self._jvm, loaded, partial(self.exists, namespace, table))

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
            return JavaTable(self._jvm, builder.create(), partial(self.exists, namespace, table))
        except java_errors():
            # Another pipeline may have made it since we asked.
            if not self.exists(namespace, table):
                raise
            return self.load(namespace, table)

    def default_location(self, namespace: Sequence[str], table: str) -> str:
        """Return where the catalog would put a table, without making it."""
        schema = self._jvm.org.apache.iceberg.SchemaParser.fromJson(
            '{"type":"struct","schema-id":0,"fields":[]}'
        )
        builder = self._catalog.buildTable(self._identifier(namespace, table), schema)
        return str(builder.createTransaction().table().location())

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


def refuse_dropped(error: Exception, exists: Callable[[], bool], where: str = "") -> None:
    """Name the fault if a table can't be read because it was dropped; others are the catalog's.

    Args:
        error: what Java raised.
        exists: asks the catalog for the table. A store that fails for a moment also raises that a
            file is not there.
        where: the place, for the message.

    Raises:
        CheckpointLostError: the table was dropped.
    """
    is_other = "UUID does not match" in java_message(error)
    if not is_other and (java_class(error) not in MISSING or not _is_missing(exists)):
        return
    what = "and another one was created under its name " if is_other else ""
    raise CheckpointLostError(
        f"the table was dropped {what}while the pipeline was running",
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
