"""Reads how a table is partitioned, from the words of the YAML file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from icestream.errors import PlanError

if TYPE_CHECKING:
    from icestream.sinks.iceberg.options import IcebergOptions

TERM = re.compile(
    r"^\s*(?P<name>[A-Za-z]+)\s*\(\s*(?:(?P<width>[^,()]+?)\s*,)?\s*(?P<column>[^,()]+?)\s*\)\s*$"
)
COLUMN = re.compile(r"^[^\s,()]+$")
TRANSFORMS = {
    "identity": "identity",
    "year": "year",
    "years": "year",
    "month": "month",
    "months": "month",
    "day": "day",
    "days": "day",
    "date": "day",
    "hour": "hour",
    "hours": "hour",
    "bucket": "bucket",
    "truncate": "truncate",
    "void": "void",
}
WITH_WIDTH = ("bucket", "truncate")
EXAMPLE = "Write e.g. `days(ts)`, `bucket(16, id)`, `truncate(4, code)` or `identity(country)`."


class Term(NamedTuple):
    """One partition field: an Iceberg transform, its width where it has one, and the column."""

    transform: str
    width: int | None
    column: str

    def __str__(self) -> str:
        inside = self.column if self.width is None else f"{self.width}, {self.column}"
        return f"{self.transform}({inside})"


def parse_terms(options: IcebergOptions) -> list[Term]:
    """Return the partition fields that the options ask for; none for `none` and `table_default`.

    Raises:
        PlanError: a term cannot be read, or fields are missing.
    """
    mode = options.partitioning
    if not isinstance(mode, str):
        return [parse_term(text) for text in mode]
    if mode in ("none", "table_default"):
        return []
    if not options.partition_fields:
        raise PlanError(
            f"partitioning {mode!r} needs at least one field, and none is given",
            todo="Add e.g. `partition_fields: [country]`, or use `partitioning: none`.",
        )
    transform = options.time_granularity if mode == "time" else mode
    width = options.num_buckets if mode == "bucket" else None
    return [Term(transform, width, column) for column in options.partition_fields]


def parse_term(text: str) -> Term:
    """Read one term such as `days(ts)`; a bare column name means its identity.

    Raises:
        PlanError: it cannot be read.
    """
    found = TERM.match(text)
    if found is None:
        if COLUMN.match(text.strip()):
            return Term("identity", None, text.strip())
        raise PlanError(f"{text!r} is not a partition transform", todo=EXAMPLE)
    transform = TRANSFORMS.get(found["name"].lower())
    if transform is None:
        raise PlanError(
            f"no partition transform is called {found['name']!r}",
            todo="There are: bucket, days, hours, identity, months, truncate, years.",
        )
    return Term(transform, _width(text, transform, found["width"]), found["column"])


def _width(text: str, transform: str, width: str | None) -> int | None:
    if transform not in WITH_WIDTH:
        if width is not None:
            raise PlanError(
                f"{text!r} has a width, which {transform!r} does not take", todo=EXAMPLE
            )
        return None
    if width is None or not width.isdecimal() or int(width) < 1:
        raise PlanError(
            f"{text!r} needs a whole number above 0 before the column",
            todo=f"Write e.g. `{transform}(16, id)`.",
        )
    return int(width)
