"""Connections to MySQL and MariaDB, with icestream's errors."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icestream.contracts.faults import first_match, transport_faults
from icestream.contracts.secrets import without_secrets
from icestream.errors import ConnectorError, IcestreamError, RefusedError
from icestream.verify.debezium import missing_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icestream.sources.kafka.database import DatabaseOptions

CONNECT_SECS = 10
# Access denied: to the server, a database, a table, a column; or without a password.
REFUSED_CODES = (1044, 1045, 1142, 1143, 1227, 1698)
TLS_CODE = 2026
SESSION = (
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
)


class MySqlServer:
    """Opens connections; holds none itself.

    Args:
        options: the server and the credentials.
    """

    def __init__(self, options: DatabaseOptions) -> None:
        self.options = options
        self.where = f"{options.type} {options.host}:{options.server_port}"

    @contextmanager
    def connect(self) -> Iterator[MySqlSession]:
        """Open a session that sees one state of the database.

        Raises:
            DependencyError: the package pymysql is not installed.
            UnreachableError: no answer.
            RefusedError: authentication or TLS failed.
            ConnectorError: the server reports another error.
        """
        try:
            import pymysql
        except ModuleNotFoundError as exc:
            raise missing_package(self.options, exc, "mysql") from exc
        try:
            connection = self._open(pymysql)
            try:
                session = MySqlSession(connection)
                for statement in SESSION:
                    session.rows(statement)
                yield session
            finally:
                connection.close()
        except pymysql.MySQLError as exc:
            raise self._error(exc) from None

    def _open(self, pymysql: Any) -> Any:
        options = self.options
        try:
            return self._connect(pymysql, _tls_context(options.sslmode))
        except pymysql.OperationalError as exc:
            if options.sslmode != "prefer" or exc.args[0] != TLS_CODE:
                raise
            return self._connect(pymysql, None)

    def _connect(self, pymysql: Any, tls: ssl.SSLContext | None) -> Any:
        options = self.options
        password = options.password
        connection = pymysql.connect(
            host=options.host,
            port=options.server_port,
            user=options.user,
            password="" if password is None else password.get_secret_value(),
            charset="utf8mb4",
            connect_timeout=CONNECT_SECS,
            ssl=tls,
        )
        if tls is not None and not connection._secure:
            # Older versions of PyMySQL go on without encryption.
            connection.close()
            raise pymysql.OperationalError(TLS_CODE, "the server doesn't support it")
        return connection

    def _error(self, exc: Exception) -> IcestreamError:
        code = exc.args[0] if exc.args else None
        text = without_secrets(str(exc.args[-1]) if exc.args else str(exc), self.options)
        if code in REFUSED_CODES:
            return RefusedError(
                f"the server refused user {self.options.user!r}: {text}",
                where=self.where,
                todo="Check `user` and `password` of `database`, and that the user may SELECT "
                "from the tables.",
            )
        if code == TLS_CODE:
            return RefusedError(
                f"TLS connection failed: {text}",
                where=self.where,
                todo="Check `sslmode` of `database`, and the server's certificate.",
            )
        faults = transport_faults(
            f"{self.options.host}:{self.options.server_port}",
            "`host` and `port` of `database`",
            no_answer=r"[Tt]imed ?out|No route to host|Network is unreachable|Lost connection",
        )
        return first_match(faults, text, self.where) or ConnectorError(
            f"the server reports an error: {text}", where=self.where
        )


class MySqlSession:
    """One connection; its errors are translated by `MySqlServer.connect`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._connection.cursor() as cursor:
            cursor.execute(query, parameters or None)
            return list(cursor.fetchall())

    def blocks(
        self, query: str, parameters: Sequence[Any], size: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query in blocks, without holding all of them."""
        from pymysql.cursors import SSCursor

        with self._connection.cursor(SSCursor) as cursor:
            cursor.execute(query, parameters or None)
            while rows := cursor.fetchmany(size):
                yield list(rows)


def _tls_context(sslmode: str) -> ssl.SSLContext | None:
    if sslmode in ("disable", "allow"):
        return None
    context = ssl.create_default_context()
    context.check_hostname = sslmode == "verify-full"
    if sslmode not in ("verify-ca", "verify-full"):
        context.verify_mode = ssl.CERT_NONE
    return context
