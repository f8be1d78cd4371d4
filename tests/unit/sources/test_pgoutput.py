from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.pgoutput_log import (
    BIGINT,
    INTEGER,
    TEXT,
    UNCHANGED,
    TableNumbers,
    begin,
    commit,
    delete,
    insert,
    relation,
    truncate,
    update,
)

from icestream.contracts.changes import (
    COLUMN_ID,
    OP,
    UNCHANGED_COLUMNS,
    ChangeSchema,
    change_schema_of,
    nulled_counts,
)
from icestream.errors import ConnectorError
from icestream.sources.postgres_cdc import pgoutput
from icestream.sources.postgres_cdc.pgoutput import ChangeFilter, ChangeParser, Visibility
from icestream.sources.postgres_cdc.tables import ROW_KEY, PgColumn
from icestream.sources.postgres_cdc.tuples import HEADER, SIGNATURE, TRAILER, Messages
from icestream.sources.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS = 16400
COLUMNS = (PgColumn("id", BIGINT, is_key=True), PgColumn("note", TEXT), PgColumn("size", INTEGER))
ORDERS_RELATION = relation(ORDERS, "orders", COLUMNS)


def parser(
    wanted: ChangeFilter | None = None, database: TableNumbers | None = None
) -> ChangeParser:
    return ChangeParser(wanted or ChangeFilter(0, 1000), TypeCatalog(), database or TableNumbers())


def blocks_of(*messages: bytes, **settings: Any) -> list[pa.RecordBatch]:
    return parser(**settings).parse(Messages.from_list([begin(100), *messages, commit()]))


def rows_of(*messages: bytes, **settings: Any) -> list[dict[str, Any]]:
    return [row for block in blocks_of(*messages, **settings) for row in block.to_pylist()]


def changed(op: str, *values: Any, unsent: Sequence[str] = ()) -> dict[str, Any]:
    names = [column.name for column in COLUMNS]
    return {**dict(zip(names, values, strict=True)), OP: op, UNCHANGED_COLUMNS: list(unsent)}


def test_block_has_typed_columns_with_stable_ids() -> None:
    (block,) = blocks_of(ORDERS_RELATION, insert(ORDERS, ["1", "a", None]))

    assert change_schema_of(block.schema) == ChangeSchema(
        ("public", "orders"), ("id",), version=100
    )
    assert block.schema.names == ["id", "note", "size", OP, UNCHANGED_COLUMNS]
    assert block.schema.types[:3] == [pa.int64(), pa.string(), pa.int32()]
    assert [field.metadata for field in block.schema][:3] == [
        {COLUMN_ID: b"16400.1"},
        {COLUMN_ID: b"16400.2"},
        {COLUMN_ID: b"16400.3"},
    ]


def test_changes_of_a_row_keep_their_order() -> None:
    found = rows_of(
        ORDERS_RELATION,
        insert(ORDERS, ["1", "a", "5"]),
        delete(ORDERS, key=["1", None, None]),
        insert(ORDERS, ["1", "b", None]),
        update(ORDERS, ["1", "", "6"]),
    )

    assert found == [
        changed("i", 1, "a", 5),
        changed("d", 1, None, None),
        changed("i", 1, "b", None),
        changed("u", 1, "", 6),
    ]


def test_changed_key_deletes_the_old_row_before_inserting_the_new_one() -> None:
    found = rows_of(
        ORDERS_RELATION,
        update(ORDERS, ["2", "a", "5"], key=["1", None, None]),
        update(ORDERS, ["3", "b", "6"], key=["3", None, None]),
    )

    assert found == [
        changed("d", 1, None, None),
        changed("u", 2, "a", 5),
        changed("u", 3, "b", 6),
    ]


def test_value_that_was_not_sent_is_marked_as_unchanged() -> None:
    found = rows_of(
        ORDERS_RELATION,
        update(ORDERS, ["1", UNCHANGED, "5"]),
        delete(ORDERS, key=["2", None, None]),
        update(ORDERS, ["3", UNCHANGED, UNCHANGED]),
        update(ORDERS, ["4", "a", "6"]),
    )

    assert found == [
        changed("u", 1, None, 5, unsent=["note"]),
        changed("d", 2, None, None),
        changed("u", 3, None, None, unsent=["note", "size"]),
        changed("u", 4, "a", 6),
    ]


def test_value_that_was_not_sent_is_taken_from_the_old_row() -> None:
    schema = relation(ORDERS, "orders", COLUMNS, "f")
    database = TableNumbers(primary_key=("id",))
    old = ["1", "large", "4"]

    found = rows_of(schema, update(ORDERS, ["1", UNCHANGED, "5"], old=old), database=database)

    assert found == [changed("u", 1, "large", 5)]


