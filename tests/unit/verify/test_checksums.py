"""Checksums that do not depend on the order of rows, nor on how they are cut into batches."""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icestream.verify.checksums import (
    ComparisonSpec,
    SideChecksums,
    compute_checksums,
    differing_chunks,
    hash_rows,
)

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(rows: list[tuple[Any, Any]], columns: pa.Schema = COLUMNS) -> pa.RecordBatch:
    arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(columns.types)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def sums(rows: list[tuple[Any, Any]], **spec: Any) -> SideChecksums:
    whole = {"columns": COLUMNS, "key": ("id",), "chunks": 4, **spec}
    return compute_checksums([batch(rows)] if rows else [], ComparisonSpec(**whole))


ROWS = [(number, f"name {number}") for number in range(100)]


def test_order_and_batches_of_rows_do_not_matter() -> None:
    spec = ComparisonSpec(COLUMNS, ("id",), 4)
    backwards = [batch(ROWS[at : at + 7][::-1]) for at in range(0, 100, 7)][::-1]
    assert compute_checksums(backwards, spec) == sums(ROWS)
    assert sums(ROWS).rows == 100
    assert (sums(ROWS).first, sums(ROWS).last) == ((0,), (99,))
    assert set(sums(ROWS).chunks) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "other",
    [
        ROWS[1:],
        [*ROWS, ROWS[5]],
        [*ROWS[1:], (0, "Name 0")],
        [*ROWS[1:], (0, None)],
        [*ROWS[1:], (0, "")],
        [*ROWS[1:], (100, "name 0")],
    ],
)
def test_one_different_row_makes_its_chunk_differ(other: list[tuple[Any, Any]]) -> None:
    assert len(differing_chunks(sums(ROWS), sums(other))) in (1, 2)


def test_two_rows_that_swap_a_value_differ() -> None:
    other = [(0, "name 1"), (1, "name 0"), *ROWS[2:]]
    assert differing_chunks(sums(ROWS, chunks=1), sums(other, chunks=1)) == [0]


def test_duplicate_rows_without_a_key_count() -> None:
    once, twice = sums([(1, "a"), (2, "b")], key=()), sums([(1, "a"), (2, "b"), (1, "a")], key=())
    assert len(differing_chunks(once, twice)) == 1
    assert (once.first, once.last) == (None, None)
    assert differing_chunks(twice, sums([(1, "a"), (1, "a"), (2, "b")], key=())) == []


def test_excluded_rows_count_on_neither_side() -> None:
    excluded = pa.table({"id": pa.array([3, 4, 200], pa.int64())})
    changed = [(3, "changed"), *ROWS[:3], *ROWS[5:]]
    one, other = sums(ROWS, excluded_keys=excluded), sums(changed, excluded_keys=excluded)
    assert differing_chunks(one, other) == []
    assert (one.excluded_rows, other.excluded_rows, one.rows) == (2, 1, 98)


def test_no_rows_have_no_chunks() -> None:
    assert sums([]) == SideChecksums()
    assert differing_chunks(sums([]), sums(ROWS[:1])) != []


def test_wide_keys_have_a_range() -> None:
    columns = pa.schema([("b", pa.string()), ("a", pa.int32())])
    rows = batch([("x", 2), ("a", 9), ("x", 1)], columns)
    checksums = compute_checksums([rows], ComparisonSpec(columns, ("b", "a"), 2))
    assert (checksums.first, checksums.last) == (("a", 9), ("x", 2))


def test_every_type_has_checksums_and_texts() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - in a column without a zone
    values: dict[str, pa.Array] = {
        "i": pa.array([1], pa.int32()),
        "f": pa.array([1.5], pa.float32()),
        "d": pa.array([Decimal("1.50")], pa.decimal128(38, 2)),
        "b": pa.array([True]),
        "day": pa.array([date(2026, 1, 2)]),
        "t": pa.array([time(1, 2, 3, 4)], pa.time64("us")),
        "ts": pa.array([moment], pa.timestamp("us")),
        "raw": pa.array([b"\x00\xff"], pa.binary()),
        "list": pa.array([["a", None]], pa.list_(pa.string())),
        "none": pa.array([None], pa.string()),
        "long": pa.array(["x" * 90]),
    }
    rows = pa.RecordBatch.from_pydict(values)
    spec = ComparisonSpec(rows.schema, ("i",), 1)
    assert compute_checksums([rows], spec).rows == 1
    (hashed,) = hash_rows([rows], spec, [0])
    assert hashed.to_pylist()[0]["key"] == ["1"]
    assert hashed.to_pylist()[0]["texts"] == [
        "1",
        "1.5",
        "1.50",
        "true",
        "2026-01-02",
        "01:02:03.000004",
        "2026-01-02 03:04:05.678901",
        "\\x00\\xFF",
        "[a, NULL]",
        None,
        "x" * 80 + "...",
    ]


def test_values_are_cast_to_the_compared_types() -> None:
    narrow = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    wide = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])
    agreed = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    now = datetime(2026, 1, 2, tzinfo=timezone.utc)
    spec = ComparisonSpec(agreed, ("id",), 1)
    one = compute_checksums([batch([(1, now)], narrow)], spec)
    assert one == compute_checksums([batch([(now, 1)], wide)], spec)


def test_only_rows_of_the_requested_chunks_are_returned() -> None:
    spec = ComparisonSpec(COLUMNS, ("id",), 4)
    counts = [sum(len(b) for b in hash_rows([batch(ROWS)], spec, [n])) for n in range(4)]
    assert counts == [sums(ROWS).chunks[n].rows for n in range(4)]


def test_column_names_may_contain_anything() -> None:
    columns = pa.schema([('a"b', pa.int64()), ("A", pa.string()), ("a", pa.string())])
    arrays = [pa.array([1], pa.int64()), pa.array(["x"]), pa.array(["y"])]
    rows = pa.RecordBatch.from_arrays(arrays, schema=columns)
    assert compute_checksums([rows], ComparisonSpec(columns, ('a"b',), 1)).first == (1,)
