"""Connections to PostgreSQL, whose sessions print values the same way whatever the server's own."""

from __future__ import annotations

import select
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from icestream.errors import ConnectorError
from icestream.sources.postgres_cdc.faults import to_error, where_is
from icestream.sources.postgres_cdc.timeline import verify
from icestream.sources.postgres_cdc.types import SESSION_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.pq.abc import PGconn
    from psycopg.sql import Composed

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.timeline import Anchor, Lineage


WOULD_WAIT = 0


def copied_out(
    connection: psycopg.Connection[Any], query: Composed, block_bytes: int
) -> Iterator[list[bytes]]:
    """Yield the rows that a `COPY ... TO STDOUT` sends, as many at a time as make a block.

    A connection whose rows are not taken to the end is closed.

    Raises:
        psycopg.Error: what the server says, or that it is gone.
    """
    pgconn = connection.pgconn
    begun = pgconn.exec_(query.as_bytes(connection))
    if begun.status != ExecStatus.COPY_OUT:
        raise error_from_result(begun)
    is_done = False
    try:
        yield from _blocks(pgconn, block_bytes)
        while (ended := pgconn.get_result()) is not None:
            if ended.status != ExecStatus.COMMAND_OK:
                raise error_from_result(ended)
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
        elif length == WOULD_WAIT:
            _await_more(pgconn)
        else:
            break
    if rows:
        yield rows


def _await_more(pgconn: PGconn) -> None:
    """Wait for the server, in a way that a signal can end."""
    waiting = select.poll()
    waiting.register(pgconn.socket, select.POLLIN)
    waiting.poll()
    pgconn.consume_input()


CONNECT_SECS = 10
OLDEST_SERVER = 140_000
LONGEST_NAME = 63

# The snapshot and the log must print a value alike, and nothing may end a session that waits.
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
SELECT set_config(told.name, told.value, false)
FROM unnest(%s::text[], %s::text[]) AS told (name, value)
JOIN pg_catalog.pg_settings AS known ON lower(known.name) = lower(told.name)
WHERE known.context = 'user'
"""


class Server:
    """Where connections come from; it holds none itself.

    Args:
        options: which server, and as whom.
        anchor: what the server must have, checked at each connection; None before an offset is
            known.
    """

    def __init__(self, options: PostgresCdcOptions, anchor: Anchor | None = None) -> None:
        self.options = options
        self.anchor = anchor
        self.where = where_is(options)
        self.application = f"icestream {options.slot}"[:LONGEST_NAME]

    def connect(self) -> Session:
        """Open a session.

        Raises:
            UnreachableError: nobody answers.
            RefusedError: the user or the password is refused.
            SourceChangedError: the server does not have the log of the anchor.
            ConnectorError: the server is too old, or says something else.
        """
        with self.told():
            connection = self.open_connection()
        session = Session(self, connection)
        try:
            self._refuse_too_old(session.version)
            session.rows(APPLY_SETTINGS, [list(SETTINGS), list(SETTINGS.values())])
            if self.anchor is not None:
                verify(session, self.anchor)
        except BaseException:
            connection.close()
            raise
        return session

    def open_connection(self, replication: str | None = None) -> psycopg.Connection[Any]:
        """Open a plain connection, or one for commands of the replication protocol."""
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
            # A session that waits for its tasks must not be taken for dead on the way.
            keepalives_idle=30,
            keepalives_interval=10,
            keepalives_count=6,
            replication=replication,
            autocommit=True,
            prepare_threshold=None,  # a pool between us and the server may not keep them
        )

    def _refuse_too_old(self, version: int) -> None:
        if version < OLDEST_SERVER:
            raise ConnectorError(
                f"the server is PostgreSQL {version // 10_000}, and 14 is the oldest that will do",
                where=self.where,
                todo="Upgrade the server, or read its changes through Debezium and Kafka.",
            )

    @contextmanager
    def told(
        self, passing: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = ()
    ) -> Iterator[None]:
        """Turn faults of psycopg into errors of ours, but for those that are to pass."""
        try:
            yield
        except passing:
            raise
        except psycopg.Error as exc:
            raise to_error(exc, self.options) from None


class Session:
    """One connection, whose faults are errors of ours.

    Attributes:
        connection: psycopg's own.
        version: of the server, e.g. 170005.
        lineage: which log the server writes, as last asked; None if it was not asked.
    """

    def __init__(self, server: Server, connection: psycopg.Connection[Any]) -> None:
        self.server = server
        self.connection = connection
        self.version = connection.info.server_version
        self.lineage: Lineage | None = None

    def rows(
        self,
        query: str | Composed,
        values: Sequence[Any] = (),
        passing: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = (),
    ) -> list[tuple[Any, ...]]:
        """Run a query and return its rows, or none for a command."""
        # A percent sign stands for a value in a text, and for itself in what was composed.
        given = values if values or isinstance(query, str) else None
        with self.server.told(passing):
            cursor = self.connection.execute(query, given)
            return cursor.fetchall() if cursor.description is not None else []

    def row(self, query: str | Composed, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Run a query that has one row."""
        return self.rows(query, values)[0]

    def copied(
        self,
        query: Composed,
        block_bytes: int,
        passing: type[psycopg.Error] | tuple[type[psycopg.Error], ...] = (),
    ) -> Iterator[list[bytes]]:
        """Yield the rows that a `COPY ... TO STDOUT` sends, as many at a time as make a block."""
        with self.server.told(passing):
            yield from copied_out(self.connection, query, block_bytes)

    @property
    def is_broken(self) -> bool:
        """Whether it can't be used any more."""
        return self.connection.closed

    def close(self) -> None:
        """End the session; twice is fine."""
        self.connection.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
