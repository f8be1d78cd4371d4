"""The databases that hold a SQL catalog: how Spark and PyIceberg each reach the same one."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, urlencode

from icestream.contracts.jars import POSTGRESQL, SQLITE
from icestream.contracts.secrets import hide
from icestream.errors import CorruptStateError, IcestreamError, RefusedError, UnreachableError

BUSY_SECS = 30
CONNECT_SECS = 10

# Names that PostgreSQL's Java driver and its C library share.
SHARED_PARAMETERS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


class SqlStore(ABC):
    """A database, told in two dialects of URI.

    Attributes:
        jar: the Maven coordinates of its driver for Java.
        extra: the extra of icestream that brings its driver for Python; empty if none is needed.
        is_served: whether it is reached over a network.
    """

    jar: ClassVar[str]
    extra: ClassVar[str] = ""
    is_served: ClassVar[bool] = True

    @abstractmethod
    def describe(self) -> str:
        """Name the database for messages, free of secrets."""

    @abstractmethod
    def jdbc_settings(self) -> dict[str, str]:
        """Return what Iceberg's JDBC catalog is told: `uri`, and credentials beside it."""

    @abstractmethod
    def sqlalchemy_uri(self) -> str:
        """Return the URI for PyIceberg, credentials inside."""

    @abstractmethod
    def prepare(self, where: str) -> None:
        """Make ready what can be made ready, and refuse early what cannot work."""

    def ask(self, question: str, *values: str) -> list[tuple[Any, ...]] | None:  # noqa: ARG002
        """Answer a query without SQLAlchemy, which is slow to load; None if this can't."""
        return None

    @abstractmethod
    def explain(self, fault: Exception, where: str) -> IcestreamError:
        """Turn the driver's fault into an error of ours, free of secrets."""


@dataclass(frozen=True)
class SqliteStore(SqlStore):
    """A file, shared by processes on one machine."""

    path: Path
    parameters: str = ""
    jar: ClassVar[str] = SQLITE
    is_served: ClassVar[bool] = False

    def describe(self) -> str:
        here = Path.cwd()
        path = self.path.absolute()
        return f"sqlite {path.relative_to(here) if path.is_relative_to(here) else path}"

    def jdbc_settings(self) -> dict[str, str]:
        # Several writers: wait for each other, and let readers go on meanwhile.
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
                f"its folder {str(folder)!r} cannot be made ({exc.strerror})",
                where=where,
                todo="Choose another place, or make the folder and let this user write to it.",
            ) from exc
        reason = self._unwritable(folder)
        if reason:
            raise RefusedError(
                reason,
                where=where,
                todo="Let this user write to the file and to its folder, where SQLite keeps a "
                "journal.",
            )

    def ask(self, question: str, *values: str) -> list[tuple[Any, ...]] | None:
        folder = self.path.absolute().parent
        if not self.path.exists() and (folder.is_dir() or not folder.exists()):
            return []
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECS)) as connection:
            made = "SELECT count(*) FROM sqlite_master WHERE name = 'iceberg_tables'"
            if connection.execute(made).fetchone() == (0,):
                return []
            return connection.execute(question, values).fetchall()

    def _unwritable(self, folder: Path) -> str:
        if self.path.is_dir():
            return "it is a folder, not a file"
        if self.path.exists() and not _may(self.path, os.W_OK):
            return "the file is not writable"
        if not _may(folder, os.W_OK | os.X_OK):
            return f"its folder {str(folder)!r} is not writable"
        return ""

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        said = str(getattr(fault, "orig", None) or fault)
        if "not a database" in said or "malformed" in said:
            return CorruptStateError(
                f"the file cannot be read as an SQLite database ({said})",
                where=where,
                todo="Restore it from a copy, or move it away to begin with an empty catalog.",
            )
        return UnreachableError(
            f"SQLite said {said!r}",
            where=where,
            todo="Look for a process that holds the file locked, and for space on its disk.",
        )


@dataclass(frozen=True)
class PostgresqlStore(SqlStore):
    """A database of a PostgreSQL server."""

    host: str
    port: int
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    parameters: str = ""
    jar: ClassVar[str] = POSTGRESQL
    extra: ClassVar[str] = "postgres"

    @property
    def _address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{quote(self.database)}"

    def describe(self) -> str:
        return f"postgresql {self._address}"

    def jdbc_settings(self) -> dict[str, str]:
        parameters = {"connectTimeout": str(CONNECT_SECS)} | dict(parse_qsl(self.parameters))
        settings = {"uri": f"jdbc:postgresql://{self._address}?{urlencode(parameters)}"}
        if self.user is not None:
            settings["jdbc.user"] = self.user
        if self.password is not None:
            settings["jdbc.password"] = self.password
        return settings

    def sqlalchemy_uri(self) -> str:
        given = dict(parse_qsl(self.parameters))
        parameters = {name: given[name] for name in SHARED_PARAMETERS if name in given}
        parameters["connect_timeout"] = given.get("connectTimeout", str(CONNECT_SECS))
        if "currentSchema" in given:
            # Both sides must find the catalog's tables in the same schema.
            parameters["options"] = f"-csearch_path={given['currentSchema']}"
        login = quote(self.user or "", safe="")
        if self.password is not None:
            login += f":{quote(self.password, safe='')}"
        at = "@" if login else ""
        query = urlencode(parameters, quote_via=quote)
        return f"postgresql+psycopg://{login}{at}{self._address}?{query}"

    def prepare(self, where: str) -> None:
        """Nothing: a server has been made ready by others."""

    def explain(self, fault: Exception, where: str) -> IcestreamError:
        said = self._without_secret(str(getattr(fault, "orig", None) or fault))
        # A server that answered says so in the words of its protocol, or with an SQL state.
        state = getattr(getattr(fault, "orig", None), "sqlstate", None) or ""
        if state.startswith(("28", "42501")) or _is_refusal(said):
            return RefusedError(
                f"the server refused user {self.user!r}: {said}",
                where=where,
                todo="Look at `jdbc.user` and `jdbc.password`, at the server's pg_hba.conf, and "
                "whether the user may create tables in the database.",
            )
        if "does not exist" in said:
            return RefusedError(
                f"the server does not know it: {said}",
                where=where,
                todo=f"Create the database {self.database!r}, or correct `uri`.",
            )
        return UnreachableError(
            f"no connection: {said}",
            where=where,
            todo="Is the server running? Are address and port in `jdbc.uri` right? Is a firewall "
            "in between?",
        )

    def _without_secret(self, said: str) -> str:
        # `connection failed: connection to server at ..., port N failed: FATAL:  reason`
        reason = said.strip().splitlines()[0].rpartition("failed: ")[2] if said.strip() else said
        reason = reason.removeprefix("FATAL:").strip()
        return hide(reason, [self.password or ""])


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _is_refusal(said: str) -> bool:
    marks = ("authentication failed", "pg_hba.conf", "permission denied", "no password supplied")
    return any(mark in said for mark in marks) or ("role" in said and "does not exist" in said)
