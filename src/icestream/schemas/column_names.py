"""Names that a table's columns must not have, though Iceberg takes them.

Two names that differ only in case are two columns to Iceberg and one to most engines: Spark refuses
every query that names one of them. The names of Iceberg's own metadata columns keep Spark from
reading the table at all.
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

RENAME_CLASH = (
    "Give one of the columns another name with a `rename` transform, or leave one out with the "
    "source's `schema`."
)


def reserved_problem(name: str) -> str | None:
    """Say why a table can have no column of this name at its top; None if it can."""
    if name.lower() in RESERVED:
        return f"column {name!r} has the name of a metadata column of Iceberg"
    if name == UNCHANGED_COLUMNS or name.startswith(OWN_PREFIX):
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


class ColumnNames:
    """The names of columns at all depths, which new columns must not clash with.

    Args:
        columns: columns that are there already, whether they clash or not.
        ignores_case: whether names that differ only in case clash.
    """

    def __init__(self, columns: Iterable[pa.Field] = (), *, ignores_case: bool = True) -> None:
        self._ignores_case = ignores_case
        self._taken: dict[tuple[str, ...], Path] = {}
        self._known: set[Path] = set()
        for column in columns:
            self._take_all((column.name,), column.type)

    def _problem(self, path: Path) -> str | None:
        """Say why the name of a column can't be taken; None if it can."""
        if path in self._known:
            return None
        if not path[-1]:
            inside = f" of column {'.'.join(path[:-1])!r}" if path[1:] else ""
            return f"a field{inside} has no name"
        for key in self._keys(path):
            other = self._taken.get(key, path)
            if other != path:
                one, two = (f"column {'.'.join(each)!r}" for each in (path, other))
                names = " and ".join(" -> ".join(map(repr, each)) for each in (path, other))
                return {
                    "case": f"{one} differs from {two} only in case",
                    "file": f"{one} and {two} have the same name in data files",
                    "path": f"columns {names} have the same full name",
                }[key[0]]
        return None

    def without_clashes(
        self, path: Path, kind: pa.DataType, problems: dict[Path, str]
    ) -> pa.DataType | None:
        """Take the names of a new column and its members, and return its type without those taken.

        Structs and lists of them lose the members whose names are taken; a map is left out as a
        whole. None if nothing is left.

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
        found: dict[Path, str] = {}
        left = {}
        for name, inner in children:
            here = (*path, name)
            problem = self._problem(here)
            if problem is not None:
                found[here] = problem
            elif (part := self.without_clashes(here, inner, found)) is not None:
                left[name] = part
                # Not before: a column of which nothing is left takes no name.
                self._taken.update(dict.fromkeys(self._keys(here), here))
        if found and not loses_members:
            self._taken = before
            problems[path] = next(iter(found.values()))
            return None
        problems.update(found)
        if not left:
            return None
        if is_list:
            return pa.list_(kind.value_field.with_type(left["element"]))
        if is_struct:
            return pa.struct([m.with_type(left[m.name]) for m in kind if m.name in left])
        return kind

    def _take_all(self, path: Path, kind: pa.DataType) -> None:
        self._known.add(path)
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
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return [("element", kind.value_type)] if any(each(kind) for each in lists) else []


def refuse_clashes(columns: Iterable[pa.Field]) -> None:
    """Refuse columns whose names PyIceberg cannot tell apart, or Parquet files cannot.

    Raises:
        SchemaMismatchError: there are such columns.
    """
    import pyarrow as pa

    problems: dict[Path, str] = {}
    ColumnNames(ignores_case=False).without_clashes((), pa.struct(list(columns)), problems)
    if problems:
        raise SchemaMismatchError("; ".join(problems.values()), todo=RENAME_CLASH)


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
            one, other = sorted(_full_name(parents, each) for each in (name, column.name))
            return f"columns {one!r} and {other!r} of the stream differ only in case"
    for column in table.fields:
        if column.name.lower() == low:
            return (
                f"column {_full_name(parents, name)!r} of the stream and column "
                f"{_full_name(parents, column.name)!r} of the table differ only in case"
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


def _full_name(parents: list[str], name: str) -> str:
    return ".".join((*parents, name))
