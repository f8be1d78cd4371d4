"""Rows that the server copies out, taken from libpq directly.

psycopg's own `Cursor.copy` asks for each row through several layers of Python, which for millions
of rows is most of the time that reading takes.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg
    from psycopg.pq.abc import PGconn
    from psycopg.sql import Composed

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
