"""The databases of SQL catalogs, configured alike for Spark and PyIceberg."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, urlencode

from icestream.contracts.faults import TIMED_OUT, first_match, transport_faults
from icestream.contracts.jars import MARIADB, POSTGRESQL, SQLITE
from icestream.contracts.secrets import hide
from icestream.errors import (
    ConnectorError,
    CorruptStateError,
    IcestreamError,
    RefusedError,
    UnreachableError,
)

BUSY_SECS = 30
CONNECT_SECS = 10
TRANSPORT = transport_faults(
    "the catalog's database", "`jdbc.uri`", no_answer=rf"{TIMED_OUT}|timeout expired"
)


class SqlStore(ABC):
    """A database, with a URI for Java and one for Python.

    Attributes:
        jar: the Maven coordinates of its Java driver.
        extra: the extra of icestream that installs its Python driver; empty if none is needed.
        packages: the driver, as it is imported.
        has_server: whether the database has a server, unlike SQLite.
    """

    jar: ClassVar[str]
    extra: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()
    has_server: ClassVar[bool] = True

    @abstractmethod
    def describe(self) -> str:
        """Name the database for messages, free of secrets."""

    @abstractmethod
    def jdbc_settings(self) -> dict[str, str]:
        """Return the settings of Iceberg's JDBC catalog: `uri` and credentials."""

    @abstractmethod
    def sqlalchemy_uri(self) -> str:
        """Return the URI for PyIceberg, with credentials."""

    @abstractmethod
    def prepare(self, where: str) -> None:
        """Create what the database needs, and refuse early what cannot work."""

    def query(self, sql: str, *values: str) -> list[tuple[Any, ...]] | None:  # noqa: ARG002
        """Run a query without SQLAlchemy, which is slow to import; None if not supported."""
        return None

    @abstractmethod
    def explain(self, fault: Exception, where: str) -> IcestreamError:
        """Turn the driver's fault into an icestream error, free of secrets."""


@dataclass(frozen=True)
class SqliteStore(SqlStore):
    """A SQLite file, shared by processes on one machine."""

    path: Path
    parameters: str = ""
    jar: ClassVar[str] = SQLITE
    has_server: ClassVar[bool] = False

    def describe(self) -> str:
        here = Path.cwd()
        path = self.path.absolute()
        return f"sqlite {path.relative_to(here) if path.is_relative_to(here) else path}"

    def jdbc_settings(self) -> dict[str, str]:
        # Writers wait for each other, and do not block readers.
        parameters = {"journal_mode": "WAL", "busy_timeout": str(BUSY_SECS * 1000)}
        parameters |= dict(parse_qsl(self.parameters))
        return {"uri": f"jdbc:sqlite:{self.path.absolute()}?{urlencode(parameters)}"}

    def sqlalchemy_uri(self) -> str:
        return f"sqlite:///{quote(str(self.path.absolute()))}?timeout={BUSY_SECS}"

    def prepare(self, where: str) -> None:
        folder = self.path.absolute().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise RefusedError(
                f"its folder {str(folder)!r} cannot be created ({exc.strerror})",
                where=where,
                todo="Choose another path, or create the folder, writable by this user.",
            ) from exc
        reason = self._write_problem(folder)
        if reason:
            raise RefusedError(
                reason,
                where=where,
                todo="Give this user write permission for the file and its folder, where SQLite "
                "keeps a journal.",
            )

    def query(self, sql: str, *values: str) -> list[tuple[Any, ...]] | None:
        folder = self.path.absolute().parent
        if not self.path.exists() and (folder.is_dir() or not folder.exists()):
            return []
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECS)) as connection:
            has_tables = "SELECT count(*) FROM sqlite_master WHERE name = 'iceberg_tables'"
            if connection.execute(has_tables).fetchone() == (0,):
                return []
            return connection.execute(sql, values).fetchall()

    def _write_problem(self, folder: Path) -> str:
        if self.path.is_dir():
            return "it is a folder, not a file"
        if self.path.exists() and not _has_access(self.path, os.W_OK):
            return "the file is not writable"
        if not _has_access(folder, os.W_OK | os.X_OK):
            return f"its folder {str(folder)!r} is not writable"
        return ""

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        text = str(getattr(fault, "orig", None) or fault)
        if "not a database" in text or "malformed" in text:
            return CorruptStateError(
                f"the file cannot be read as an SQLite database ({text})",
                where=where,
                todo="Restore it from a backup, or move it away to start with an empty catalog.",
            )
        return UnreachableError(
            f"SQLite reports {text!r}",
            where=where,
            todo="Check for a process that holds the file locked, and for free disk space.",
        )


