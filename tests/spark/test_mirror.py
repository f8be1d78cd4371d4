"""Tables that mirror those of a source: snapshots, changes, truncates, columns that change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.scripted_orders import ORDERS, mirror, of_orders, order, rows, snapshot

from icestream.contracts.changes import TOMBSTONE, with_nulled_counts
from icestream.errors import SchemaMismatchError
from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake


def test_snapshot_and_changes_reproduce_the_source_table(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"), order(3, "c"))],
        [of_orders(order(2, "bb", op="u"), order(3, op="d"), order(4, "d"))],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [order(1, "a"), order(2, "bb"), order(4, "d")]


def test_each_table_has_its_own_columns_and_key(lake: Lake) -> None:
    tags = {"name": pa.string(), "id": pa.float64()}
    source = ScriptedChanges(
        [
            of_orders(order(1, "a")),
            change_block("shop.tags", tags, [{"name": "x", "id": 0.5}], key=("name",)),
            of_orders(order(1, "b", op="u")),
            change_block("shop.tags", tags, [{"name": "x", "id": 1.5, "op": "u"}], key=("name",)),
        ]
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [order(1, "b")]
    assert rows(lake, "shop.tags") == [{"name": "x", "id": 1.5}]


def test_value_that_was_not_sent_is_kept(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "large"))],
        [of_orders({"id": 1, "op": "u", "unsent": ["note"]})],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [order(1, "large")]


def test_snapshot_replaces_what_the_table_held(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(order(1, "old"), order(2, "old"))])
    lake.run(mirror(lake, source))
    source.script = [
        [snapshot(order(2, "new"))],
        [snapshot(order(3, "new"), first=False)],
    ]

    lake.run(mirror(lake, source), recovery="start-over")

    assert rows(lake) == [order(2, "new"), order(3, "new")]


def test_table_that_is_empty_in_the_source_becomes_empty(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(order(1, "old"))])
    lake.run(mirror(lake, source))
    source.script = [[snapshot()]]

    lake.run(mirror(lake, source), recovery="start-over")

    assert rows(lake) == []


def test_truncate_deletes_every_earlier_row(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1), order(2))],
        [of_orders(order(3), order(4)), of_orders({"op": "t"}, order(5, "after"))],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [order(5, "after")]


def test_truncate_alone_leaves_an_empty_table(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(order(1))], [of_orders({"op": "t"})])

    lake.run(mirror(lake, source))

    assert rows(lake) == []


def test_renamed_column_keeps_its_values(lake: Lake) -> None:
    before = change_block("shop.orders", ORDERS, [order(1, "a")], ids=(1, 2), version=1)
    renamed = {"id": pa.int64(), "remark": pa.string()}
    after = change_block("shop.orders", renamed, [{"id": 2, "remark": "b"}], ids=(1, 2), version=2)
    old = change_block("shop.orders", ORDERS, [order(3, "c")], ids=(1, 2), version=1)

    lake.run(mirror(lake, ScriptedChanges([before], [old, after])))

    assert rows(lake) == [
        {"id": 1, "remark": "a"},
        {"id": 2, "remark": "b"},
        {"id": 3, "remark": "c"},
    ]


def test_columns_are_added_dropped_and_widened(lake: Lake) -> None:
    first = {"id": pa.int32(), "note": pa.string()}
    later = {"id": pa.int64(), "amount": pa.float64()}
    source = ScriptedChanges(
        [change_block("shop.orders", first, [order(1, "a")], ids=(1, 2), version=1)],
        [
            change_block(
                "shop.orders", later, [{"id": 1 << 40, "amount": 0.5}], ids=(1, 3), version=2
            )
        ],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [{"id": 1, "amount": None}, {"id": 1 << 40, "amount": 0.5}]


def test_only_new_columns_are_followed_if_configured(lake: Lake) -> None:
    later = {"id": pa.int64(), "amount": pa.float64()}
    source = ScriptedChanges(
        [of_orders(order(1, "a"))],
        [change_block("shop.orders", later, [{"id": 2, "amount": 0.5}])],
    )

    lake.run(mirror(lake, source, schema_evolution="add_columns"))

    assert rows(lake) == [
        {"id": 1, "note": "a", "amount": None},
        {"id": 2, "note": None, "amount": 0.5},
    ]


def test_columns_of_incomplete_schemas_are_merged(lake: Lake) -> None:
    source = ScriptedChanges(
        [of_orders(order(1, "a"), is_whole=False)],
        [
            change_block("shop.orders", {"id": pa.int64()}, [{"id": 2}], is_whole=False),
            change_block(
                "shop.orders",
                {"id": pa.int64(), "b": pa.int64()},
                [{"id": 3, "b": 1}],
                is_whole=False,
            ),
        ],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [
        {"id": 1, "note": "a", "b": None},
        {"id": 2, "note": None, "b": None},
        {"id": 3, "note": None, "b": 1},
    ]


def test_table_without_a_key_is_appended_to(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1, "a"), order(1, "a"), key=())])

    lake.run(mirror(lake, source))

    assert rows(lake) == [order(1, "a"), order(1, "a")]


def test_table_without_a_key_is_refused_under_upsert(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1), key=())])

    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(mirror(lake, source, commit_mode="upsert"))

    assert str(caught.value) == (
        f"table {lake.name}.shop.orders: commit_mode 'upsert' needs a key, and table 'shop.orders' "
        "of the source has none\n  Give it a primary key, or `ALTER TABLE shop.orders REPLICA "
        "IDENTITY FULL`, or name the columns that identify a row in `key_fields`. Without "
        "`commit_mode`, tables without a key are appended to."
    )


def test_table_can_be_named_in_the_file(lake: Lake) -> None:
    lake.run(mirror(lake, ScriptedChanges([of_orders(order(1))]), namespace=("db",), table="t"))

    assert rows(lake, "db.t") == [order(1)]


def test_two_tables_of_one_name_are_refused(lake: Lake) -> None:
    source = ScriptedChanges(
        [of_orders(order(1)), change_block("old.orders", ORDERS, [order(2)])],
    )

    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(mirror(lake, source, namespace=("db",)))

    assert str(caught.value) == (
        "sink 'lake': two tables of the source would fill 'db.orders': 'shop.orders' and "
        "'old.orders'\n"
        "  Leave `namespace` and `table` out, so that each has its own names, or read only one of "
        "them. The catalog may ignore case: rename one of them at the source."
    )


def test_commit_is_acknowledged_to_the_source(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1), order(2))], [of_orders(order(3))])

    lake.run(mirror(lake, source))

    assert source.committed_offsets == [({"batch": 0}, 0), ({"batch": 1}, 2), ({"batch": 2}, 1)]


def test_older_schema_that_arrives_later_drops_no_column(lake: Lake) -> None:
    newer = {"id": pa.int64(), "note": pa.string(), "amount": pa.float64()}
    seen = change_block(
        "shop.orders", newer, [{"id": 1, "note": "a", "amount": 0.5}], is_snapshot=True, version=9
    )
    old = change_block("shop.orders", ORDERS, [order(2, "b")], version=5)

    lake.run(mirror(lake, ScriptedChanges([seen], [old])))

    assert rows(lake) == [
        {"id": 1, "note": "a", "amount": 0.5},
        {"id": 2, "note": "b", "amount": None},
    ]


def test_values_that_became_null_are_reported(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    block = with_nulled_counts(of_orders(order(1), order(2)), {"note": 2})

    lake.run(mirror(lake, ScriptedChanges([block])))

    assert (
        f"table {lake.name}.shop.orders: 2 values of column 'note' do not fit its type and "
        "became null"
    ) in caplog.messages


def test_known_tables_are_not_prepared_again(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1))], [of_orders(order(2))])
    plan = mirror(lake, source)
    prepared = []

    class Counting(type(plan.sink)):  # type: ignore[misc]
        def prepare_tables(self, schemas: Any) -> None:
            prepared.append(len(schemas))
            super().prepare_tables(schemas)

    plan.sink.__class__ = Counting
    lake.run(plan)

    assert prepared == [0, 1, 0]  # only the first batch is read twice


def test_column_with_the_name_of_a_dropped_one_is_a_new_column(lake: Lake) -> None:
    numbers = {"id": pa.int64(), "note": pa.int32()}
    source = ScriptedChanges(
        [change_block("shop.orders", ORDERS, [order(1, "a")], ids=(1, 2), version=1)],
        [change_block("shop.orders", numbers, [{"id": 2, "note": 7}], ids=(1, 3), version=2)],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [{"id": 1, "note": None}, {"id": 2, "note": 7}]


def test_columns_that_swap_names_keep_their_values(lake: Lake) -> None:
    two = {"id": pa.int64(), "a": pa.string(), "b": pa.string()}
    source = ScriptedChanges(
        [
            change_block(
                "shop.orders", two, [{"id": 1, "a": "A", "b": "B"}], ids=(1, 2, 3), version=1
            )
        ],
        [
            change_block(
                "shop.orders",
                {"id": pa.int64(), "b": pa.string(), "a": pa.string()},
                [{"id": 2, "b": "A", "a": "B"}],
                ids=(1, 2, 3),
                version=2,
            )
        ],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [{"id": 1, "a": "B", "b": "A"}, {"id": 2, "a": "B", "b": "A"}]


def test_renamed_key_is_still_the_key(lake: Lake) -> None:
    renamed = {"order_id": pa.int64(), "note": pa.string()}
    source = ScriptedChanges(
        [
            change_block(
                "shop.orders", ORDERS, [order(1, "a"), order(2, "b")], ids=(1, 2), version=1
            )
        ],
        [
            change_block("shop.orders", ORDERS, [order(1, "c", op="u")], ids=(1, 2), version=1),
            change_block(
                "shop.orders",
                renamed,
                [{"order_id": 2, "op": "d"}],
                key=("order_id",),
                ids=(1, 2),
                version=2,
            ),
        ],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [{"order_id": 1, "note": "c"}]


def test_key_fields_other_than_the_source_key_are_refused(lake: Lake) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(mirror(lake, ScriptedChanges([of_orders(order(1))]), key_fields=("note",)))

    assert str(caught.value) == (
        f"table {lake.name}.shop.orders: `key_fields` are note, and the key of table 'shop.orders' "
        "of the source is id, the only columns in its deletes\n  Remove `key_fields`."
    )


def test_recreated_table_matches_columns_by_name(lake: Lake) -> None:
    before = {"id": pa.int64(), "a": pa.string(), "b": pa.int32()}
    after = {"id": pa.int64(), "b": pa.int32(), "a": pa.string()}
    row = {"id": 1, "a": "A", "b": 2}
    first: dict[str, Any] = {"is_snapshot": True, "is_first": True}
    source = ScriptedChanges(
        [change_block("shop.orders", before, [row], ids=(11, 12, 13), version=1, **first)],
        [
            change_block(
                "shop.orders", after, [{**row, "id": 7}], ids=(21, 22, 23), version=2, **first
            )
        ],
    )

    lake.run(mirror(lake, source))

    assert rows(lake) == [{"id": 7, "a": "A", "b": 2}]


def tombstones(table: str, *ids: int) -> pa.RecordBatch:
    """Return a block of tombstones, which have nothing but a key."""
    gone = [{"id": each, "op": TOMBSTONE} for each in ids]
    return change_block(table, {"id": pa.int64()}, gone, is_whole=False, is_tombstones=True)


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_tombstone_writes_no_row_and_creates_no_table(lake: Lake, mode: str) -> None:
    options = {} if mode == "upsert" else {"commit_mode": "append"}
    source = ScriptedChanges(
        [of_orders(order(1, "a"), order(2, "b"), order(2, op="d"), is_whole=False)],
        [tombstones("shop.orders", 2), tombstones("shop.stray", 2)],
        [tombstones("shop.stray", 3)],
        [of_orders(order(3, "c"), is_whole=False)],
    )

    lake.run(mirror(lake, source, **options))

    found = sorted(row["id"] for row in rows(lake))
    assert found == ([1, 3] if mode == "upsert" else [1, 2, 2, 3])
    assert lake.catalog.client().list_tables("shop") == [("shop", "orders")]


@pytest.mark.parametrize("options", [{"table": "orders"}, {}], ids=["one table", "one namespace"])
def test_tombstones_of_a_renamed_topic_do_not_claim_the_table_of_its_changes(
    lake: Lake, options: dict[str, str]
) -> None:
    source = ScriptedChanges(
        [of_orders(order(1, "a"), order(2, "b"), is_whole=False)],
        [tombstones("routed.orders", 1)],
        [of_orders(order(2, op="d"), is_whole=False), tombstones("routed.orders", 2)],
    )
    plan = mirror(lake, source, namespace=("lake",), **options)
    lake.run(plan)
    assert rows(lake, "lake.orders") == [{"id": 1, "note": "a"}]

    # The table remembers which of the source it mirrors, for a process that meets these first.
    source.script.append([tombstones("routed.orders", 1)])
    source.script.append([of_orders(order(3, "c"), is_whole=False)])
    lake.run(mirror(lake, source, namespace=("lake",), **options))
    assert [one["id"] for one in rows(lake, "lake.orders")] == [1, 3]
    assert lake.catalog.client().list_tables("lake") == [("lake", "orders")]


def test_tombstones_whose_topic_has_the_name_of_a_foreign_table_are_skipped(lake: Lake) -> None:
    lake.sql(f"CREATE NAMESPACE {lake.name}.hr")
    lake.sql(f"CREATE TABLE {lake.name}.hr.payroll (id bigint) USING iceberg")
    lake.run(mirror(lake, ScriptedChanges([snapshot(order(1))], [tombstones("hr.payroll", 1)])))

    assert [one["id"] for one in rows(lake)] == [1]
