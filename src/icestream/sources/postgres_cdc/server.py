"""Connections to PostgreSQL. Sessions print values the same way whatever the server's settings."""

from __future__ import annotations

import select
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icestream.errors import ConnectorError
from icestream.sources.postgres_cdc.faults import error_location, to_error
from icestream.sources.postgres_cdc.timeline import verify_anchor
from icestream.sources.postgres_cdc.types import SESSION_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg
    from psycopg.pq.abc import PGconn
    from psycopg.sql import Composed

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.timeline import Anchor, Lineage


NO_DATA_YET = 0


def copy_out(
    connection: psycopg.Connection[Any], query: Composed, block_bytes: int
) -> Iterator[list[bytes]]:
    """Yield the rows of a `COPY ... TO STDOUT` in blocks of about `block_bytes`.

    The connection is closed if the caller stops before the last row.

    Raises:
        psycopg.Error: the server reported an error, or the connection broke.
    """
    from psycopg.errors import error_from_result
    from psycopg.pq import ExecStatus

    pgconn = connection.pgconn
    result = pgconn.exec_(query.as_bytes(connection))
    if result.status != ExecStatus.COPY_OUT:
        raise error_from_result(result)
    is_done = False
    try:
        yield from _blocks(pgconn, block_bytes)
        while (last := pgconn.get_result()) is not None:
            if last.status != ExecStatus.COMMAND_OK:
                raise error_from_result(last)
        is_done = True
    finally:
        if not is_done:
            connection.close()


def _blocks(pgconn: PGconn, block_bytes: int) -> Iterator[list[bytes]]:
    take = pgconn.get_copy_data
    rows: list[bytes] = []
    size = 0
    while True:
        length, row = take(1)
        if length > 0:
            rows.append(bytes(row))
            size += length
            if size >= block_bytes:
                yield rows
                rows, size = [], 0
        elif length == NO_DATA_YET:
            _await_more(pgconn)
        else:
            break
    if rows:
        yield rows


def _await_more(pgconn: PGconn) -> None:
    """Wait for the server; a signal interrupts the wait."""
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    waiting.poll()
    pgconn.consume_input()


CONNECT_SECS = 10
MIN_SERVER_VERSION = 140_000
MAX_NAME_LENGTH = 63

# Snapshot and log must print a value alike, and no timeout may end a waiting session.
SETTINGS = {
    **SESSION_SETTINGS,
    "xmloption": "content",
    "search_path": "",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "row_security": "off",
}
APPLY_SETTINGS = """
SELECT set_config(wanted.name, wanted.value, false)
FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)
JOIN pg_catalog.pg_settings AS known ON lower(known.name) = lower(wanted.name)
WHERE known.context = 'user'
"""


class PgServer:
    """Opens connections; holds none itself.

    Args:
        options: the server and the credentials.
        anchor: what the server must have, checked for each connection; None before an offset is
            known.
    """

    def __init__(self, options: PostgresCdcOptions, anchor: Anchor | None = None) -> None:
        self.options = options
        self.anchor = anchor
        self.where = error_location(options)
        self.application = f"icestream {options.slot}"[:MAX_NAME_LENGTH]

    def connect(self) -> PgSession:
        """Open a session.

        Raises:
            UnreachableError: no answer.
            RefusedError: authentication failed.
            SourceChangedError: the server does not have the log of the anchor.
            ConnectorError: the server is too old, or reports another error.
        """
        with self.translate_errors():
            connection = self.open_connection()
        session = PgSession(self, connection)
        try:
            self._refuse_too_old(session.version)
            session.rows(APPLY_SETTINGS, [list(SETTINGS), list(SETTINGS.values())])
            if self.anchor is not None:
                verify_anchor(session, self.anchor)
        except BaseException:
            connection.close()
            raise
        return session

    def open_connection(self, replication: str | None = None) -> psycopg.Connection[Any]:
        """Open a plain connection, or one for replication commands."""
        import psycopg

        options = self.options
        password = options.password
        return psycopg.connect(
            host=options.host,
            port=options.port,
            dbname=options.database,
            user=options.user,
            password=password.get_secret_value() if password is not None else None,
            sslmode=options.sslmode,
            application_name=self.application,
            client_encoding="UTF8",
            connect_timeout=CONNECT_SECS,
            # Firewalls must not drop the idle session that waits for its tasks.
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=6,
            replication=replication,
            autocommit=True,
            prepare_threshold=None,  # a connection pooler may not support them
        )

    def _refuse_too_old(self, version: int) -> None:
        if version < MIN_SERVER_VERSION:
            raise ConnectorError(
                f"PostgreSQL {version // 10_000} is not supported; version 14 or later is needed",
                where=self.where,
                todo="Upgrade the server, or read its changes through Debezium and Kafka.",
            )

    @contextmanager
    def translate_errors(
        self, reraise: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = ()
    ) -> Iterator[None]:
        """Turn psycopg errors into icestream errors, except for those to reraise."""
        import psycopg

        try:
            yield
        except reraise:
            raise
        except psycopg.Error as exc:
            raise to_error(exc, self.options) from None


class PgSession:
    """One connection, which raises icestream errors.

    Attributes:
        connection: of psycopg.
        version: of the server, e.g. 170005.
        lineage: which log the server writes, as last queried; None before that.
    """

    def __init__(self, server: PgServer, connection: psycopg.Connection[Any]) -> None:
        self.server = server
        self.connection = connection
        self.version = connection.info.server_version
        self.lineage: Lineage | None = None

    def rows(
        self,
        query: str | Composed,
        values: Sequence[Any] = (),
        reraise: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = (),
    ) -> list[tuple[Any, ...]]:
        """Run a query and return its rows; none for a command."""
        # A percent sign is a placeholder in a string, and literal in a composed query.
        given = values if values or isinstance(query, str) else None
        with self.server.translate_errors(reraise):
            cursor = self.connection.execute(query, given)
            return cursor.fetchall() if cursor.description is not None else []

    def row(self, query: str | Composed, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Run a query that returns one row."""
        return self.rows(query, values)[0]

    def copy_rows(
        self,
        query: Composed,
        block_bytes: int,
        reraise: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = (),
    ) -> Iterator[list[bytes]]:
        """Yield the rows of a `COPY ... TO STDOUT` in blocks of about `block_bytes`."""
        with self.server.translate_errors(reraise):
            yield from copy_out(self.connection, query, block_bytes)

    @property
    def is_broken(self) -> bool:
        """Whether the connection is closed."""
        return self.connection.closed

    def close(self) -> None:
        """Close the session. May be called more than once."""
        self.connection.close()

    def __enter__(self) -> PgSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
