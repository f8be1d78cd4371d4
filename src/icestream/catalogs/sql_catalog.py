"""A catalog in a SQL database, for the catalogs that differ only in where the database is."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from icestream.contracts.catalog import Catalog
from icestream.contracts.check import CheckStep
from icestream.contracts.source import OptionsT
from icestream.errors import DependencyError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from icestream.catalogs.sql_store import SqlStore

_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
)
_NAMESPACES = (
    "SELECT table_namespace FROM iceberg_tables WHERE catalog_name = ? UNION "
    "SELECT namespace FROM iceberg_namespace_properties WHERE catalog_name = ?"
)

# Held while a client is made: pipelines of one process ask for it at the same moment.
_connecting = threading.Lock()


class SqlStoredCatalog(Catalog[OptionsT]):
    """Names of tables in two SQL tables, which Iceberg's JDBC catalog and PyIceberg both know.

    Args:
        name: the catalog's name, stored with each table.
        options: its block of the file.
        store: the database.
        warehouse: folder or URI below which tables are made.
    """

    def __init__(self, name: str, options: OptionsT, store: SqlStore, warehouse: str) -> None:
        super().__init__(name, options)
        self.store = store
        self.warehouse = _as_uri(warehouse)
        self._client: SqlCatalog | None = None

    @property
    def _where(self) -> str:
        return f"catalog {self.name!r} ({self.store.describe()})"

    def jars(self) -> tuple[str, ...]:
        return (self.store.jar,)

    def spark_settings(self) -> dict[str, str]:
        return {
            "type": "jdbc",
            "jdbc.schema-version": "V1",
            "warehouse": self.warehouse,
            # Each session has a cache of its own, and would not see what another one committed.
            "cache-enabled": "false",
            **self.store.jdbc_settings(),
        }

    def pyiceberg_properties(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": self.store.sqlalchemy_uri(),
            "warehouse": self.warehouse,
            "schema_version": "v1",
            # A connection that died while it waited in the pool is replaced unseen.
            "pool_pre_ping": "true",
        }

    def client(self) -> SqlCatalog:
        with _connecting:
            if self._client is None:
                self.store.prepare(self._where)
                self._client = self._connect()
            return self._client

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        *namespace, table = identifier
        answer = self._ask(_LOCATION, self.name, ".".join(namespace), table)
        if answer is None:
            return super().find_table(identifier)
        if not answer:
            return None
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(str(answer[0][0]), self.pyiceberg_properties())

    def check(self) -> Iterator[CheckStep]:
        yield CheckStep("reach catalog", self._reach)
        yield CheckStep("write to warehouse", self._write_to_warehouse)

    def close(self) -> None:
        with _connecting:
            if self._client is not None:
                self._client.engine.dispose()
                self._client = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connect(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy.exc import DBAPIError, IntegrityError

        properties = self.pyiceberg_properties()
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
            raise DependencyError(
                f"needs the package {exc.name}, which is not installed",
                where=self._where,
                todo="pip install 'icestream[postgres]'",
            ) from exc

    def _ask(self, question: str, *values: str) -> list[tuple[Any, ...]] | None:
        try:
            return self.store.ask(question, *values)
        except sqlite3.Error as exc:
            raise self.store.explain(exc, self._where) from None

    def _reach(self) -> str:
        self.store.prepare(self._where)
        answer = self._ask(_NAMESPACES, self.name, self.name)
        namespaces = (
            len({str(row[0]).partition(".")[0] for row in answer})
            if answer is not None
            else len(self.client().list_namespaces())
        )
        return f"{self.store.describe()}, {namespaces} namespace{'' if namespaces == 1 else 's'}"

    def _write_to_warehouse(self) -> str:
        if not self.warehouse.startswith("file:"):
            return f"{self.warehouse} (not tried)"
        folder = Path(self.warehouse.removeprefix("file://"))
        probe = folder / ".icestream-check"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as exc:
            raise RefusedError(
                f"the warehouse {str(folder)!r} is not writable ({exc.strerror})",
                where=self._where,
                todo="Let this user write to the folder, or name another one as `warehouse`.",
            ) from exc
        return str(folder)


def _as_uri(warehouse: str) -> str:
    """Return a place as the URI that every reader understands alike.

    Iceberg takes locations letter by letter, so nothing in a path is percent-encoded.
    """
    scheme = urlsplit(warehouse).scheme
    if len(scheme) > 1 and scheme != "file":
        return warehouse.rstrip("/")
    path = warehouse.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return f"file://{Path(path).expanduser().absolute()}"
