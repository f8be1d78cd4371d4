"""How tables that are read whole are dealt to tasks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

from icestream.sources.postgres_cdc.batch_planning import dealt
from icestream.sources.postgres_cdc.snapshot import Range

ONE, OTHER = cast("Any", "one"), cast("Any", "other")


def pieces(table: Any, count: int, rows: int) -> list[tuple[Range, int]]:
    keys = [None, *((str(number),) for number in range(1, count)), None]
    return [(Range(table, low, high, first=True), rows) for low, high in pairwise(keys)]


def test_tasks_read_about_the_same_and_each_one_range() -> None:
    first, second = dealt(pieces(ONE, 10, 100), slots=2, chunk_rows=300)
    assert (first.ranges, first.rows) == ([Range(ONE, None, ("5",), first=True)], 500)
    assert (second.ranges, second.rows) == ([Range(ONE, ("5",), None, first=True)], 500)


def test_few_rows_are_one_task() -> None:
    (only,) = dealt(pieces(ONE, 3, 100), slots=2, chunk_rows=300)
    assert (only.ranges, only.rows) == ([Range(ONE, first=True)], 300)


def test_tables_are_not_joined() -> None:
    (only,) = dealt([*pieces(ONE, 2, 10), *pieces(OTHER, 2, 10)], slots=4, chunk_rows=300)
    assert only.ranges == [Range(ONE, first=True), Range(OTHER, first=True)]


def test_tables_without_rows_are_read_too() -> None:
    (only,) = dealt([*pieces(ONE, 1, 0), *pieces(OTHER, 1, 0)], slots=2, chunk_rows=300)
    assert (len(only.ranges), only.rows) == (2, 0)


def test_pages_are_not_joined() -> None:
    parts = [(Range(ONE, pages=(start, start + 9)), 50) for start in (0, 9)]
    (only,) = dealt(parts, slots=2, chunk_rows=300)
    assert len(only.ranges) == 2
