"""Names that a table's columns must not have, although Iceberg accepts them.

Two names that differ only in case are two columns to Iceberg and one to most engines: Spark refuses
every query that names one of them. A column with the name of an Iceberg metadata column keeps Spark
from reading the table at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyiceberg.types import IcebergType, StructType

    from icestream.schemas.changes import Path

DIFFER_IN_CASE = (
    "Most engines treat such names as one column. Rename the stream's column with a `rename` "
    "transform; if both columns are in the stream, leave one out with the source's `schema`."
)

# The Iceberg metadata columns that conflict with a top-level column. Spark cannot read a table with
# such a column; if only the case differs, it cannot DELETE from it or MERGE into it. Inside a
# struct they are harmless, and `_change_type`, `_change_ordinal` and `_commit_snapshot_id` only
# keep Spark from creating a changelog view.
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
    "Rename the column with a `rename` transform, or leave it out with `drop`. In a mirror, rename "
    "it in the source."
)

RENAME_CLASH = (
    "Rename one of the columns with a `rename` transform, or leave one out with the source's "
    "`schema`."
)


def reserved_problem(name: str) -> str | None:
    """Return why a table can't have a top-level column of this name; None if it can."""
    if name.lower() in RESERVED:
        return f"column {name!r} has the name of an Iceberg metadata column"
    if name == UNCHANGED_COLUMNS or name.startswith(OWN_PREFIX):
        return f"column {name!r} has a name that icestream reserves for its own columns"
    return None


def refuse_reserved(names: Iterable[str]) -> None:
    """Refuse columns with reserved names.

    Raises:
        SchemaMismatchError: a column has a reserved name.
    """
    problems = [problem for name in names if (problem := reserved_problem(name)) is not None]
    if problems:
        raise SchemaMismatchError("; ".join(problems), todo=RENAME_RESERVED)


class ColumnNames:
    """The names of columns at all depths, which new columns must not clash with.

    Args:
        columns: existing columns, whether they clash or not.
        ignores_case: whether names that differ only in case clash.
    """

    def __init__(self, columns: Iterable[pa.Field] = (), *, ignores_case: bool = True) -> None:
        self._ignores_case = ignores_case
        self._taken: dict[tuple[str, ...], Path] = {}
        self._existing: set[Path] = set()
        for column in columns:
            self._take_all((column.name,), column.type)

    def _problem(self, path: Path) -> str | None:
        """Return why a column can't have its name; None if it can."""
        if path in self._existing:
            return None
        if not path[-1]:
            inside = f" of column {'.'.join(path[:-1])!r}" if path[1:] else ""
            return f"a field{inside} has no name"
        for key in self._keys(path):
            other = self._taken.get(key, path)
            if other != path:
                one, two = f"column {'.'.join(path)!r}", f"column {'.'.join(other)!r}"
                names = " and ".join(" -> ".join(map(repr, parts)) for parts in (path, other))
                return {
                    "case": f"{one} differs from {two} only in case",
                    "file": f"{one} and {two} have the same name in data files",
                    "path": f"columns {names} have the same full name",
                }[key[0]]
        return None

    def without_clashes(
        self, path: Path, kind: pa.DataType, problems: dict[Path, str]
    ) -> pa.DataType | None:
        """Take the names inside a new column, and return its type without those that clash.

        Structs and lists of structs lose the members that clash; a map is left out as a whole.
        None if nothing is left.

        Args:
            path: the column.
            kind: its type.
            problems: gains the paths that are left out, and why.
        """
        import pyarrow as pa

        children = _children(kind)
        if not children:
            return kind
        is_list, is_struct = pa.types.is_list(kind), pa.types.is_struct(kind)
        loses_members = is_list or is_struct
        before = self._taken if loses_members else dict(self._taken)
        problems_inside: dict[Path, str] = {}
        kept = {}
        for name, inner in children:
            here = (*path, name)
            problem = self._problem(here)
            if problem is not None:
                problems_inside[here] = problem
            elif (part := self.without_clashes(here, inner, problems_inside)) is not None:
                kept[name] = part
                # Only now: a column of which nothing is left takes no name.
                self._taken.update(dict.fromkeys(self._keys(here), here))
        if problems_inside and not loses_members:
            self._taken = before
            problems[path] = next(iter(problems_inside.values()))
            return None
        problems.update(problems_inside)
        if not kept:
            return None
        if is_list:
            return pa.list_(kind.value_field.with_type(kept["element"]))
        if is_struct:
            return pa.struct([m.with_type(kept[m.name]) for m in kind if m.name in kept])
        return kind

    def _take_all(self, path: Path, kind: pa.DataType) -> None:
        self._existing.add(path)
        for key in self._keys(path):
            self._taken.setdefault(key, path)
        for name, inner in _children(kind):
            self._take_all((*path, name), inner)

    def _keys(self, path: Path) -> list[tuple[str, ...]]:
        from pyiceberg.schema import make_compatible_name

        *parents, name = path
        keys = [("file", *parents, make_compatible_name(name or "_")), ("path", ".".join(path))]
        return [("case", *parents, name.lower()), *keys] if self._ignores_case else keys


def _children(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the types inside a type, with the names that Iceberg gives them."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return [(member.name, member.type) for member in kind]
    if pa.types.is_map(kind):
        return [("key", kind.key_type), ("value", kind.item_type)]
    list_checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return [("element", kind.value_type)] if any(check(kind) for check in list_checks) else []


def refuse_clashes(columns: Iterable[pa.Field]) -> None:
    """Refuse columns whose names clash in PyIceberg or in Parquet files.

    Raises:
        SchemaMismatchError: there are such columns.
    """
    import pyarrow as pa

    problems: dict[Path, str] = {}
    ColumnNames(ignores_case=False).without_clashes((), pa.struct(list(columns)), problems)
    if problems:
        raise SchemaMismatchError("; ".join(problems.values()), todo=RENAME_CLASH)


def case_clash(path: Path, stream: StructType, table: StructType) -> str | None:
    """Return which column a new one differs from only in case; None if there is none.

    Args:
        path: the new column.
        stream: the other columns of the stream.
        table: the columns of the table there.
    """
    *parents, name = path
    low = name.lower()
    for column in stream.fields:
        if column.name.lower() == low and column.name != name:
            one, other = sorted((_full_name(parents, name), _full_name(parents, column.name)))
            return f"columns {one!r} and {other!r} of the stream differ only in case"
    for column in table.fields:
        if column.name.lower() == low:
            return (
                f"column {_full_name(parents, name)!r} of the stream and column "
                f"{_full_name(parents, column.name)!r} of the table differ only in case"
            )
    return None


def case_clashes_within(path: Path, kind: IcebergType) -> list[str]:
    """Return which members of a type, at any depth, differ only in case."""
    # The planner imports this module for reserved names, without PyIceberg.
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, ListType):
        return case_clashes_within((*path, "element"), kind.element_type)
    if isinstance(kind, MapType):
        return [
            *case_clashes_within((*path, "key"), kind.key_type),
            *case_clashes_within((*path, "value"), kind.value_type),
        ]
    if not isinstance(kind, StructType):
        return []
    clashes = []
    for column in kind.fields:
        here = (*path, column.name)
        clashes.append(case_clash(here, kind, StructType()))
        clashes += case_clashes_within(here, column.field_type)
    return list(dict.fromkeys(clash for clash in clashes if clash is not None))


def _full_name(parents: list[str], name: str) -> str:
    return ".".join((*parents, name))
