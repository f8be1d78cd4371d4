"""Transforms on a change source: rows that leave and enter a filter, masks, renames, keys."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, time, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.scripted_orders import (
    ORDERS,
    TableRules,
    mirror,
    of_orders,
    order,
    rows,
    snapshot,
    steps,
)

from icestream.errors import SchemaMismatchError
from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.contracts.source import Source
    from icestream.plan.plan import PipelinePlan

SHORT = ("filter", "length(note) < 3")


def transformed(
    lake: Lake, source: Source[Any], *given: tuple[str, Any], **options: Any
) -> PipelinePlan:
    return replace(mirror(lake, source, **options), transforms=steps(*given))


def test_filter_leaves_rows_of_a_snapshot_out(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(order(1, "a"), order(2, "long"), order(3, None))])

    lake.run(transformed(lake, source, SHORT))

    assert rows(lake) == [order(1, "a")]


def test_row_that_leaves_the_filter_is_deleted(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"))],
        [of_orders(order(1, "long", op="u"), order(2, "bb", op="u"))],
    )

    lake.run(transformed(lake, source, SHORT))

    assert rows(lake) == [order(2, "bb")]


def test_row_that_enters_the_filter_is_inserted(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "long"))],
        [of_orders(order(1, "b", op="u"), order(2, "long"))],
        [of_orders(order(2, "c", op="u"))],
    )

    lake.run(transformed(lake, source, SHORT))

    assert rows(lake) == [order(1, "b"), order(2, "c")]


def test_last_change_of_a_key_decides_whether_its_row_is_in_the_filter(lake: Lake) -> None:
    source = ScriptedChanges(
        [
            of_orders(order(1, "a"), order(1, "long", op="u"), order(1, "b", op="u")),
            of_orders(order(2, "a"), order(2, "b", op="u"), order(2, "long", op="u")),
            of_orders(order(3, "a"), order(3, op="d"), order(3, "c")),
            of_orders(order(4, "long"), order(4, op="d")),
        ]
    )

    lake.run(transformed(lake, source, SHORT))

    assert rows(lake) == [order(1, "b"), order(3, "c")]


def test_deletes_and_truncates_are_not_filtered(lake: Lake) -> None:
    tags = {"id": pa.int64(), "note": pa.string()}
    source = ScriptedChanges(
        [
            snapshot(order(1, "a"), order(2, "b")),
            change_block("shop.tags", tags, [order(1, "x")], is_snapshot=True, is_first=True),
        ],
        [
            of_orders(order(1, op="d")),
            change_block("shop.tags", tags, [{"op": "t"}, order(2, "y")]),
        ],
    )

    lake.run(transformed(lake, source, SHORT))

    assert rows(lake) == [order(2, "b")]
    assert rows(lake, "shop.tags") == [order(2, "y")]


def test_changed_key_moves_the_row_in_and_out_of_the_filter(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"), order(3, "long"))],
        [
            # A source sends a change of the key as a delete of the old and a row with the new one.
            of_orders(order(1, op="d"), order(11, "long", op="u")),
            of_orders(order(2, op="d"), order(12, "b", op="u")),
            of_orders(order(3, op="d"), order(13, "c", op="u")),
        ],
    )

    lake.run(transformed(lake, source, SHORT))

    assert rows(lake) == [order(12, "b"), order(13, "c")]


def test_columns_are_masked_computed_renamed_cast_and_dropped(lake: Lake) -> None:
    columns = {
        "id": pa.int64(),
        "email": pa.string(),
        "ssn": pa.string(),
        "price": pa.string(),
        "note": pa.string(),
    }
    source = ScriptedChanges(
        [
            change_block(
                "shop.orders",
                columns,
                [{"id": 1, "email": "a@b", "ssn": "1", "price": "1.5", "note": "n"}],
                is_snapshot=True,
                is_first=True,
            )
        ],
        [
            change_block(
                "shop.orders",
                columns,
                [{"id": 2, "email": None, "ssn": "2", "price": "2", "note": "m"}],
            )
        ],
    )

    lake.run(
        transformed(
            lake,
            source,
            ("drop", ["ssn"]),
            ("cast", {"price": "decimal(9,2)"}),
            ("compute", {"email": "sha2(email, 256)", "label": "concat(note, '-', id)"}),
            ("rename", {"id": "number", "note": "remark"}),
        )
    )

    found = rows(lake)
    assert [list(row) for row in found] == [["number", "email", "price", "remark", "label"]] * 2
    assert [(row["number"], str(row["price"]), row["label"]) for row in found] == [
        (1, "1.50", "n-1"),
        (2, "2.00", "m-2"),
    ]
    assert [row["email"] for row in found] == [sha256(b"a@b").hexdigest(), None]


def test_renamed_key_identifies_rows_of_later_changes(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"), order(3, "c"))],
        [of_orders(order(1, "aa", op="u"), order(2, op="d"))],
    )

    lake.run(transformed(lake, source, ("rename", {"id": "number"})))

    assert rows(lake) == [{"number": 1, "note": "aa"}, {"number": 3, "note": "c"}]


def test_select_computes_columns_and_keeps_the_key(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "b"))],
        [of_orders(order(2, "bb", op="u"), order(1, op="d"))],
    )

    lake.run(transformed(lake, source, ("select", ["id AS number", "upper(note) AS loud"])))

    assert rows(lake) == [{"number": 2, "loud": "BB"}]


def test_types_that_spark_lacks_pass_transforms(lake: Lake) -> None:
    columns = {
        "id": pa.uuid(),
        "at": pa.time64("us"),
        "local": pa.timestamp("us"),
        "utc": pa.timestamp("us", tz="UTC"),
        "raw": pa.binary(),
        "tags": pa.list_(pa.string()),
        "gone": pa.string(),
    }
    row = {
        "id": uuid.UUID(int=7),
        "at": time(1, 2, 3, 4),
        "local": datetime(1960, 1, 1, 2, 3),  # noqa: DTZ001 - a local time has no zone
        "utc": datetime(2024, 5, 1, tzinfo=timezone.utc),
        "raw": b"\x00\xff",
        "tags": ["a", None],
    }
    given = {**row, "id": row["id"].bytes, "gone": "x"}  # type: ignore[attr-defined]
    other = {**given, "id": uuid.UUID(int=8).bytes}
    source = ScriptedChanges(
        [change_block("shop.orders", columns, [given, other])],
        [change_block("shop.orders", columns, [{"id": other["id"], "op": "d"}])],
    )

    lake.run(transformed(lake, source, ("drop", ["gone"])))

    assert rows(lake) == [row]


def test_tables_have_their_own_transforms_after_those_of_all(lake: Lake) -> None:
    def of_tags(*given: dict[str, Any]) -> Any:
        return change_block("shop.tags", ORDERS, given)

    source = ScriptedChanges([of_orders(order(1, " a "), order(2, "b")), of_tags(order(1, " a "))])
    plan = replace(
        transformed(lake, source, ("compute", {"note": "trim(note)"})),
        tables=(TableRules("shop.orders", steps(("filter", "note = 'a'"))),),
    )

    lake.run(plan)

    assert rows(lake) == [order(1, "a")]
    assert rows(lake, "shop.tags") == [order(1, "a")]


def test_table_without_transforms_is_mirrored_as_it_is(lake: Lake) -> None:
    tags = {"name": pa.string(), "at": pa.time64("us")}
    block = change_block("shop.tags", tags, [{"name": "x", "at": time(1)}], key=("name",))
    later = change_block("shop.tags", tags, [{"name": "x", "op": "d"}], key=("name",))
    source = ScriptedChanges([block, of_orders(order(1, "a"), order(2, "long"))], [later])
    rules = (TableRules("shop.o*", steps(SHORT)),)

    lake.run(replace(mirror(lake, source), tables=rules))

    assert rows(lake) == [order(1, "a")]
    assert rows(lake, "shop.tags") == []


def test_drop_for_all_tables_ignores_tables_without_the_column(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    tags = change_block("shop.tags", {"id": pa.int64(), "x": pa.int64()}, [{"id": 1, "x": 2}])
    source = ScriptedChanges([of_orders(order(1, "a")), tags])
    plan = transformed(lake, source, ("drop", ["note"]), ("drop", ["nowhere"]))

    lake.run(replace(plan, steps=("drop: note", "drop: nowhere")))

    assert rows(lake) == [{"id": 1}]
    assert rows(lake, "shop.tags") == [{"id": 1, "x": 2}]
    assert "pipeline events: no table of the batch has a column of `drop: nowhere`" in caplog.text


def test_transform_for_all_tables_needs_its_columns_in_each(lake: Lake) -> None:
    tags = change_block("shop.tags", {"id": pa.int64(), "x": pa.int64()}, [{"id": 1, "x": 2}])
    source = ScriptedChanges([of_orders(order(1, "a")), tags])

    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(transformed(lake, source, ("rename", {"note": "remark"})))

    assert str(caught.value) == (
        "pipeline 'events', table 'shop.tags': transform 'rename': the rows have no column 'note'\n"
        "  They have: id, x. Transforms of the pipeline apply to every table. Give those of one "
        "table under `tables`."
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("drop", ["id"]),
        ("cast", {"id": "string"}),
        ("compute", {"id": "id + 1"}),
        ("select", ["note"]),
        ("select", ["id + 1 AS id", "note"]),
    ],
)
def test_key_can_be_neither_removed_nor_changed(lake: Lake, kind: str, value: Any) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(transformed(lake, ScriptedChanges([of_orders(order(1))]), (kind, value)))

    assert str(caught.value) == (
        f"pipeline 'events', table 'shop.orders': transform {kind!r} removes or changes 'id', a "
        "key column\n  Deletes carry the key alone, so its values must stay as they are. `rename` "
        "can give it another name."
    )


def test_rows_must_stay_one_row_each(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1, "a,b"))])

    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(transformed(lake, source, ("select", ["id", "explode(split(note, ',')) AS n"])))

    assert str(caught.value) == (
        "pipeline 'events', table 'shop.orders': transform 'select' makes other rows than those "
        "of the source: select\n  Changes are applied by key, so each row has to stay one row. "
        "Leave out `explode`, aggregates and window functions."
    )


def test_two_columns_of_one_name_are_refused(lake: Lake) -> None:
    source = ScriptedChanges([of_orders(order(1, "a"))])

    with pytest.raises(SchemaMismatchError) as caught:
        lake.run(transformed(lake, source, ("select", ["id", "note", "upper(note) AS note"])))

    assert str(caught.value) == (
        "pipeline 'events', table 'shop.orders': transform 'select' gives two columns the name "
        "'note'\n  Give every column a name of its own; Spark SQL ignores case."
    )
