"""Catalog in a SQL database: a SQLite file, which needs no server, PostgreSQL or MySQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr, field_validator

from icestream.catalogs.base import resolve_warehouse
from icestream.catalogs.sql_catalog import SqlDatabaseCatalog
from icestream.catalogs.sql_store import (
    MysqlStore,
    PostgresqlStore,
    SqliteStore,
    SqlStore,
    check_encryption,
)
from icestream.contracts.options import LOCATION, Options
from icestream.storage.blocks import StorageBlocks

if TYPE_CHECKING:
    from icestream.contracts.storage import Storage


PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}
# Addresses are logged, so they must not contain secrets.
SECRET_PARAMETER = re.compile(r"passw|secret|token", re.IGNORECASE)

CREDENTIALS_IN_URI = "contains a user or password; set them as `user` and `password`"


class JdbcConnection(Options):
    """The database and its user."""

    uri: str = Field(
        description="Address of the database: `jdbc:sqlite:PATH`, "
        "`jdbc:postgresql://HOST:PORT/DATABASE`, `jdbc:mysql://HOST:PORT/DATABASE` or "
        "`jdbc:mariadb://...`; `jdbc:` may be left out.",
        json_schema_extra={"path": True},
    )
    user: str | None = Field(None, description="User of the database.")
    password: SecretStr | None = Field(None, description="The user's password.")

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        kind, rest = _kind_and_rest(uri)
        _check_parameters(rest.partition("?")[2])
        if kind == "sqlite":
            if not _sqlite_path(uri) or ":memory:" in rest:
                raise ValueError("names no file; for a catalog without one, use `type: memory`")
        elif kind in PORTS:
            _check_server(f"{kind}:{rest}")
            if kind != "postgresql":
                check_encryption(urlsplit(rest).query)
        else:
            raise ValueError("must begin with sqlite:, postgresql:, mysql: or mariadb:")
        return uri


class JdbcCatalogOptions(StorageBlocks):
    """A catalog in a SQL database."""

    type: Literal["jdbc"] = Field("jdbc", description="The kind of catalog.")
    jdbc: JdbcConnection = Field(description="The database.")
    warehouse: str | None = Field(
        None,
        description="Folder or URI under which tables are created; with SQLite, defaults to the "
        "folder of its file.",
        json_schema_extra=LOCATION,
    )


class JdbcCatalog(SqlDatabaseCatalog[JdbcCatalogOptions]):
    """Iceberg's JDBC catalog for Spark, PyIceberg's SQL catalog for everything else."""

    options_type = JdbcCatalogOptions

    def __init__(
        self, name: str, options: JdbcCatalogOptions, storage: Storage | None = None
    ) -> None:
        store = _store(options.jdbc)
        storage = storage or options.configured_storage()
        warehouse = resolve_warehouse(
            options.warehouse,
            storage,
            where=f"catalog {name!r} ({store.describe()})",
            default=str(store.path.absolute().parent) if isinstance(store, SqliteStore) else None,
        )
        super().__init__(name, options, store, warehouse, storage)

    def identity(self) -> str:
        return f"jdbc {self.store.describe()}"


def embedded(folder: Path, name: str = "lake", storage: Storage | None = None) -> JdbcCatalog:
    """Return the default catalog: a SQLite file in the warehouse's folder."""
    uri = f"jdbc:sqlite:{folder.absolute() / 'catalog.db'}"
    warehouse = storage.warehouse() if storage else None
    options = {"jdbc": {"uri": uri}, "warehouse": warehouse or str(folder)}
    return JdbcCatalog(name, JdbcCatalogOptions.model_validate(options), storage)


def _kind_and_rest(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.removeprefix("jdbc:").partition(":")
    kind = scheme.lower().partition("+")[0]
    return ("postgresql" if kind == "postgres" else kind), rest


def _sqlite_path(uri: str) -> str:
    """Return the path in a SQLite URI.

    After `jdbc:sqlite:`, it is the path itself. Without `jdbc:`, it is SQLAlchemy's form, where
    three slashes start a relative path and four an absolute one.
    """
    rest = _kind_and_rest(uri)[1].partition("?")[0].removeprefix("file:")
    if not uri.startswith("jdbc:") and rest.startswith("///"):
        return rest[3:]
    return rest


def _check_parameters(query: str) -> None:
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name.lower() in {"user", "password"}:
            raise ValueError(CREDENTIALS_IN_URI)
        if SECRET_PARAMETER.search(name):
            raise ValueError(f"contains `{name}`, but addresses are logged; remove it")


def _check_server(uri: str) -> None:
    parts = urlsplit(uri)
    if parts.username or parts.password:
        raise ValueError(CREDENTIALS_IN_URI)
    try:
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        raise ValueError("has an invalid port") from None
    if not parts.hostname or not parts.path.strip("/"):
        raise ValueError(f"lacks a host or a database; write {parts.scheme}://HOST:PORT/DATABASE")


def _store(connection: JdbcConnection) -> SqlStore:
    kind, rest = _kind_and_rest(connection.uri)
    if kind == "sqlite":
        path = Path(_sqlite_path(connection.uri)).expanduser()
        return SqliteStore(path, connection.uri.partition("?")[2])
    parts = urlsplit(f"{kind}:{rest}")
    password = None if connection.password is None else connection.password.get_secret_value()
    server: dict[str, Any] = {
        "host": parts.hostname or "",
        "port": parts.port or PORTS[kind],
        "database": parts.path.strip("/"),
        "user": connection.user,
        "password": password,
        "parameters": parts.query,
    }
    return PostgresqlStore(**server) if kind == "postgresql" else MysqlStore(kind=kind, **server)
