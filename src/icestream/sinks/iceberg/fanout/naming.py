"""The names of tables that rows or a source choose: which are valid, and which are reserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.contracts.identifiers import name_problem
from icestream.sinks.iceberg.properties import TOMBSTONES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.catalog import Abilities, Catalog
    from icestream.contracts.identifiers import Identifier
    from icestream.sinks.iceberg.options import IcebergOptions

# A folder beside the tables of a fan-out, where their rows are staged.
STAGING = "__icestream"


@dataclass(frozen=True)
class TableNaming:
    """Turns names that come from data into identifiers of tables. Used in tasks, too.

    Attributes:
        abilities: what the catalog makes of names.
        dead_letter: the dead-letter table of the sink.
    """

    abilities: Abilities
    dead_letter: Identifier | None = None

    @classmethod
    def of(cls, options: IcebergOptions, catalog: Catalog[Any]) -> TableNaming:
        """Return the rules of a sink."""
        dead = options.dead_letter_name()
        stored = catalog.abilities.stored_name
        return cls(catalog.abilities, None if dead is None else stored((*dead[0], dead[1])))

    def identifier(self, namespace: Sequence[str], table: str) -> Identifier:
        """Return the identifier that a namespace and a table's name stand for.

        Raises:
            ValueError: there can't be such a table; the message says why.
        """
        for part in (*namespace, table):
            problem = name_problem(part)
            if problem is not None:
                raise ValueError(problem)
        if len(namespace) > 1 and not self.abilities.nested_namespaces:
            raise ValueError("the catalog has no nested namespaces")
        identifier = self.abilities.stored_name((*namespace, table))
        if identifier == self.dead_letter:
            raise ValueError("it is the dead-letter table")
        if identifier[-1].endswith(TOMBSTONES):
            raise ValueError("such a table stores the deleted keys of another one")
        if identifier[-1] == STAGING:
            raise ValueError("rows are staged in a folder of that name")
        return identifier