def test_value_not_sent_with_a_changed_key_is_fetched() -> None:
    database = TableNumbers()
    database.values = {("2",): ("large",)}

    found = rows_of(
        ORDERS_RELATION,
        update(ORDERS, ["2", UNCHANGED, "5"], key=["1", None, None]),
        update(ORDERS, ["4", UNCHANGED, "6"], key=["3", None, None]),
        update(ORDERS, ["5", UNCHANGED, "7"]),
        database=database,
    )

    assert database.fetches == [(("note",), [("2",), ("4",)])]
    assert found == [
        changed("d", 1, None, None),
        changed("u", 2, "large", 5),
        changed("d", 3, None, None),
        changed("u", 4, None, 6),
        changed("u", 5, None, 7, unsent=["note"]),
    ]


def test_full_identity_with_a_primary_key_deletes_by_that_key() -> None:
    full = tuple(PgColumn(column.name, column.type_oid, is_key=True) for column in COLUMNS)
    schema = relation(ORDERS, "orders", full, "f")

    (block,) = blocks_of(
        schema,
        delete(ORDERS, old=["1", "a", "5"]),
        update(ORDERS, ["2", "b", "6"], old=["2", "a", "6"]),
        database=TableNumbers(primary_key=("id",)),
    )

    assert change_schema_of(block.schema).key == ("id",)
    assert block.to_pylist() == [changed("d", 1, None, None), changed("u", 2, "b", 6)]


def test_rows_of_a_table_without_a_key_are_identified_by_all_values() -> None:
    schema = relation(ORDERS, "orders", COLUMNS, "f")

    (block,) = blocks_of(
        schema,
        insert(ORDERS, ["1", None, "5"]),
        update(ORDERS, ["1", "", "5"], old=["1", None, "5"]),
        update(ORDERS, ["1", "", "5"], old=["1", "", "5"]),
        delete(ORDERS, old=["1", "", "5"]),
    )

    assert change_schema_of(block.schema).key == (ROW_KEY,)
    assert block.column(OP).to_pylist() == ["i", "d", "u", "u", "d"]
    first, gone, *others = block.column(ROW_KEY).to_pylist()
    assert first == gone
    assert len(set(others)) == 1
    assert others[0] != first
    assert block.column("id").to_pylist() == [1, None, 1, 1, None]


def test_append_only_table_has_no_key() -> None:
    columns = [PgColumn("note", TEXT)]

    (block,) = blocks_of(relation(ORDERS, "log", columns), insert(ORDERS, ["a"]))

    assert change_schema_of(block.schema) == ChangeSchema(("public", "log"), version=100)


def test_table_without_columns_has_rows() -> None:
    (block,) = blocks_of(relation(ORDERS, "bare", [], "f"), insert(ORDERS, []), insert(ORDERS, []))

    assert block.num_rows == 2
    assert block.schema.names == [ROW_KEY, OP, UNCHANGED_COLUMNS]


def test_truncate_empties_each_table_it_names_between_the_changes() -> None:
    blocks = blocks_of(
        ORDERS_RELATION,
        relation(16401, "items", COLUMNS[:1]),
        insert(ORDERS, ["1", "a", "5"]),
        truncate(16401, ORDERS),
        insert(ORDERS, ["2", "b", "6"]),
    )

    found = [
        (change_schema_of(block.schema).table[1], block.column(OP).to_pylist()) for block in blocks
    ]
    assert found == [("orders", ["i"]), ("items", ["t"]), ("orders", ["t"]), ("orders", ["i"])]
    assert blocks[2].to_pylist() == [changed("t", None, None, None)]


def test_added_or_dropped_column_starts_a_new_block() -> None:
    blocks = blocks_of(
        ORDERS_RELATION,
        insert(ORDERS, ["1", "a", "5"]),
        ORDERS_RELATION,
        insert(ORDERS, ["2", "b", "6"]),
        relation(ORDERS, "orders", [*COLUMNS[:2], PgColumn("at", TEXT)]),
        insert(ORDERS, ["3", "c", "now"]),
    )

    assert [block.num_rows for block in blocks] == [2, 1]
    assert blocks[1].schema.names[:3] == ["id", "note", "at"]
    assert blocks[1].to_pylist()[0]["at"] == "now"


def test_tables_are_regrouped_and_rows_of_each_keep_their_order() -> None:
    items = 16401
    blocks = blocks_of(
        ORDERS_RELATION,
        relation(items, "items", COLUMNS),
        insert(items, ["1", "a", "5"]),
        insert(ORDERS, ["2", "b", "6"]),
        insert(items, ["3", "c", "7"]),
    )

    found = {
        change_schema_of(each.schema).table[1]: each.column("id").to_pylist() for each in blocks
    }
    assert found == {"orders": [2], "items": [1, 3]}


