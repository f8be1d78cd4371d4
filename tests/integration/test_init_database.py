"""`icestream init postgres://...`, with a server that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from tests.fixtures.command_line import Icestream
    from tests.fixtures.postgres import Postgres


def test_database_tables_are_listed_in_the_file(
    icestream: Icestream, tmp_path: Path, postgres: Postgres
) -> None:
    database = postgres.new_database()
    with psycopg.connect(postgres.dsn_of(database)) as connection:
        connection.execute(
            """
            CREATE TABLE lines (line int, order_id int, PRIMARY KEY (order_id, line));
            CREATE TABLE log (what text);
            CREATE TABLE full_log (what text);
            ALTER TABLE full_log REPLICA IDENTITY FULL;
            CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
            CREATE TABLE part_of PARTITION OF parts FOR VALUES FROM (0) TO (9);
            CREATE VIEW seen AS SELECT * FROM log;
            """
        )
    ended = icestream("init", postgres.dsn_of(database), "--output", "json")
    assert ended.code == 0, ended.err
    assert ended.document["tables"] == [
        "public.full_log",
        "public.lines",
        "public.log",
        "public.parts",
    ]
    text = (tmp_path / "icestream.yaml").read_text(encoding="utf-8")
    assert "#   public.lines     key: order_id, line\n" in text
    assert postgres.password not in text


def test_wrong_password_leaves_a_file_without_tables(
    icestream: Icestream, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POSTGRES_PASSWORD", raising=False)
    ended = icestream("init", postgres.dsn.replace(postgres.password, "wrong-one"))
    assert (ended.code, ended.err) == (
        0,
        "Could not list the tables of 'postgres': password authentication failed for user "
        f'"{postgres.user}"\n',
    )
