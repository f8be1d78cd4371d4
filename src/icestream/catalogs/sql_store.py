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

from icestream.contracts.jars import SQLITE
from icestream.errors import CorruptStateError, IcestreamError, RefusedError, UnreachableError

BUSY_SECS = 30
CONNECT_SECS = 10


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
        """Host, port and database, as both dialects of URI have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{quote(self.database)}"

    def unknown_database(self, said: str, where: str) -> RefusedError:
        """Return the error of a server that has no such database."""
        return RefusedError(
            f"the server does not know it: {said}",
            where=where,
            todo=f"Create the database {self.database!r}, or correct `jdbc.uri`.",
        )

    def no_connection(self, said: str, where: str) -> UnreachableError:
        """Return the error of a server that does not answer."""
        return UnreachableError(
            f"no connection: {said}",
            where=where,
            todo="Is the server running? Are address and port in `jdbc.uri` right? Is a firewall "
            "in between?",
        )

    def to_java(self, driver: str, connect_timeout: int) -> dict[str, str]:
        """Return the settings for a driver of Java."""
        parameters = {"connectTimeout": str(connect_timeout)} | dict(parse_qsl(self.parameters))
        settings = {"uri": f"jdbc:{driver}://{self.address}?{urlencode(parameters)}"}
        if self.user is not None:
            settings["jdbc.user"] = self.user
        if self.password is not None:
            settings["jdbc.password"] = self.password
        return settings

    def to_python(self, driver: str, query: str) -> str:
        """Return the URI for a driver of SQLAlchemy, credentials inside."""
        login = quote(self.user or "", safe="")
        if self.password is not None:
            login += f":{quote(self.password, safe='')}"
        at = "@" if login else ""
        return f"{driver}://{login}{at}{self.address}?{query}"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
