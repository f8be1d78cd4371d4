"""The log that a real PostgreSQL writes, parsed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from icestream.contracts.changes import OP, UNCHANGED_COLUMNS, change_schema_of
from icestream.sources.postgres_cdc.pgoutput import ChangeFilter, ChangeParser, Visibility
from icestream.sources.postgres_cdc.tables import ROW_KEY, Relation, replica_key
from icestream.sources.postgres_cdc.tuples import Messages
from icestream.sources.postgres_cdc.types import SESSION_SETTINGS, TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from tests.fixtures.postgres import Postgres

PEEK = """
COPY (
    SELECT lsn, xid, data FROM pg_logical_slot_peek_binary_changes(
        'a_slot', NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')
) TO STDOUT (FORMAT binary)
"""
INSERT_LARGE = """
INSERT INTO orders SELECT 1, string_agg(md5(g::text), '') FROM generate_series(1, 300) g
"""


class Catalog:
    """Knows primary keys, and the values of rows by their one-column keys."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self.session = session
        self.fetched: list[tuple[str, ...]] = []

    def describe(self, relation: Relation) -> Relation:
        primary_key = tuple(
            row[0]
            for row in self.session.execute(
                "SELECT attname FROM pg_index JOIN pg_attribute"
                " ON attrelid = indrelid AND attnum = ANY(indkey)"
                " WHERE indisprimary AND indrelid = %s",
                (relation.id,),
            )
        )
        numbers = dict(
            self.session.execute(
                "SELECT attname, attnum FROM pg_attribute WHERE attrelid = %s", (relation.id,)
            ).fetchall()
        )
        columns = tuple(
            replace(column, number=numbers.get(column.name)) for column in relation.columns
        )
        return replace(
            relation, columns=columns, key=replica_key(relation.identity, columns, primary_key)
        )

    def current_values(
        self, relation: Relation, columns: Sequence[str], keys: Sequence[tuple[str, ...]]
    ) -> Sequence[tuple[str | None, ...] | None]:
        self.fetched += keys
        return [
            self.session.execute("SELECT note FROM orders WHERE id = %s::int8", key).fetchone()
            for key in keys
        ]


class Log:
    """A database with a slot."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self.session = session
        self.catalog = Catalog(session)

    def does(self, *statements: str) -> None:
        with self.session.transaction():
            for statement in statements:
                self.session.execute(statement)

    def blocks(self, wanted: ChangeFilter | None = None) -> list[pa.RecordBatch]:
        with self.session.cursor() as cursor, cursor.copy(PEEK) as copy:
            rows = [bytes(row) for row in copy]
        parser = ChangeParser(wanted or ChangeFilter(0, 1 << 62), TypeCatalog(), self.catalog)
        # Two at a time: a message never needs its neighbours.
        return [
            block
            for place in range(0, len(rows), 2)
            for block in parser.parse(Messages.from_copy(rows[place : place + 2]))
        ]

    def rows(self, wanted: ChangeFilter | None = None) -> list[dict[str, Any]]:
        return [row for block in self.blocks(wanted) for row in block.to_pylist()]


@pytest.fixture
def log(postgres: Postgres) -> Iterator[Log]:
    dsn = postgres.dsn_of(postgres.new_database())
    with psycopg.connect(dsn, autocommit=True) as session:
        for name, value in SESSION_SETTINGS.items():
            session.execute("SELECT set_config(%s, %s, false)", (name, value))
        session.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text, at timestamptz)")
        session.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
        session.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        session.execute("SELECT pg_create_logical_replication_slot('a_slot', 'pgoutput')")
        yield Log(session)
        session.execute("SELECT pg_drop_replication_slot('a_slot')")


def changed(op: str, number: int | None, note: str | None, **more: Any) -> dict[str, Any]:
    return {"id": number, "note": note, "at": None, OP: op, UNCHANGED_COLUMNS: [], **more}


def test_every_kind_of_change_is_read(log: Log) -> None:
    log.does("INSERT INTO orders VALUES (1, 'a'), (2, '')", "UPDATE orders SET note = NULL")
    log.does("UPDATE orders SET id = 3 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    log.does("TRUNCATE orders")

    assert log.rows() == [
        changed("i", 1, "a"),
        changed("i", 2, ""),
        changed("u", 1, None),
        changed("u", 2, None),
        changed("d", 1, None),
        changed("u", 3, None),
        changed("d", 2, None),
        changed("t", None, None),
    ]


def test_large_value_is_sent_once_and_fetched_for_a_new_key(log: Log) -> None:
    log.does(INSERT_LARGE)
    log.does("UPDATE orders SET at = NULL")
    log.does("UPDATE orders SET id = 2")

    first, second, gone, moved = log.rows()

    assert len(first["note"]) == 9600
    assert second == changed("u", 1, None, **{UNCHANGED_COLUMNS: ["note"]})
    assert gone == changed("d", 1, None)
    assert moved == {**first, "id": 2, OP: "u"}
    assert log.catalog.fetched == [("2",)]


def test_full_replica_identity_includes_large_values_of_old_rows(log: Log) -> None:
    log.does("ALTER TABLE orders REPLICA IDENTITY FULL")
    log.does(INSERT_LARGE)
    log.does("UPDATE orders SET id = 2", "DELETE FROM orders")

    first, gone, moved, deleted = log.rows()

    assert (gone, deleted) == (changed("d", 1, None), changed("d", 2, None))
    assert moved == {**first, "id": 2, OP: "u"}
    assert log.catalog.fetched == []


def test_table_without_a_key_is_keyed_by_its_values(log: Log) -> None:
    log.does("CREATE TABLE loose (a integer, b text)", "ALTER TABLE loose REPLICA IDENTITY FULL")
    log.does("INSERT INTO loose VALUES (1, NULL)", "UPDATE loose SET b = ''", "DELETE FROM loose")

    rows = log.rows()

    assert [row[OP] for row in rows] == ["i", "d", "u", "d"]
    keys = [row[ROW_KEY] for row in rows]
    assert (keys[0], keys[2]) == (keys[1], keys[3])
    assert keys[0] != keys[2]


def test_columns_match_the_schema_at_the_time_of_the_change(log: Log) -> None:
    log.does("INSERT INTO orders VALUES (1, 'a')")
    log.does("ALTER TABLE orders DROP note", "ALTER TABLE orders ADD size numeric(6,2)")
    log.does("INSERT INTO orders VALUES (2, NULL, 1.5)")

    blocks = log.blocks()

    assert [block.schema.names[:3] for block in blocks] == [
        ["id", "note", "at"],
        ["id", "at", "size"],
    ]
    assert [change_schema_of(block.schema).key for block in blocks] == [("id",)] * 2
    assert str(blocks[1].column("size").to_pylist()) == "[Decimal('1.50')]"


def test_transactions_visible_in_a_snapshot_are_skipped(log: Log) -> None:
    log.does("INSERT INTO orders VALUES (1, 'a')")
    row = log.session.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    log.does("INSERT INTO orders VALUES (2, 'b')")

    seen = {("public", "orders"): Visibility.parse(row[0])}

    assert log.rows(ChangeFilter(0, 1 << 62, snapshots=seen)) == [changed("i", 2, "b")]
