"""Names that a table's columns must not have, though Iceberg takes them.

Two names that differ only in case are two columns to Iceberg and one to most engines: Spark refuses
every query that names one of them. The names of Iceberg's own metadata columns keep Spark from
reading the table at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.changes import UNSENT
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.types import IcebergType, StructType

    from icestream.schemas.changes import Path

DIFFER_IN_CASE = (
    "Most engines take such names for one. Give the stream's column another name with a `rename` "
    "transform; of two columns of the stream, leave one out with the source's `schema`."
)

# Iceberg's metadata columns, as far as they get in the way of a column at the top of a table. Spark
# cannot read a table with one; in other capitals, it cannot DELETE from it or MERGE into it. Inside
# a struct they are harmless, and `_change_type`, `_change_ordinal` and `_commit_snapshot_id` only
# keep Spark from making a changelog view.
RESERVED = frozenset(
    {
        "_deleted",
        "_file",
        "_last_updated_sequence_number",
        "_partition",
        "_pos",
        "_row_id",
        "_spec_id",
    }
)
OWN_PREFIX = "__icestream"
RENAME_RESERVED = (
    "Give the column another name with a `rename` transform, or leave it out with `drop`. In a "
    "mirror, rename the column in the source."
)


def reserved_problem(name: str) -> str | None:
    """Say why a table can have no column of this name at its top; None if it can."""
    if name.lower() in RESERVED:
        return f"column {name!r} has the name of a metadata column of Iceberg"
    if name == UNSENT or name.startswith(OWN_PREFIX):
        return f"column {name!r} has a name that icestream uses for columns of its own"
    return None


def refuse_reserved(names: Iterable[str]) -> None:
    """Refuse columns whose names are reserved.

    Raises:
        SchemaMismatchError: there are such columns.
    """
    problems = [problem for name in names if (problem := reserved_problem(name)) is not None]
    if problems:
        raise SchemaMismatchError("; ".join(problems), todo=RENAME_RESERVED)


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
    # Plans are made without PyIceberg, and look at reserved names.
    from pyiceberg.types import ListType, MapType, StructType

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
