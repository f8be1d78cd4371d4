"""The columns of rows, as far as they are known before a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from icestream.contracts.registry import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa


class ColumnType(NamedTuple):
    """A column's name and its type; None for a type that only Spark can tell."""

    name: str
    type: pa.DataType | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of rows, in order.

    Attributes:
        known: the columns that the rows certainly have.
        is_complete: whether the rows have no others. If not, no name can be called wrong.
        removed: columns that earlier steps removed or renamed. Spark still finds them in a filter.
    """

    known: tuple[ColumnType, ...] = ()
    is_complete: bool = True
    removed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, schema: Iterable[pa.Field], *, is_complete: bool = True) -> Columns:
        """Return the columns of an Arrow schema."""
        return cls(tuple(ColumnType(field.name, field.type) for field in schema), is_complete)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.known]

    def replace(self, known: Iterable[ColumnType], *, is_complete: bool | None = None) -> Columns:
        """Return the columns that a step makes of these, with those that it removes.

        Args:
            known: the new columns.
            is_complete: whether they are all; as before if absent.
        """
        new = tuple(known)
        names = {column.name.lower() for column in new}
        before = {*(name.lower() for name in self.names), *self.removed}
        complete = self.is_complete if is_complete is None else is_complete
        return Columns(new, complete, frozenset(before - names))

    def find(self, name: str) -> ColumnType | None:
        """Return a column by its name in any case, as Spark SQL does; None if it is not known."""
        named = [column for column in self.known if column.name.lower() == name.lower()]
        exact = [column for column in named if column.name == name]
        return next(iter(exact or named), None)

    def lacks(self, name: str) -> bool:
        """Tell whether the rows certainly have no column of this name, in any case."""
        return self.is_complete and self.find(name) is None


UNKNOWN_COLUMNS = Columns(is_complete=False)


@dataclass(frozen=True)
class OptionProblem:
    """Something that a run would refuse, and the option that causes it.

    Attributes:
        path: the option, and the item or key in it, such as `("columns", 1)`.
        what: what is wrong, as in an error.
        todo: what to do about it.
        is_key: whether the key of a mapping is wrong, rather than its value.
    """

    path: tuple[str | int, ...]
    what: str
    todo: str = ""
    is_key: bool = False


Report: TypeAlias = "Callable[[OptionProblem], None]"


def unknown_column(name: str, names: Iterable[str]) -> tuple[str, str]:
    """Return what is wrong with a column that rows do not have, and what to do."""
    listed = list(names)
    hint = did_you_mean(name, listed)
    return f"the rows have no column {name!r}", f"{hint}They have: {', '.join(listed)}."


def report_unknown(
    columns: Columns,
    names: Iterable[str],
    report: Report,
    *path: str | int,
) -> None:
    """Report the names in a list of columns, or the keys of a mapping, that rows do not have.

    Args:
        columns: the columns of the rows.
        names: the names.
        report: takes the problems.
        path: the option that lists the names.
    """
    is_mapping = isinstance(names, dict)
    for number, name in enumerate(names):
        if columns.lacks(name):
            what, todo = unknown_column(name, columns.names)
            place = (*path, name if is_mapping else number)
            report(OptionProblem(place, what, todo, is_key=is_mapping))
