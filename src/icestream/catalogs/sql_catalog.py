"""A catalog in a SQL database, the base of catalogs that differ only in the database."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any

from icestream.catalogs.base import ClientCatalog, count_namespaces
from icestream.contracts.catalog import Abilities
from icestream.contracts.faults import (
    CheckStep,
    Fault,
    exception_text,
    first_match,
    transport_faults,
)
from icestream.contracts.source import OptionsT
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
)
from icestream.storage.blocks import as_uri, storage_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from icestream.catalogs.sql_store import SqlStore
    from icestream.contracts.storage import Storage


# Sources and stores report similar faults, which are not the database's.
DATABASE_PATTERN = re.compile(
    r"\bP?SQL\w*Exception|UncheckedSQL|\borg\.(postgresql|mariadb|sqlite)\b|sqlalchemy"
    r"|\b(psycopg|pymysql|sqlite3)\.|\bSQLITE_"
)
DISCONNECTED = "the connection to the catalog's database was lost"
DATABASE_FAULTS = (
    Fault(
        r"password authentication failed|no pg_hba.conf entry|Access denied for user"
        r"|permission denied for|role .{1,80} does not exist",
        RefusedError,
        "the catalog's database refuses the user",
        "Check `jdbc.user`, `jdbc.password` and the user's privileges in the database.",
    ),
    Fault(
        r"SQLITE_BUSY|SQLITE_LOCKED|database is locked",
        TransientError,
        "the catalog's database is locked by another process",
        "The pipeline retries by its `restart` policy. If this persists, find the process that "
        "holds the lock.",
    ),
)
SERVER_FAULTS = (
    *transport_faults(
        "the catalog's database",
        "`jdbc.uri`",
        no_answer=r"connection attempt failed|[Ss]ocket fail to connect"
        r"|Communications link failure",
    ),
    Fault(
        r"terminating connection|the database system is (starting|shutting)|I/O error occurred"
        r"|Connection reset|Broken pipe|connection has been closed|[Cc]onnection is closed"
        r"|SQLNonTransientConnectionException|SQLTransientConnectionException|EOFException"
        r"|unexpected end of stream|too many (clients|connections)|Lock wait timeout|[Dd]eadlock",
        TransientError,
        DISCONNECTED,
        "The pipeline retries by its `restart` policy. If this persists, check the database's log.",
    ),
)
UNKNOWN_FAULT = Fault(
    r"UncheckedSQLException",
    TransientError,
    DISCONNECTED,
    "The pipeline retries by its `restart` policy. If this persists, check the database's log.",
)


def explain(text: str, where: str, *, has_server: bool) -> IcestreamError | None:
    """Return the error for a fault's text; None if it is not the database's.

    Args:
        text: the driver's message.
        where: the catalog, for the message.
        has_server: whether the database has a server, unlike SQLite.
    """
    if not DATABASE_PATTERN.search(text):
        return None
    faults = (
        (*DATABASE_FAULTS, *SERVER_FAULTS, UNKNOWN_FAULT)
        if has_server
        else (*DATABASE_FAULTS, UNKNOWN_FAULT)
    )
    return first_match(faults, text, where)


_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
_NAMESPACES = (
    "SELECT table_namespace FROM iceberg_tables WHERE catalog_name = ? UNION "
    "SELECT namespace FROM iceberg_namespace_properties WHERE catalog_name = ?"
)


class SqlDatabaseCatalog(ClientCatalog[OptionsT]):
    """A catalog in two SQL tables, which Iceberg's JDBC catalog and PyIceberg share.

    Args:
        name: the catalog's name, stored with each table.
        options: its options.
        store: the database.
        warehouse: folder or URI under which tables are created.
        storage: the store of the warehouse; None to choose it by the URI's scheme.
    """

    abilities = Abilities(nested_namespaces=True)

    def __init__(
        self,
        name: str,
        options: OptionsT,
        store: SqlStore,
        warehouse: str,
        storage: Storage | None = None,
    ) -> None:
        self.warehouse = as_uri(warehouse)
        self.files = storage_for(self.warehouse, storage)
        super().__init__(name, options, self.files)
        self.store = store
        self.extra = store.extra
        self.packages = store.packages

    @property
    def where(self) -> str:
        return f"catalog {self.name!r} ({self.store.describe()})"

    def jars(self) -> tuple[str, ...]:
        return (self.store.jar, *self.files.jars())

    def spark_settings(self) -> dict[str, str]:
        return {
            "type": "jdbc",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
            # Each session has its own cache, and would not see the commits of others.
            "cache-enabled": "false",
            **self.store.jdbc_settings(),
            **self.files.spark_settings(),
        }

    def pyiceberg_properties(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": self.store.sqlalchemy_uri(),
            "warehouse": self.warehouse,
            "schema_version": "v1",
            # Replaces connections that died in the pool.
            "pool_pre_ping": "true",
            **self.files.pyiceberg_properties(),
        }

    def storage_location(self) -> str:
        return self.warehouse

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        *namespace, table = identifier
        rows = self._query(_LOCATION, self.name, ".".join(namespace), table)
        if rows is None:
            return super().find_table(identifier)
        if not rows:
            return None
        return self.call(lambda: self._read(str(rows[0][0])))

    def has_namespace(self, namespace: tuple[str, ...]) -> bool:
        rows = self._query(_NAMESPACES, self.name, self.name)
        if rows is None:
            return super().has_namespace(namespace)
        # Include namespaces implied by table names, and their parents.
        name = ".".join(namespace)
        return any(f"{row[0]}.".startswith(f"{name}.") for row in rows)

    def explain(self, text: str, where: str) -> IcestreamError | None:
        error = explain(text, where, has_server=self.store.has_server)
        return error or super().explain(text, where)

    def check(self) -> Iterator[CheckStep]:
        yield CheckStep("reach catalog", self._check_database)
        yield from self.files.check(self.warehouse)

    def faults(self) -> tuple[type[Exception], ...]:
        # Imported only after a fault: SQLAlchemy is slow to load.
        from sqlalchemy.exc import DBAPIError

        return DBAPIError, *(self._storage_faults() or (OSError,))

    def to_error(self, fault: Exception) -> IcestreamError:
        from sqlalchemy.exc import DBAPIError

        if isinstance(fault, DBAPIError):
            return self.store.explain(fault, self.where)
        return self.files.explain(exception_text(fault), self.where) or ConnectorError(
            f"the table's metadata cannot be read ({self.mask_secrets(str(fault))})",
            where=self.where,
            todo="Check that the metadata file exists, and the storage block in the configuration.",
        )

    def _connect(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy.exc import DBAPIError, IntegrityError

        properties = self.pyiceberg_properties()
        self._prepare()
        try:
            try:
                return SqlCatalog(self.name, **properties)
            except DBAPIError as exc:
                # Another process created the same tables at the same time.
                if not (isinstance(exc, IntegrityError) or "already exists" in str(exc.orig)):
                    raise
                return SqlCatalog(self.name, **properties)
        except DBAPIError as exc:
            # The fault's own text may quote the URI, so it is not shown as a cause.
            raise self.store.explain(exc, self.where) from None
        except ModuleNotFoundError as exc:
            raise self._dependency_error(exc) from exc

    def _close_client(self, client: Any) -> None:
        client.engine.dispose()

    def _prepare(self) -> None:
        try:
            self.store.prepare(self.where)
        except ModuleNotFoundError as exc:
            raise self._dependency_error(exc) from exc

    def _query(self, query: str, *values: str) -> list[tuple[Any, ...]] | None:
        try:
            return self.store.query(query, *values)
        except sqlite3.Error as exc:
            raise self.store.explain(exc, self.where) from None

    def _read(self, location: str) -> Table:
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(location, self.pyiceberg_properties())

    def _check_database(self) -> str:
        self._prepare()
        rows = self._query(_NAMESPACES, self.name, self.name)
        count = (
            len({str(row[0]).partition(".")[0] for row in rows})
            if rows is not None
            else len(self.call(lambda: self.client().list_namespaces()))
        )
        return f"{self.store.describe()}, {count_namespaces(count)}"