@dataclass(frozen=True)
class ServerStore(SqlStore):
    """A database of a server."""

    host: str
    port: int
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    parameters: str = ""

    @property
    def address(self) -> str:
        """Host, port and database, as in both URIs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{quote(self.database)}"

    def unknown_database_error(self, text: str, where: str) -> RefusedError:
        """Return the error for a database that does not exist."""
        return RefusedError(
            f"no such database: {text}",
            where=where,
            todo=f"Create the database {self.database!r}, or correct `jdbc.uri`.",
        )

    def connection_error(self, text: str, where: str) -> IcestreamError:
        """Return the error for a server that cannot be reached."""
        return first_match(TRANSPORT, text, where) or UnreachableError(
            f"connection failed: {text}",
            where=where,
            todo="Is the server running? Check `jdbc.uri`. Is a firewall, a VPN or a proxy in "
            "between?",
        )

    def java_settings(self, driver: str, connect_timeout: int) -> dict[str, str]:
        """Return the settings for a Java driver."""
        parameters = {"connectTimeout": str(connect_timeout)} | dict(parse_qsl(self.parameters))
        settings = {"uri": f"jdbc:{driver}://{self.address}?{urlencode(parameters)}"}
        if self.user is not None:
            settings["jdbc.user"] = self.user
        if self.password is not None:
            settings["jdbc.password"] = self.password
        return settings

    def python_uri(self, driver: str, query: str) -> str:
        """Return the URI for an SQLAlchemy driver, with credentials."""
        login = quote(self.user or "", safe="")
        if self.password is not None:
            login += f":{quote(self.password, safe='')}"
        at = "@" if login else ""
        return f"{driver}://{login}{at}{self.address}?{query}"


def _has_access(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


# Parameters that PostgreSQL's Java driver and libpq share.
SHARED_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


@dataclass(frozen=True)
class PostgresqlStore(ServerStore):
    """A database of a PostgreSQL server."""

    jar: ClassVar[str] = POSTGRESQL
    extra: ClassVar[str] = "postgres"
    packages: ClassVar[tuple[str, ...]] = ("psycopg",)

    def describe(self) -> str:
        return f"postgresql {self.address}"

    def jdbc_settings(self) -> dict[str, str]:
        return self.java_settings("postgresql", CONNECT_SECS)

    def sqlalchemy_uri(self) -> str:
        jdbc_parameters = dict(parse_qsl(self.parameters))
        parameters = {
            name: jdbc_parameters[name] for name in SHARED_PARAMETERS if name in jdbc_parameters
        }
        parameters["connect_timeout"] = jdbc_parameters.get("connectTimeout", str(CONNECT_SECS))
        if "currentSchema" in jdbc_parameters:
            # Java and Python must find the catalog's tables in the same schema.
            parameters["options"] = f"-csearch_path={jdbc_parameters['currentSchema']}"
        return self.python_uri("postgresql+psycopg", urlencode(parameters, quote_via=quote))

    def prepare(self, where: str) -> None:
        """Do nothing: the clients create the tables."""

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        text = self._without_secret(str(getattr(fault, "orig", None) or fault))
        # A server's refusal has an SQLSTATE or the server's message.
        state = getattr(getattr(fault, "orig", None), "sqlstate", None) or ""
        if state.startswith(("28", "42501")) or _is_refusal(text):
            return RefusedError(
                f"the server refused user {self.user!r}: {text}",
                where=where,
                todo="Check `jdbc.user` and `jdbc.password`, the server's pg_hba.conf, and that "
                "the user may create tables in the database.",
            )
        if "does not exist" in text:
            return self.unknown_database_error(text, where)
        return self.connection_error(text, where)

    def _without_secret(self, text: str) -> str:
        # `connection failed: connection to server at ..., port N failed: FATAL:  reason`
        reason = text.strip().splitlines()[0].rpartition("failed: ")[2] if text.strip() else text
        reason = reason.removeprefix("FATAL:").strip()
        return hide(reason, [self.password or ""])


def _is_refusal(text: str) -> bool:
    marks = ("authentication failed", "pg_hba.conf", "permission denied", "no password supplied")
    return any(mark in text for mark in marks) or ("role" in text and "does not exist" in text)


# Error numbers of MySQL and MariaDB.
REFUSED_CODES = {1044, 1045, 1142, 1227, 1698, 3118, 3159}
UNKNOWN_DATABASE = 1049

# With the servers' default collation, `Orders` and `orders` are the same name, and so are `Größe`
# and `Grosse`; older servers store Latin letters only.
EXACT_NAMES = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
CREATE_TABLES = (
    "CREATE TABLE IF NOT EXISTS iceberg_tables ("
    "catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, "
    "table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), "
    "previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5), "
    f"PRIMARY KEY (catalog_name, table_namespace, table_name)) {EXACT_NAMES}",
    "CREATE TABLE IF NOT EXISTS iceberg_namespace_properties ("
    "catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, "
    "property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000), "
    f"PRIMARY KEY (catalog_name, namespace, property_key)) {EXACT_NAMES}",
)
COUNT_TABLES = (
    "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() "
    "AND table_name IN ('iceberg_tables', 'iceberg_namespace_properties')"
)


@dataclass(frozen=True)
class MysqlStore(ServerStore):
    """A database of a MySQL or MariaDB server; MariaDB's Java driver supports both."""

    kind: str = "mysql"
    jar: ClassVar[str] = MARIADB
    extra: ClassVar[str] = "mysql"
    packages: ClassVar[tuple[str, ...]] = ("pymysql",)

    def describe(self) -> str:
        return f"{self.kind} {self.address}"

    def jdbc_settings(self) -> dict[str, str]:
        return self.java_settings("mariadb", CONNECT_SECS * 1000)

    def sqlalchemy_uri(self) -> str:
        parameters = {"charset": "utf8mb4", "connect_timeout": str(CONNECT_SECS)}
        parameters |= {
            f"ssl_{name}": str(value).lower() if isinstance(value, bool) else value
            for name, value in self._encryption().items()
        }
        return self.python_uri("mysql+pymysql", urlencode(parameters))

    def prepare(self, where: str) -> None:
        """Create the catalog's tables with a case-sensitive collation.

        Spark and PyIceberg would create them with the database's default collation.
        """
        import pymysql

        login = {"user": self.user, "password": self.password or "", "database": self.database}
        try:
            with (
                closing(
                    pymysql.connect(
                        host=self.host,
                        port=self.port,
                        connect_timeout=CONNECT_SECS,
                        charset="utf8mb4",
                        ssl=self._encryption() or None,
                        **login,
                    )
                ) as connection,
                connection.cursor() as cursor,
            ):
                # Checked first: a user without CREATE may still use existing tables.
                cursor.execute(COUNT_TABLES)
                if cursor.fetchone() != (len(CREATE_TABLES),):
                    for statement in CREATE_TABLES:
                        cursor.execute(statement)
        except pymysql.MySQLError as exc:
            raise self.explain(exc, where) from None
        except OSError as exc:
            # PyMySQL wraps network errors; others come from reading the certificate.
            raise ConnectorError(
                f"the certificate {self._encryption().get('ca')!r} cannot be read "
                f"({exc.strerror or exc})",
                where=where,
                todo="Check `serverSslCert` in `jdbc.uri`: it is the path of a PEM file.",
            ) from exc

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        code, text = self._error_details(getattr(fault, "orig", None) or fault)
        if code in REFUSED_CODES:
            return RefusedError(
                f"the server refused user {self.user!r}: {text}",
                where=where,
                todo="Check `jdbc.user` and `jdbc.password`, the hosts from which the server "
                "accepts the user, and that the user may create tables in the database.",
            )
        if code == UNKNOWN_DATABASE:
            return self.unknown_database_error(text, where)
        return self.connection_error(text, where)

    def _error_details(self, fault: Any) -> tuple[int, str]:
        """Return the error number and the message of a fault."""
        code, text = (*fault.args, "")[:2] if fault.args else (0, "")
        text = str(text or fault).strip()
        masked = hide(text, [self.password or ""])
        return (code if isinstance(code, int) else 0), masked

    def _encryption(self) -> dict[str, Any]:
        """Return the URI's TLS parameters for PyMySQL; empty for no encryption."""
        parameters = dict(parse_qsl(self.parameters))
        mode = _mode(parameters)
        if mode == "disable":
            return {}
        certificate = {"ca": parameters["serverSslCert"]} if mode != "trust" else {}
        return {"check_hostname": mode == "verify-full", **certificate}


def check_encryption(parameters: str) -> None:
    """Refuse parameters that would encrypt or verify only in Java or only in Python.

    Raises:
        ValueError: with the reason.
    """
    values = dict(parse_qsl(parameters))
    for name in values:
        if name.lower() in {"usessl", "requiressl", "verifyservercertificate"}:
            raise ValueError(
                f"contains `{name}`; use `sslMode`, which Spark and Python both support"
            )
    mode = _mode(values)
    if mode not in {"disable", "trust", "verify-ca", "verify-full"}:
        raise ValueError("`sslMode` must be disable, trust, verify-ca or verify-full")
    if mode.startswith("verify") and "serverSslCert" not in values:
        raise ValueError(f"`sslMode={mode}` needs `serverSslCert`, the path of a certificate")


def _mode(parameters: dict[str, str]) -> str:
    mode = parameters.get("sslMode", "disable").lower().replace("_", "-")
    return {"disabled": "disable", "required": "trust", "verify-identity": "verify-full"}.get(
        mode, mode
    )
