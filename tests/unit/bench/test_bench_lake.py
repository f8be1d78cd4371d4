from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from bench.lake import NAMESPACE, TABLE, Lake, WrongRowsError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("user_id", pa.int64()),
        ("kind", pa.string()),
        ("country", pa.string()),
        ("amount", pa.float64()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)


def _rows(*ids: int, **changed: Any) -> pa.Table:
    row = {"user_id": 1, "kind": "view", "country": "DE", "amount": 1.5, "ts": 0, **changed}
    return pa.Table.from_pylist([{"id": each, **row} for each in ids], SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.create_table()
    return lake


def _append(lake: Lake, rows: pa.Table) -> None:
    lake.catalog().load_table((NAMESPACE, TABLE)).append(rows)


def test_table_with_each_record_once_passes(lake: Lake) -> None:
    _append(lake, _rows(0, 1))
    _append(lake, _rows(2))

    lake.verify(3)


@pytest.mark.parametrize(
    "rows",
    [_rows(0, 1), _rows(0, 1, 2, 2), _rows(0, 1, 1), _rows(1, 2, 3), _rows(0, 1, 2, ts=None)],
    ids=["lost", "doubled", "doubled-and-lost", "foreign", "empty-field"],
)
def test_table_with_other_rows_is_refused(lake: Lake, rows: pa.Table) -> None:
    _append(lake, rows)

    with pytest.raises(WrongRowsError, match=r"not \(3, 3, 0, 2, 3, 3, 3, 3, 3\)$"):
        lake.verify(3)


def test_completion_is_the_first_commit_with_every_row(lake: Lake) -> None:
    assert lake.completed_at(3) is None
    _append(lake, _rows(0, 1))
    assert lake.completed_at(3) is None
    _append(lake, _rows(2))
    _append(lake, _rows(3))

    timestamps = [moment for moment, _ in lake.commits()]
    assert [total for _, total in lake.commits()] == [2, 3, 4]
    assert lake.completed_at(3) == timestamps[1]
