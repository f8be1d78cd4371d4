"""A catalog in a SQL database, for the catalogs that differ only in where the database is."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar

from icestream.contracts.catalog import Abilities, Catalog
from icestream.contracts.faults import (
    CheckStep,
    Fault,
    exception_text,
    first_match,
    transport_faults,
)
from icestream.contracts.secrets import without_secrets
from icestream.contracts.source import OptionsT
from icestream.errors import (
    ConnectorError,
    DependencyError,
    IcestreamError,
    RefusedError,
    TransientError,
)
from icestream.storage.blocks import as_uri, storage_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from icestream.catalogs.sql_store import SqlStore
    from icestream.contracts.storage import Storage


# Sources and stores are refused connections too, and must not be taken for the database.
DATABASE_PATTERN = re.compile(
    r"\bP?SQL\w*Exception|UncheckedSQL|\borg\.(postgresql|mariadb|sqlite)\b|sqlalchemy"
    r"|\b(psycopg|pymysql|sqlite3)\.|\bSQLITE_"
)
DISCONNECTED = "the catalog's database broke off"
DATABASE_FAULTS = (
    Fault(
        r"password authentication failed|no pg_hba.conf entry|Access denied for user"
        r"|permission denied for|role .{1,80} does not exist",
        RefusedError,
        "the catalog's database refuses the user",
        "Look at `jdbc.user` and `jdbc.password`, and at what the user may do in the database.",
    ),
    Fault(
        r"SQLITE_BUSY|SQLITE_LOCKED|database is locked",
        TransientError,
        "another process holds the catalog's database locked",
        "It is asked again by the `restart` policy. Look for the process if it goes on.",
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
        "It is asked again by the `restart` policy. Look at the database's log if it goes on.",
    ),
)
UNKNOWN_FAULT = Fault(
    r"UncheckedSQLException",
    TransientError,
    DISCONNECTED,
    "It is asked again by the `restart` policy. Look at the database's log if it goes on.",
)


def explain(said: str, where: str, *, is_served: bool) -> IcestreamError | None:
    """Return the error that a fault's text stands for; None if it is not the database's.

    Args:
        said: what the driver says.
        where: the place, for the message.
        is_served: whether the database is reached over a network.
    """
    if not DATABASE_PATTERN.search(said):
        return None
    faults = (
        (*DATABASE_FAULTS, *SERVER_FAULTS, UNKNOWN_FAULT)
        if is_served
        else (*DATABASE_FAULTS, UNKNOWN_FAULT)
    )
    return first_match(faults, said, where)


AnswerT = TypeVar("AnswerT")

_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
_NAMESPACES = (
    "SELECT table_namespace FROM iceberg_tables WHERE catalog_name = ? UNION "
    "SELECT namespace FROM iceberg_namespace_properties WHERE catalog_name = ?"
)


class SqlStoredCatalog(Catalog[OptionsT]):
    """Names of tables in two SQL tables, which Iceberg's JDBC catalog and PyIceberg both know.

    Args:
        name: the catalog's name, stored with each table.
        options: its block of the file.
        store: the database.
        warehouse: folder or URI below which tables are made.
        storage: where that is; None to tell by its scheme.
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
        self._client: SqlCatalog | None = None

    @property
    def _where(self) -> str:
        return f"catalog {self.name!r} ({self.store.describe()})"

    def jars(self) -> tuple[str, ...]:
        return (self.store.jar, *self.files.jars())

    def spark_settings(self) -> dict[str, str]:
        return {
            "type": "jdbc",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
            # Each session has a cache of its own, and would not see what another one committed.
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
            # A connection that died while it waited in the pool is replaced unseen.
            "pool_pre_ping": "true",
            **self.files.pyiceberg_properties(),
        }

    def client(self) -> SqlCatalog:
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        *namespace, table = identifier
        answer = self._ask(_LOCATION, self.name, ".".join(namespace), table)
        if answer is None:
            return self._asked(lambda: super(SqlStoredCatalog, self).find_table(identifier))
        if not answer:
            return None
        return self._asked(lambda: self._read(str(answer[0][0])))

    def has_namespace(self, namespace: tuple[str, ...]) -> bool:
        answer = self._ask(_NAMESPACES, self.name, self.name)
        if answer is None:
            return self._asked(lambda: super(SqlStoredCatalog, self).has_namespace(namespace))
        # Those that only a table's name tells of count, and so do those that they lie in.
        name = ".".join(namespace)
        return any(f"{row[0]}.".startswith(f"{name}.") for row in answer)

    def explain(self, said: str, where: str) -> IcestreamError | None:
        known = explain(said, where, is_served=self.store.is_served)
        return known or super().explain(said, where)

    def check(self) -> Iterator[CheckStep]:
        yield CheckStep("reach catalog", self._reach)
        yield from self.files.check(self.warehouse)

    def checks_storage(self) -> bool:
        return True

    def close(self) -> None:
        with self._connecting:
            if self._client is not None:
                self._client.engine.dispose()
                self._client = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connect(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy.exc import DBAPIError, IntegrityError

        properties = self.pyiceberg_properties()
        self._prepare()
        try:
            try:
                return SqlCatalog(self.name, **properties)
            except DBAPIError as exc:
                # Another process made the same tables between our look and our CREATE.
                if not (isinstance(exc, IntegrityError) or "already exists" in str(exc.orig)):
                    raise
                return SqlCatalog(self.name, **properties)
        except DBAPIError as exc:
            # The fault's own text may quote the URI, so it is not shown as a cause.
            raise self.store.explain(exc, self._where) from None
        except ModuleNotFoundError as exc:
            raise self._missing(exc) from exc

    def _prepare(self) -> None:
        try:
            self.store.prepare(self._where)
        except ModuleNotFoundError as exc:
            raise self._missing(exc) from exc

    def _missing(self, fault: ModuleNotFoundError) -> DependencyError:
        return DependencyError(
            f"needs the package {fault.name}, which is not installed",
            where=self._where,
            todo=f"pip install 'icestream[{self.store.extra}]'",
        )

    def _ask(self, question: str, *values: str) -> list[tuple[Any, ...]] | None:
        try:
            return self.store.ask(question, *values)
        except sqlite3.Error as exc:
            raise self.store.explain(exc, self._where) from None

    def _read(self, location: str) -> Table:
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(location, self.pyiceberg_properties())

    def _asked(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """Return an answer; a fault of the database or of the store is raised in our words."""
        try:
            return ask()
        except IcestreamError:
            raise
        except self._faults_of_database() as exc:
            raise self.store.explain(exc, self._where) from None
        except self._faults_of_store() as exc:
            shown = self.files.hidden(without_secrets(str(exc), self.options))
            raise self.files.explain(exception_text(exc), self._where) or ConnectorError(
                f"the table's metadata cannot be read ({shown})",
                where=self._where,
                todo="Is the file still there? Look at the store, and at its block of the file.",
            ) from None

    def _faults_of_database(self) -> type[Exception]:
        # Looked for only now: SQLAlchemy is slow to load.
        from sqlalchemy.exc import DBAPIError

        return DBAPIError

    def _faults_of_store(self) -> tuple[type[Exception], ...]:
        try:
            return self.files.faults()
        except ModuleNotFoundError:
            return (OSError,)  # what is missing cannot have raised anything

    def _reach(self) -> str:
        self._prepare()
        answer = self._ask(_NAMESPACES, self.name, self.name)
        namespaces = (
            len({str(row[0]).partition(".")[0] for row in answer})
            if answer is not None
            else len(self._asked(lambda: self.client().list_namespaces()))
        )
        return f"{self.store.describe()}, {namespaces} namespace{'' if namespaces == 1 else 's'}"
