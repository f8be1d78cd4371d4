"""Reads the order of rows within a file, from the words of the YAML file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from icestream.errors import PlanError

if TYPE_CHECKING:
    from icestream.sinks.iceberg.options import IcebergOptions

TERM = re.compile(
    r"^\s*(?P<column>[^\s,()]+)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*$",
    re.IGNORECASE,
)


class SortTerm(NamedTuple):
    """One column of a sort order."""

    column: str
    descending: bool
    nulls_first: bool

    def __str__(self) -> str:
        direction = "desc" if self.descending else "asc"
        return f"{self.column} {direction} nulls {'first' if self.nulls_first else 'last'}"


def parse_sort(options: IcebergOptions) -> list[SortTerm]:
    """Return the sort order that the options ask for; empty for none.

    Raises:
        PlanError: a term cannot be read.
    """
    return [parse_sort_term(text) for text in options.sort_order]


def parse_sort_term(text: str) -> SortTerm:
    """Read one term such as `ts desc nulls last`.

    As in SQL and in Iceberg, nulls come first in ascending order and last in descending order
    unless the term says otherwise.

    Raises:
        PlanError: it cannot be read.
    """
    found = TERM.match(text)
    if found is None:
        raise PlanError(
            f"{text!r} is not a sort term",
            todo="Write a column, then `asc` or `desc`, then `nulls first` or `nulls last`.",
        )
    descending = (found["direction"] or "asc").lower() == "desc"
    nulls = found["nulls"]
    nulls_first = not descending if nulls is None else nulls.lower() == "first"
    return SortTerm(found["column"], descending, nulls_first)
