"""Names that differ only in case: two columns to Iceberg, one to most engines that read it.

Spark refuses every query that names one of two such columns, so none is ever made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.types import IcebergType, ListType, MapType, StructType

if TYPE_CHECKING:
    from icestream.schemas.changes import Path

DIFFER_IN_CASE = (
    "Most engines take such names for one. Give the stream's column another name with a `rename` "
    "transform; of two columns of the stream, leave one out with the source's `schema`."
)


def twin_problem(path: Path, stream: StructType, table: StructType) -> str | None:
    """Say which column a new one differs from only in case; None if from none.

    Args:
        path: the new column.
        stream: the columns of the stream beside it.
        table: the columns of the table there.
    """
    *parents, name = path
    low = name.lower()
    for column in stream.fields:
        if column.name.lower() == low and column.name != name:
            one, other = sorted(_named(parents, each) for each in (name, column.name))
            return f"columns {one!r} and {other!r} of the stream differ only in case"
    for column in table.fields:
        if column.name.lower() == low:
            return (
                f"column {_named(parents, name)!r} of the stream and column "
                f"{_named(parents, column.name)!r} of the table differ only in case"
            )
    return None


def twins_within(path: Path, kind: IcebergType) -> list[str]:
    """Say which members of a type, at any depth, differ only in case."""
    if isinstance(kind, ListType):
        return twins_within((*path, "element"), kind.element_type)
    if isinstance(kind, MapType):
        return [
            *twins_within((*path, "key"), kind.key_type),
            *twins_within((*path, "value"), kind.value_type),
        ]
    if not isinstance(kind, StructType):
        return []
    found = []
    for column in kind.fields:
        here = (*path, column.name)
        found += [twin_problem(here, kind, StructType()), *twins_within(here, column.field_type)]
    return list(dict.fromkeys(problem for problem in found if problem is not None))


def _named(parents: list[str], name: str) -> str:
    return ".".join((*parents, name))
