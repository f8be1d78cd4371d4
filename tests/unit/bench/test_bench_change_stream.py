from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from bench import keyed_rows
from bench.change_stream import (
    MIXED,
    TABLE,
    ChangedLake,
    Changes,
    Expected,
    make_changes,
    records,
)
from bench.lake import WrongRowsError
from bench.table_files import NAMESPACE

if TYPE_CHECKING:
    from pathlib import Path


def _applied(changes: Changes, table_rows: int) -> dict[int, float]:
    """Apply the records to a dictionary, as any reader of the topic would."""
    numbers = np.arange(table_rows)
    first = keyed_rows.first_values(numbers).astype(float)
    table = dict(zip(keyed_rows.spread(numbers).tolist(), first.tolist(), strict=True))
    for _, value in records(changes):
        row: dict[str, Any] = json.loads(value)
        if row["op"] == "d":
            table.pop(row["id"], None)
        else:
            table[row["id"]] = row["value"]
    return table


def _told(table: dict[int, float]) -> Expected:
    weighed = sum(key % MIXED * int(value) for key, value in table.items())
    return Expected(len(table), int(sum(table.values())), weighed)


def test_expected_table_is_that_of_the_records_applied_in_order() -> None:
    changes = make_changes(5_000, 500)

    assert changes.expected(500) == _told(_applied(changes, 500))


def test_seven_in_ten_changes_are_updates_and_one_is_a_delete() -> None:
    changes = make_changes(100_000, 10_000)

    counts = Counter(changes.ops.tolist())
    assert [round(counts[op] / 100_000, 2) for op in (b"u", b"i", b"d")] == [0.7, 0.2, 0.1]
    inserted = changes.numbers[changes.ops == b"i"]
    assert inserted.tolist() == [*range(10_000, 10_000 + len(inserted))]


def test_changes_of_one_key_stay_in_one_partition() -> None:
    places: dict[int, set[int]] = {}
    for partition, value in records(make_changes(2_000, 100)):
        places.setdefault(json.loads(value)["id"], set()).add(partition)

    assert max(map(len, places.values())) == 1
    assert len(set.union(*places.values())) == 4


def test_table_with_two_values_swapped_is_refused(tmp_path: Path) -> None:
    numbers = np.arange(3, dtype=np.int64)
    good = keyed_rows.rows("long", numbers, np.array([1, 2, 3]))
    bad = keyed_rows.rows("long", numbers, np.array([2, 1, 3]))
    ids = good.column(0).to_pylist()
    expected = _told(dict(zip(ids, [1.0, 2.0, 3.0], strict=True)))
    for name, batch in (("good", good), ("bad", bad)):
        lake = ChangedLake(tmp_path / name, expected)
        lake.warehouse.mkdir(parents=True)
        lake.catalog().create_namespace(NAMESPACE)
        rows = pa.Table.from_batches([batch])
        lake.catalog().create_table((NAMESPACE, TABLE), rows.schema).append(rows)

    ChangedLake(tmp_path / "good", expected).verify(3)
    with pytest.raises(WrongRowsError, match=r"^rows, ids, sum and sum by id are \(3, 3, 6, "):
        ChangedLake(tmp_path / "bad", expected).verify(3)
