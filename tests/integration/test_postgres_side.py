"""PostgreSQL as the other side of a comparison: one view, its parts, and what changed since."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from icestream.sources.postgres_cdc import PostgresCdcSource
from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.verify import postgres_side
from icestream.verify.checksums import (
    ComparisonSpec,
    SideChecksums,
    compute_checksums,
    differing_chunks,
)
from icestream.verify.postgres_side import PostgresSide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import Postgres

    from icestream.contracts.offset import Offset
    from icestream.verify.side import Point

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, what text);
CREATE TABLE bare (what text);
CREATE TABLE whole (what text, who int);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE split (id int PRIMARY KEY, what text) PARTITION BY RANGE (id);
CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (100);
CREATE TABLE split_2 PARTITION OF split FOR VALUES FROM (100) TO (200);
CREATE TABLE alike (id int PRIMARY KEY, numbers int[], texts text[], number float8);
INSERT INTO alike VALUES (1, '{}', '{"a,b"}', '0'), (2, NULL, '{NULL}', '-0'),
                         (3, '{NULL}', '{}', 'NaN'), (4, '{1,2}', NULL, NULL);
INSERT INTO keyed SELECT n, repeat('x', 500) FROM generate_series(1, 2000) AS n;
INSERT INTO whole VALUES ('same', 1), ('same', 1), ('other', 2);
INSERT INTO split SELECT n, 'part' FROM generate_series(50, 149) AS n;
"""
KEYED, BARE, WHOLE, SPLIT, ALIKE = (
    ("public", name) for name in ("keyed", "bare", "whole", "split", "alike")
)


