"""Rows of a table compared with those of another side, in Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.plain_side import PlainRows

from icestream.verify.comparison import (
    RowDifference,
    TableComparison,
    comparison_spec,
    find_shared_columns,
)
from icestream.verify.side import LakeTable

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

    from icestream.verify.checksums import SideChecksums

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2))])


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "name": f"name {number}", "price": None, **values}


ROWS = [row(number) for number in range(5_000)]


def lake_table(lake: Lake, rows: list[dict[str, Any]], columns: pa.Schema = COLUMNS) -> LakeTable:
    """Create a table of two files."""
    client = lake.catalog.client()
    client.create_namespace_if_not_exists(lake.namespace)
    name = (*lake.namespace, "mirrored")
    table = client.create_table(name, schema=columns)
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        table.append(pa.Table.from_pylist(part, schema=columns))
    return LakeTable(".".join(name), client.load_table(name), "orders")


@dataclass(frozen=True)
class Compared:
    source: SideChecksums
    lake: SideChecksums
    counts: dict[str, int]
    rows: tuple[RowDifference, ...]


def compare(
    lake: Lake,
    source: list[dict[str, Any]],
    table: LakeTable,
    *,
    key: tuple[str, ...] = ("id",),
    left_out: pa.Table | None = None,
    limit: int = 10,
) -> Compared:
    agreed = find_shared_columns(COLUMNS, table.columns).columns
    comparison = TableComparison(
        lake.spark,
        comparison_spec(agreed, key, len(source), left_out),
        (PlainRows(COLUMNS), table.reader(agreed.names)),
        ([source[:100], source[100:]], table.parts(4)),
    )
    sums = comparison.checksums()
    return Compared(*sums, *comparison.differences(*sums, limit))


def test_same_rows_in_another_order_are_equal(lake: Lake) -> None:
    found = compare(lake, ROWS[::-1], lake_table(lake, ROWS))
    assert found.source == found.lake
    assert (found.lake.rows, found.lake.first, found.lake.last) == (5_000, (0,), (4_999,))
    assert (found.counts, found.rows) == ({}, ())


def test_each_row_that_differs_is_reported(lake: Lake) -> None:
    from decimal import Decimal

    changed = row(7, name="x" * 100, price=Decimal("1.50"))
    table = lake_table(lake, [changed, row(6_000), ROWS[9], *ROWS[:7], *ROWS[9:]])
    found = compare(lake, ROWS, table)
    assert found.counts == {"missing": 1, "extra": 1, "different": 1, "doubled": 1}
    assert found.rows == (
        RowDifference("missing", {"id": "8"}),
        RowDifference("extra", {"id": "6000"}),
        RowDifference(
            "different",
            {"id": "7"},
            {"name": ("name 7", "x" * 80 + "..."), "price": (None, "1.50")},
        ),
        RowDifference("doubled", {"id": "9"}),
    )
    assert (found.source.rows, found.lake.rows) == (5_000, 5_001)


def test_all_differences_are_counted_and_some_are_listed(lake: Lake) -> None:
    found = compare(lake, ROWS, lake_table(lake, ROWS[::2]), limit=3)
    assert found.counts == {"missing": 2_500}
    assert len(found.rows) == 3


def test_rows_that_changed_since_are_not_compared(lake: Lake) -> None:
    table = lake_table(lake, [row(3, name="old"), row(6_000), *ROWS[4:]])
    changed = pa.table({"id": pa.array([0, 1, 2, 3, 6_000], pa.int32())})
    found = compare(lake, ROWS, table, left_out=changed)
    assert found.counts == {}
    assert (found.source.excluded_rows, found.lake.excluded_rows) == (4, 2)


def test_rows_without_a_key_are_identified_by_all_their_values(lake: Lake) -> None:
    table = lake_table(lake, [*ROWS[1:], ROWS[5]])
    found = compare(lake, ROWS, table, key=())
    assert found.counts == {"missing": 1, "doubled": 1}
    assert found.rows == (
        RowDifference("missing", {"id": "0", "name": "name 0", "price": None}),
        RowDifference("doubled", {"id": "5", "name": "name 5", "price": None}),
    )


def test_soft_deleted_rows_are_skipped(lake: Lake) -> None:
    columns = COLUMNS.append(pa.field("_is_deleted", pa.bool_()))
    columns = columns.append(pa.field("_deleted_at", pa.timestamp("us", "UTC")))
    deleted = {**row(6_000), "_is_deleted": True}
    alive = {**row(3), "_is_deleted": False}
    table = lake_table(lake, [deleted, alive, *ROWS[:3], *ROWS[4:]], columns)
    assert table.soft_delete_columns == ("_is_deleted", "_deleted_at")
    assert compare(lake, ROWS, table).counts == {}


@pytest.mark.parametrize("count", [1, 2, 9])
def test_files_are_read_in_a_bounded_number_of_parts(lake: Lake, count: int) -> None:
    table = lake_table(lake, ROWS)
    parts = table.parts(count)
    assert (len(parts), sum(map(len, parts))) == (min(count, 2), 2)


def test_deletion_vectors_are_applied(lake: Lake) -> None:
    table = lake_table(lake, ROWS)
    lake.sql(f"ALTER TABLE lake.{table.name} SET TBLPROPERTIES ('format-version'='3')")
    lake.sql(
        f"ALTER TABLE lake.{table.name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    )
    lake.sql(f"DELETE FROM lake.{table.name} WHERE id = 17")  # noqa: S608
    client = lake.catalog.client()
    again = LakeTable(table.name, client.load_table((*lake.namespace, "mirrored")), "orders")
    assert compare(lake, ROWS, again).rows == (RowDifference("missing", {"id": "17"}),)


def test_rows_duplicated_on_both_sides_with_different_values_are_reported(lake: Lake) -> None:
    doubled = [row(1, name="a"), row(1, name="a")]
    table = lake_table(lake, [row(1, name="b"), row(1, name="b")])
    found = compare(lake, doubled, table)
    assert found.counts == {"different": 1}
    assert found.rows == (RowDifference("different", {"id": "1"}, {"name": ("a", "b")}),)
