"""Rows that a real PostgreSQL copies out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from icestream.sources.postgres_cdc.server import copy_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import Postgres

MANY = sql.SQL("COPY (SELECT n, repeat('x', 100) FROM generate_series(1, {}) n) TO STDOUT")


@pytest.fixture
def session(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        yield connection


def test_rows_arrive_in_blocks_and_the_session_stays_usable(
    session: psycopg.Connection[Any],
) -> None:
    blocks = list(copy_out(session, MANY.format(25_000), 1 << 20))
    assert len(blocks) == 3
    rows = [row for block in blocks for row in block]
    assert [int(row.split(b"\t")[0]) for row in rows] == list(range(1, 25_001))
    assert list(copy_out(session, MANY.format(0), 1 << 20)) == []
    assert session.execute("SELECT 1").fetchone() == (1,)


def test_immediate_server_error_has_its_class(session: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match='"nothing" does not exist'):
        list(copy_out(session, sql.SQL("COPY nothing TO STDOUT").format(), 1 << 20))
    assert session.execute("SELECT 1").fetchone() == (1,)


def test_server_error_during_the_copy_has_its_class(session: psycopg.Connection[Any]) -> None:
    copy = sql.SQL("COPY (SELECT 1 / (50000 - n) FROM generate_series(1, 60000) n) TO STDOUT")
    with pytest.raises(psycopg.errors.DivisionByZero):
        list(copy_out(session, copy.format(), 1 << 20))


def test_session_ended_by_the_server_during_the_copy_is_an_error(
    session: psycopg.Connection[Any], postgres: Postgres
) -> None:
    blocks = copy_out(session, MANY.format(5_000_000), 1 << 16)
    next(blocks)
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        list(blocks)
    assert session.closed


def test_session_with_unread_rows_is_closed(session: psycopg.Connection[Any]) -> None:
    blocks = copy_out(session, MANY.format(5_000_000), 1 << 16)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert session.closed
