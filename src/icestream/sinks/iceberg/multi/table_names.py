"""Rules for table names that come from rows or from a source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from icestream.contracts.catalog import name_problem
from icestream.sinks.iceberg.properties import TOMBSTONES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.catalog import Abilities, Catalog, Identifier
    from icestream.sinks.iceberg.options import IcebergOptions


# The folder, next to the tables of a fan-out, in which their rows are staged.
STAGING = "__icestream"
COLUMN = re.compile(r"(?:\w+|`[^`]+`)(?:\.(?:\w+|`[^`]+`))*")
PART = re.compile(r"\w+|`[^`]+`")


def column_path(route_by: str) -> tuple[str, ...] | None:
    """Return the column that `route_by` names; None if it is an expression."""
    if COLUMN.fullmatch(route_by.strip()) is None:
        return None
    return tuple(part.strip("`") for part in PART.findall(route_by))


@dataclass(frozen=True)
class TableNameRules:
    """Turns names that come from data into table identifiers. Also used in tasks.

    Attributes:
        abilities: how the catalog stores names.
        namespace: the only namespace of tables besides those in `allowed`; None for any.
        allowed: patterns of further tables, `namespace.table`.
        dead_letter: the dead-letter table of the sink.
    """

    abilities: Abilities
    namespace: Identifier | None = None
    allowed: tuple[str, ...] = ()
    dead_letter: Identifier | None = None

    @classmethod
    def of(cls, options: IcebergOptions, catalog: Catalog[Any]) -> TableNameRules:
        """Return the rules of a sink."""
        dead = options.dead_letter_name()
        return cls(
            catalog.abilities,
            None if options.route_by is None else options.namespace,
            options.allowed_tables,
            None if dead is None else catalog.abilities.stored_name((*dead[0], dead[1])),
        )

    def is_listed(self, identifier: Identifier) -> bool:
        """Tell whether the file allows a table by name, whoever created it."""
        patterns = [self.abilities.stored_name(tuple(one.split("."))) for one in self.allowed]
        return any(
            len(pattern) == len(identifier) and all(map(fnmatchcase, identifier, pattern))
            for pattern in patterns
        )

    def allows(self, identifier: Identifier) -> bool:
        """Tell whether the file allows rows to name a table."""
        if self.namespace is None:
            return True
        namespace = self.abilities.stored_name(self.namespace)
        return identifier[:-1] == namespace or self.is_listed(identifier)

    def identifier(self, namespace: Sequence[str], table: str) -> Identifier:
        """Return the identifier that a namespace and a table's name stand for.

        Raises:
            ValueError: no row may name that table; the message is meant to follow the name.
        """
        for part in (*namespace, table):
            problem = name_problem(part)
            if problem is not None:
                raise ValueError(f"is not a valid table name: {problem}")
        if len(namespace) > 1 and not self.abilities.nested_namespaces:
            raise ValueError("is not a valid table name: the catalog has no nested namespaces")
        identifier = self.abilities.stored_name((*namespace, table))
        if identifier == self.dead_letter:
            raise ValueError("is the dead-letter table")
        if identifier[-1].endswith(TOMBSTONES):
            raise ValueError("is reserved for the deleted keys of another table")
        if identifier[-1] == STAGING:
            raise ValueError("is reserved for the folder in which rows are staged")
        if not self.allows(identifier):
            own = ".".join(self.abilities.stored_name(self.namespace or ()))
            raise ValueError(
                f"is outside of namespace {own!r}, and `allowed_tables` does not list it"
            )
        return identifier
