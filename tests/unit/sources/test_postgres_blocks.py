from __future__ import annotations

from hashlib import md5

import pyarrow as pa
import pytest

from icestream.contracts.changes import (
    COLUMN_ID,
    OP,
    UNCHANGED_COLUMNS,
    ChangeSchema,
    change_schema_of,
)
from icestream.errors import AttentionError
from icestream.sources.postgres_cdc.blocks import convert_columns, row_keys, snapshot_block
from icestream.sources.postgres_cdc.tables import (
    ROW_KEY,
    PgColumn,
    Relation,
    block_schema,
    replica_key,
)
from icestream.sources.postgres_cdc.types import TypeCatalog

COLUMNS = (PgColumn("id", 20, is_key=True, number=1), PgColumn("day", 1082, number=4))
DAYS = Relation(16400, "public", "days", "d", COLUMNS, ("id",))
KEYLESS = Relation(16400, "public", "days", "f", COLUMNS)


def strings(*texts: str | None) -> pa.Array:
    return pa.array(texts, pa.string())


def test_snapshot_block_has_no_columns_of_changes() -> None:
    texts = [strings("1", "2"), strings("2024-02-29", "infinity")]

    block, nulled = snapshot_block(DAYS, TypeCatalog(), texts, first=True)

    table = ("public", "days")
    assert change_schema_of(block.schema) == ChangeSchema(
        table, ("id",), is_snapshot=True, is_first=True
    )
    assert block.schema.names == ["id", "day"]
    assert block.schema.field("day").metadata == {COLUMN_ID: b"16400.4"}
    assert block.column("id").to_pylist() == [1, 2]
    assert nulled == {"day": 1}


VALUES = Relation(
    16400,
    "public",
    "prices",
    "d",
    (
        PgColumn("id", 20, is_key=True, number=1),
        PgColumn("price", 1700, typmod=((10 << 16) | 2) + 4, number=2),
        PgColumn("days", 1182, number=3),
    ),
    ("id",),
)

AS_TEXT = (
    "Or set `unrepresentable: text` to store all columns of such types as strings. It does not "
    "change existing columns: drop the Iceberg tables that have them, and reload them with "
    "`icestream run --start-over`."
)


@pytest.mark.parametrize(
    ("price", "days", "message"),
    [
        (
            "NaN",
            "{2024-01-01}",
            "table public.prices, row id = 2: column 'price' of type numeric(10,2) is 'NaN', which "
            "its Iceberg type cannot hold",
        ),
        (
            "1.50",
            "{2024-01-01,infinity}",
            "table public.prices, row id = 2: column 'days' of type date[] is "
            "'{2024-01-01,infinity}', which its Iceberg type cannot hold",
        ),
        (
            "1.50",
            "{{2024-01-01},{2024-01-02}}",
            "table public.prices, row id = 2: column 'days' of type date[] is "
            "'{{2024-01-01},{2024-01-02}}', which its Iceberg type cannot hold",
        ),
    ],
)
def test_unrepresentable_value_is_reported(price: str, days: str, message: str) -> None:
    texts = [
        strings("1", "2", "3", "4"),
        strings(None, price, "3.00", price),
        strings("{}", days, None, days),
    ]
    with pytest.raises(AttentionError) as caught:
        snapshot_block(VALUES, TypeCatalog(unrepresentable="fail"), texts)
    assert str(caught.value) == (
        f"{message}\n  Correct the value in the database, or set `unrepresentable: null` to store "
        f"a null.\n  {AS_TEXT}"
    )
    with pytest.raises(AttentionError) as caught:
        convert_columns(VALUES, TypeCatalog(unrepresentable="fail"), texts, is_change=True)
    assert str(caught.value) == (
        f"{message}\n  Set `unrepresentable: null` to store a null. Correcting the value in the "
        f"database does not help: the log still has this change.\n  {AS_TEXT}"
    )
    block, nulled = snapshot_block(VALUES, TypeCatalog(unrepresentable="null"), texts)
    assert sum(nulled.values()) == 2
    kept = TypeCatalog(unrepresentable="text")
    block, nulled = snapshot_block(VALUES, kept, texts)
    assert nulled == {}
    assert block.column("price").to_pylist() == [None, price, "3.00", price]
    assert block.column("days").to_pylist() == ["{}", days, None, days]
    assert block.schema.equals(block_schema(VALUES, kept, snapshot=True))


def test_key_never_becomes_null() -> None:
    columns = (PgColumn("day", 1082, is_key=True, number=1),)
    days = Relation(16400, "public", "days", "d", columns, ("day",))
    texts, types = [strings("infinity")], TypeCatalog(unrepresentable="null")
    what = (
        "table public.days, row day = infinity: column 'day' of type date is 'infinity', which its "
        "Iceberg type cannot hold"
    )
    with pytest.raises(AttentionError) as caught:
        snapshot_block(days, types, texts)
    assert str(caught.value) == (
        f"{what}\n  Correct the value in the database; a key cannot be null.\n  {AS_TEXT}"
    )
    with pytest.raises(AttentionError) as caught:
        convert_columns(days, types, texts, is_change=True)
    assert str(caught.value) == (
        f"{what}\n  Correct the value in the database, and reload the tables with `icestream "
        "run --start-over`: the log still has this change, and a key cannot be null.\n  "
        f"{AS_TEXT}"
    )


def test_columns_of_a_snapshot_are_those_of_its_blocks() -> None:
    for relation in (DAYS, KEYLESS):
        block, _ = snapshot_block(relation, TypeCatalog(), [strings("1"), strings(None)])
        schema = block_schema(relation, TypeCatalog(), snapshot=True)

        assert block.schema.equals(schema, check_metadata=True)


def test_changes_have_the_snapshot_columns_and_two_more() -> None:
    names = block_schema(KEYLESS, TypeCatalog()).names

    assert names == ["id", "day", ROW_KEY, OP, UNCHANGED_COLUMNS]
    assert block_schema(KEYLESS, TypeCatalog(), snapshot=True).names == names[:3]


def test_column_missing_from_the_catalog_has_no_id() -> None:
    lost = Relation(1, "public", "t", "n", (PgColumn("a", 25),))

    assert block_schema(lost, TypeCatalog()).field("a").metadata is None


@pytest.mark.parametrize(
    ("identity", "key"), [("d", ("id",)), ("i", ("id",)), ("f", ("day",)), ("n", ())]
)
def test_key_is_what_the_log_contains_of_a_deleted_row(identity: str, key: tuple[str, ...]) -> None:
    assert replica_key(identity, COLUMNS, primary_key=("day",)) == key


def test_row_keys_distinguish_nulls_and_columns() -> None:
    texts = [strings("1", "1", "", "12", None), strings("", None, "1", "2", "1")]

    assert len(set(row_keys(KEYLESS, texts, 5).to_pylist())) == 5


def test_row_key_is_unchanged_when_a_column_is_renamed_or_added() -> None:
    columns = (
        PgColumn("no", 20, number=1),
        PgColumn("day", 1082, number=4),
        PgColumn("c", 25, number=5),
    )
    later = Relation(16400, "public", "days", "f", columns)

    before = row_keys(KEYLESS, [strings("1"), strings("x")], 1)
    after = row_keys(later, [strings("1"), strings("x"), strings(None)], 1)

    assert before == after


def test_row_key_is_stable_across_versions() -> None:
    # It is stored in tables, so that another would delete nothing.
    found = row_keys(KEYLESS, [strings("1"), strings(None)], 1).to_pylist()

    assert found == [md5(b"1:1:1", usedforsecurity=False).hexdigest()]