class Database:
    """A database that is followed, and its side."""

    def __init__(self, server: Postgres) -> None:
        self.dsn = server.dsn_of(database := server.new_database())
        self.sql(TABLES)
        self.options = PostgresCdcOptions.model_validate(
            {
                "host": server.host,
                "port": server.port,
                "database": database,
                "user": server.user,
                "password": server.password,
            }
        )
        source = PostgresCdcSource(self.options)
        self.begin: Offset = source.initial()
        source.close()
        self.side = PostgresSide(self.options)

    def sql(self, *commands: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursors = [connection.execute(command.encode()) for command in commands]
            return [cursor.fetchall() if cursor.description else None for cursor in cursors]

    def point(self) -> Point:
        names = self.side.tables()
        return self.side.point({name: {**self.begin, "pending": []} for name in names})

    def rows(self, point: Point, name: tuple[str, str], parts: int = 4) -> list[dict[str, Any]]:
        table = point.tables[name]
        reader = pickle.loads(pickle.dumps(self.side.reader(table)))  # noqa: S301 - ours
        found: list[dict[str, Any]] = []
        for part in self.side.parts(table, parts):
            for batch in reader.read(pickle.loads(pickle.dumps(part))):  # noqa: S301 - ours
                found += batch.to_pylist()
        return found


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    database = Database(postgres)
    yield database
    database.side.close()
    database.sql(f"SELECT pg_drop_replication_slot('{database.options.slot}')")


def test_tables_are_listed_with_their_keys(database: Database) -> None:
    point = database.point()
    assert {name: table.key for name, table in point.tables.items()} == {
        KEYED: ("id",),
        BARE: (),
        WHOLE: ("_row_key",),
        SPLIT: ("id",),
        ALIKE: ("id",),
    }
    assert point.tables[WHOLE].own == ("_row_key",)
    assert {changes.rows for changes in point.changes.values()} == {0}


def test_chunks_return_each_row_once_unchanged(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_side, "MIN_PAGES_PER_PART", 10)
    point = database.point()
    database.sql("DELETE FROM keyed WHERE id < 1000", "INSERT INTO keyed VALUES (3000, 'new')")
    assert len(database.side.parts(point.tables[KEYED], 4)) == 4
    assert sorted(row["id"] for row in database.rows(point, KEYED)) == list(range(1, 2001))
    assert sorted(row["id"] for row in database.rows(point, SPLIT)) == list(range(50, 150))
    assert len(database.rows(point, BARE)) == 0


def test_identical_rows_are_returned_once(database: Database) -> None:
    found = database.rows(database.point(), WHOLE)
    assert sorted((row["what"], row["who"]) for row in found) == [("other", 2), ("same", 1)]


def test_wal_identifies_the_changed_rows(database: Database) -> None:
    database.sql(
        "UPDATE keyed SET what = 'new' WHERE id IN (1, 2)",
        "UPDATE keyed SET what = 'newer' WHERE id = 2",
        "DELETE FROM keyed WHERE id = 3",
        "UPDATE keyed SET id = 5000 WHERE id = 4",
        "INSERT INTO bare VALUES ('one'), ('two')",
        "UPDATE whole SET who = 3 WHERE who = 2",
        "TRUNCATE split",
        "INSERT INTO split VALUES (7, 'after')",
    )
    changes = database.point().changes
    keys = changes[KEYED].keys
    assert keys is not None
    assert sorted(keys.column("id").to_pylist()) == [1, 2, 3, 4, 5000]
    assert (changes[BARE].keys, changes[BARE].rows) == (None, 2)
    whole_rows = changes[WHOLE].keys
    assert whole_rows is not None
    assert whole_rows.num_rows == 2
    assert [name for name, each in changes.items() if each.is_truncated] == [SPLIT]


def test_unflushed_change_is_reported(database: Database) -> None:
    database.sql("SET synchronous_commit = off", "UPDATE keyed SET what = 'late' WHERE id = 9")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("UPDATE keyed SET what = 'later' WHERE id = 10")
        keys = database.point().changes[KEYED].keys
    assert keys is not None
    assert sorted(keys.column("id").to_pylist()) == [9, 10]


def test_slot_is_unchanged_and_its_copy_is_dropped(database: Database) -> None:
    slots = (
        "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots "
        "WHERE database = current_database()"
    )
    before = database.sql(slots)
    database.sql("UPDATE keyed SET what = 'new' WHERE id = 1")
    database.point()
    assert database.sql(slots) == before


def test_active_slot_can_be_inspected(database: Database) -> None:
    database.sql("UPDATE keyed SET what = repeat('y', 1000)")
    copy = (
        f"COPY (SELECT data FROM pg_logical_slot_peek_binary_changes('{database.options.slot}', "  # noqa: S608
        f"NULL, NULL, 'proto_version', '1', 'publication_names', "
        f"'{database.options.publication_name}'), generate_series(1, 20)) TO STDOUT"
    )
    with (
        psycopg.connect(database.dsn, autocommit=True) as connection,
        connection.cursor() as cursor,
        cursor.copy(copy.encode()) as reading,
    ):
        reading.read()
        keys = database.point().changes[KEYED].keys
        for _ in reading:
            pass
    assert keys is not None
    assert keys.num_rows == 2000


def test_queued_table_is_incomplete(database: Database) -> None:
    database.side.tables()
    assert not database.side.is_fully_loaded(KEYED, database.begin)
    assert database.side.is_fully_loaded(KEYED, {**database.begin, "pending": ["public.bare"]})


def test_checksums_distinguish_arrays_and_zeros(database: Database) -> None:
    point = database.point()
    table = point.tables[ALIKE]
    (part,) = database.side.parts(table, 1)
    terms = ComparisonSpec(table.columns, table.key, 1)
    source = compute_checksums(database.side.reader(table).read(part), terms)
    mirrored: list[dict[str, Any]] = [
        {"id": 1, "numbers": [], "texts": ["a,b"], "number": 0.0},
        {"id": 2, "numbers": None, "texts": [None], "number": -0.0},
        {"id": 3, "numbers": [None], "texts": [], "number": math.nan},
        {"id": 4, "numbers": [1, 2], "texts": None, "number": None},
    ]

    def lake(rows: list[dict[str, Any]]) -> SideChecksums:
        return compute_checksums([pa.RecordBatch.from_pylist(rows, schema=table.columns)], terms)

    assert lake(mirrored) == source
    changes: list[tuple[int, str, Any]] = [
        (1, "numbers", None),
        (1, "numbers", [None]),
        (1, "texts", ["a", "b"]),
        (1, "number", -0.0),
        (2, "numbers", []),
        (2, "texts", ["NULL"]),
        (2, "texts", []),
        (2, "number", 0.0),
        (3, "number", None),
        (4, "texts", []),
    ]
    for number, column, value in changes:
        changed = [{**row, column: value} if row["id"] == number else row for row in mirrored]
        assert differing_chunks(source, lake(changed)) == [0], (number, column, value)