def test_only_transactions_of_the_range_are_read() -> None:
    messages = [
        *(begin(9), ORDERS_RELATION, insert(ORDERS, ["1", None, None]), truncate(ORDERS), commit()),
        *(begin(10), insert(ORDERS, ["2", None, None]), commit()),
        *(begin(19), insert(ORDERS, ["3", None, None]), commit()),
        *(begin(20), insert(ORDERS, ["4", None, None]), commit()),
    ]

    (block,) = parser(ChangeFilter(10, 20)).parse(Messages.from_list(messages))

    assert block.column("id").to_pylist() == [2, 3]


def test_transaction_continues_in_the_next_messages() -> None:
    reading = parser(ChangeFilter(10, 20))

    assert reading.parse(Messages.from_list([begin(10), ORDERS_RELATION])) == []
    (block,) = reading.parse(Messages.from_list([insert(ORDERS, ["1", None, None])]))
    assert reading.parse(Messages.from_list([commit(), begin(20)])) == []
    assert reading.parse(Messages.from_list([insert(ORDERS, ["2", None, None])])) == []

    assert block.column("id").to_pylist() == [1]
    assert reading.rows == 1


def test_changes_visible_in_a_snapshot_are_skipped() -> None:
    seen = {("public", "orders"): Visibility.parse("5:9:7")}
    schema = relation(16401, "items", COLUMNS)
    messages = [begin(1, 0), ORDERS_RELATION, schema]
    for xid in (5, 7, 8, 9):
        row = [str(xid), None, None]
        messages += [begin(1, xid), truncate(ORDERS), insert(ORDERS, row), insert(16401, row)]

    blocks = parser(ChangeFilter(0, 10, snapshots=seen)).parse(Messages.from_list(messages))

    found: dict[str, list[Any]] = {"orders": [], "items": []}
    for block in blocks:
        ops = zip(block.column(OP).to_pylist(), block.column("id").to_pylist(), strict=True)
        found[change_schema_of(block.schema).table[1]] += ops
    assert found["orders"] == [("t", None), ("i", 7), ("t", None), ("i", 9)]
    assert found["items"] == [("i", 5), ("i", 7), ("i", 8), ("i", 9)]


def test_table_that_is_not_captured_is_not_looked_up() -> None:
    database = TableNumbers()
    wanted = ChangeFilter(0, 1000, has_table=lambda table: table == ("public", "items"))

    assert (
        blocks_of(
            ORDERS_RELATION, insert(ORDERS, ["1", "a", "5"]), wanted=wanted, database=database
        )
        == []
    )
    assert database.described == []


def test_unrepresentable_values_are_counted_by_column() -> None:
    reading = parser()
    columns = [PgColumn("id", BIGINT, is_key=True), PgColumn("day", 1082)]
    schema = relation(ORDERS, "days", columns)

    rows = [insert(ORDERS, ["1", "infinity"]), insert(ORDERS, ["2", "2024-02-29"])]
    (block,) = reading.parse(Messages.from_list([begin(1), schema, *rows, *rows]))

    assert nulled_counts(block.schema) == {"day": 2}


def test_invalid_utf8_is_marked() -> None:
    assert rows_of(ORDERS_RELATION, insert(ORDERS, ["1", b"caf\xe9", "5"])) == [
        changed("i", 1, "caf�", 5)
    ]


def test_buffer_above_the_limit_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgoutput, "MAX_BYTES", 200)
    inserts = [insert(ORDERS, [str(number), "some text", "5"]) for number in range(20)]

    found = rows_of(ORDERS_RELATION, *inserts)

    assert found == [changed("i", number, "some text", 5) for number in range(20)]


def test_rows_of_a_binary_copy_are_read_with_header_and_trailer() -> None:
    messages = [begin(100), ORDERS_RELATION, insert(ORDERS, ["1", "a", "5"])]
    rows = [struct.pack(">hiqiIi", 3, 8, 99, 4, 7, len(each)) + each for each in messages]
    header = SIGNATURE + bytes(HEADER - len(SIGNATURE))

    with_both = Messages.from_copy([header + rows[0], *rows[1:], TRAILER])

    assert parser().parse(with_both)[0].to_pylist() == [changed("i", 1, "a", 5)]
    assert len(Messages.from_copy([header + TRAILER])) == 0
    assert len(Messages.from_copy([header, TRAILER])) == 0
    assert len(Messages.from_copy([])) == 0


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([insert(1, [])], "the log has a change outside of a transaction"),
        (
            [begin(1), insert(1, [])],
            "the log has a change to relation 1 before its Relation message",
        ),
        ([b"S"], "the log has a message of unknown kind 'S'"),
        (
            [begin(1), ORDERS_RELATION, insert(ORDERS, ["1"])],
            "a row in the log has 1 columns, and its table has 3",
        ),
    ],
)
def test_malformed_log_is_an_error(messages: list[bytes], problem: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        parser().parse(Messages.from_list(messages))

    assert str(caught.value) == problem
