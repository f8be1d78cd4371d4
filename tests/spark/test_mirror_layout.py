"""How mirrored tables are partitioned: by their size in the source, unless the file sets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.fixtures.scripted_orders import ORDERS, mirror, of_orders, order, rows, snapshot

from icestream.testing.scripted import ScriptedChanges, change_block

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake

GB = 1_000_000_000


def spec(lake: Lake) -> list[str]:
    fields = lake.catalog.client().load_table("shop.orders").spec().fields
    return [str(field.transform) for field in fields]


def first_rows(*given: dict[str, Any], size: int | None = None) -> pa.RecordBatch:
    return change_block(
        "shop.orders", ORDERS, given, is_snapshot=True, is_first=True, source_bytes=size
    )


def test_mirror_of_unknown_size_is_unpartitioned(lake: Lake) -> None:
    lake.run(mirror(lake, ScriptedChanges([of_orders(order(1))])))

    assert spec(lake) == []


@pytest.mark.parametrize(
    ("size", "transforms"),
    [(12_000_000, []), (int(7.6 * GB), ["bucket[8]"]), (5_000 * GB, ["bucket[256]"])],
    ids=["12 MB", "7.6 GB", "5 TB"],
)
def test_only_a_large_table_is_bucketed(lake: Lake, size: int, transforms: list[str]) -> None:
    lake.run(mirror(lake, ScriptedChanges([first_rows(order(1), size=size)])))

    assert spec(lake) == transforms


def test_partitioning_of_the_file_wins_over_the_size(lake: Lake) -> None:
    source = ScriptedChanges([first_rows(order(1), size=8 * GB)])

    lake.run(mirror(lake, source, partitioning="none"))

    assert spec(lake) == []


@pytest.mark.parametrize("options", [{"partitioning": "bucket"}, {"num_buckets": 16}])
def test_buckets_of_the_file_are_those_of_the_key(lake: Lake, options: dict[str, Any]) -> None:
    source = ScriptedChanges([snapshot(order(1), order(2))])

    lake.run(mirror(lake, source, **options))

    assert spec(lake) == ["bucket[16]"]


def test_bucketed_mirror_of_an_earlier_version_stays_bucketed(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(*(order(number) for number in range(20)))])
    lake.run(mirror(lake, source, partitioning="bucket"))
    source.script.append([of_orders(order(3, "new", op="u"), order(4, op="d"), order(99, "x"))])

    lake.run(mirror(lake, source))

    assert spec(lake) == ["bucket[16]"]
    assert len(lake.catalog.client().load_table("shop.orders").specs()) == 1
    left = [number for number in range(20) if number != 4]
    held = {row["id"]: row["note"] for row in rows(lake)}
    assert held == {**dict.fromkeys(left), 3: "new", 99: "x"}


def test_reload_of_a_table_that_grew_keeps_its_partitioning(lake: Lake) -> None:
    source = ScriptedChanges([first_rows(order(1), size=1)])
    lake.run(mirror(lake, source))
    source.script = [[first_rows(order(1), order(2), size=8 * GB)]]

    lake.run(mirror(lake, source), recovery="start-over")

    assert spec(lake) == []
    assert rows(lake) == [order(1), order(2)]


def test_table_that_loses_its_bucketed_column_is_partitioned_anew(lake: Lake) -> None:
    before = change_block("shop.orders", ORDERS, [order(1, "a")], ids=(1, 2), version=1)
    notes = {"note": pa.string()}
    source = ScriptedChanges([before])
    lake.run(mirror(lake, source, partitioning="bucket"))
    after = change_block(
        "shop.orders", notes, [{"note": "b"}], key=("note",), ids=(2,), version=2,
        is_snapshot=True, is_first=True,
    )  # fmt: skip
    source.script.append([after])

    lake.run(mirror(lake, source))

    assert spec(lake) == []
    assert [row["note"] for row in rows(lake)] == ["b"]


def test_renamed_bucketed_column_keeps_the_partitioning(lake: Lake) -> None:
    before = change_block("shop.orders", ORDERS, [order(1, "a")], ids=(1, 2), version=1)
    renamed = {"number": pa.int64(), "note": pa.string()}
    after = change_block(
        "shop.orders",
        renamed,
        [{"number": 2, "note": "b"}],
        key=("number",),
        ids=(1, 2),
        version=2,
    )
    source = ScriptedChanges([before])
    lake.run(mirror(lake, source, partitioning="bucket"))
    source.script.append([after])

    lake.run(mirror(lake, source))

    assert spec(lake) == ["bucket[16]"]
    assert rows(lake) == [{"number": 1, "note": "a"}, {"number": 2, "note": "b"}]
