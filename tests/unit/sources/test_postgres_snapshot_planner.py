"""How tables that are read whole are dealt to tasks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

from icestream.sources.postgres_cdc.snapshot import TableRange
from icestream.sources.postgres_cdc.snapshot_planner import balance

ONE, OTHER = cast("Any", "one"), cast("Any", "other")


def pieces(table: Any, count: int, rows: int) -> list[tuple[TableRange, int]]:
    keys = [None, *((str(number),) for number in range(1, count)), None]
    return [(TableRange(table, low, high, first=True), rows) for low, high in pairwise(keys)]


def test_tasks_read_about_the_same_and_each_one_range() -> None:
    first, second = balance(pieces(ONE, 10, 100), slots=2, chunk_rows=300)
    assert (first.ranges, first.rows) == ([TableRange(ONE, None, ("5",), first=True)], 500)
    assert (second.ranges, second.rows) == ([TableRange(ONE, ("5",), None, first=True)], 500)


def test_few_rows_are_one_task() -> None:
    (only,) = balance(pieces(ONE, 3, 100), slots=2, chunk_rows=300)
    assert (only.ranges, only.rows) == ([TableRange(ONE, first=True)], 300)


def test_tables_are_not_joined() -> None:
    (only,) = balance([*pieces(ONE, 2, 10), *pieces(OTHER, 2, 10)], slots=4, chunk_rows=300)
    assert only.ranges == [TableRange(ONE, first=True), TableRange(OTHER, first=True)]


def test_tables_without_rows_are_read_too() -> None:
    (only,) = balance([*pieces(ONE, 1, 0), *pieces(OTHER, 1, 0)], slots=2, chunk_rows=300)
    assert (len(only.ranges), only.rows) == (2, 0)


def test_pages_are_not_joined() -> None:
    parts = [(TableRange(ONE, pages=(start, start + 9)), 50) for start in (0, 9)]
    (only,) = balance(parts, slots=2, chunk_rows=300)
    assert len(only.ranges) == 2
