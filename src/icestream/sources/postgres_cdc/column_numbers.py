"""Which column of a table is which one of a message that was written when it had others.

A message tells columns by name and type, without their numbers. PostgreSQL never gives a number
again, and a message tells columns in the order of the numbers: those that are there now, and those
that were dropped since. When a column was dropped is told by the transaction that did it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.sources.postgres_cdc.relation import Column
    from icestream.sources.postgres_cdc.server import Session

# The catalog holds the lower half of ids of transactions, as the log does.
DROPPED_QUERY = """
SELECT attnum, xmin::text::int8,
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8
FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND attisdropped
"""
_CIRCLE = 1 << 32


def find_dropped(session: Session, table: int, xid: int) -> dict[int, bool]:
    """Return the columns that a transaction dropped, or a later one; and whether it was later."""
    found = {}
    for number, dropped_by, now in session.rows(DROPPED_QUERY, [table]):
        later = (dropped_by - xid) % _CIRCLE
        if later <= (now - xid) % _CIRCLE:
            found[number] = later > 0
    return found


def numbered(
    told: Sequence[Column], known: Sequence[Column], dropped: Mapping[int, bool]
) -> tuple[Column, ...]:
    """Return the columns of a message with their numbers; None where that can't be told.

    Args:
        told: the columns of the message.
        known: the columns that the table has now.
        dropped: numbers of columns that were dropped by the message's own transaction (False),
            before or after the message, or by a later one (True).
    """
    later = {number for number, is_later in dropped.items() if is_later}
    for among in (later, set(dropped)):
        places: list[Column | int] = sorted([*known, *among], key=_number)
        if len(places) >= len(told) and _may_be(told, places, known):
            return tuple(
                replace(column, number=_number(place))
                for column, place in zip(told, places, strict=False)
            )
    return _by_name(told, known)


def _number(place: Column | int) -> int:
    return place if isinstance(place, int) else place.number or 0


def _may_be(
    told: Sequence[Column], places: Sequence[Column | int], known: Sequence[Column]
) -> bool:
    """Tell whether columns that go by another name now were renamed, and are no others."""
    names = {column.name for column in known}
    for column, place in zip(told, places, strict=False):
        if isinstance(place, int) or place.name == column.name:
            continue
        if place.type_oid != column.type_oid and column.name in names:
            return False
    return True


def _by_name(told: Sequence[Column], known: Sequence[Column]) -> tuple[Column, ...]:
    """Match names in the order of numbers, as where a publication leaves columns out."""
    by_name = {column.name: column for column in known}
    last = 0
    columns = []
    for column in told:
        other = by_name.get(column.name)
        number = other.number if other is not None else None
        if number is not None and number <= last:
            number = None
        last = number or last
        columns.append(replace(column, number=number))
    return tuple(columns)
