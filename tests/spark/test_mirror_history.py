"""Mirrors that keep what the source has no more: every change, or rows that were deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fixtures.scripted_orders import mirror, of_orders, order, rows, snapshot

from icestream.testing.scripted import ScriptedChanges

if TYPE_CHECKING:
    from tests.fixtures.spark import Lake


def test_every_change_becomes_a_row_in_append_mode(lake: Lake) -> None:
    source = ScriptedChanges(
        [snapshot(order(1, "a"))],
        [of_orders(order(1, "b", op="u"), order(1, op="d"))],
    )

    lake.run(mirror(lake, source, commit_mode="append"))

    assert rows(lake) == [
        order(1, "a", _op="r"),
        order(1, "b", _op="u"),
        order(1, None, _op="d"),
    ]


def test_soft_deletes_mark_snapshot_rows_too(lake: Lake) -> None:
    source = ScriptedChanges([snapshot(order(1), order(2))], [of_orders(order(2, op="d"))])

    lake.run(mirror(lake, source, delete_mode="soft"))

    assert [(row["id"], row["_is_deleted"]) for row in rows(lake)] == [(1, False), (2, True)]


def read_twice(lake: Lake, **options: str) -> None:
    """Read a table, stream it, and reload it in two parts; row 2 was deleted in between."""
    source = ScriptedChanges(
        [snapshot(order(1, "a"), order(2, "a"))], [of_orders(order(2, op="d"))]
    )
    lake.run(mirror(lake, source, **options))
    source.script = [[snapshot(order(1, "b"))], [snapshot(order(3, "b"), first=False)]]
    lake.run(mirror(lake, source, **options), recovery="start-over")


def test_changes_are_kept_when_the_table_is_reloaded(lake: Lake) -> None:
    read_twice(lake, commit_mode="append")

    assert rows(lake) == [
        order(1, "a", _op="r"),
        order(1, "b", _op="r"),
        order(2, "a", _op="r"),
        order(2, None, _op="d"),
        order(3, "b", _op="r"),
    ]


@pytest.mark.parametrize("mode", ["soft", "ignore"])
def test_soft_deleted_rows_are_kept_when_the_table_is_reloaded(lake: Lake, mode: str) -> None:
    read_twice(lake, delete_mode=mode)

    assert [(row["id"], row["note"]) for row in rows(lake)] == [(1, "b"), (2, "a"), (3, "b")]
    if mode == "soft":
        assert [row["_is_deleted"] for row in rows(lake)] == [False, True, False]
