"""The catalog contract: one block of YAML, told to Spark and to PyIceberg alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic

from icestream.contracts.source import OptionsT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyiceberg.table import Table

    from icestream.contracts.check import CheckStep
    from icestream.contracts.options import Options


class Catalog(ABC, Generic[OptionsT]):
    """Where tables are found by name.

    Building a catalog touches nothing outside; `client` connects. The same `name` is used on both
    sides, since the SQL catalogs store it with each table.

    Args:
        name: the catalog's name in SQL and in the store itself.
        options: the catalog block of the file.
    """

    options_type: ClassVar[type[Options]]

    def __init__(self, name: str, options: OptionsT) -> None:
        self.name = name
        self.options = options

    @abstractmethod
    def identity(self) -> str:
        """Name the catalog for messages, free of secrets: `jdbc sqlite lake/catalog.db`."""

    @abstractmethod
    def jars(self) -> tuple[str, ...]:
        """Return the Maven coordinates that Spark must load, pinned in the jar lock."""

    @abstractmethod
    def spark_settings(self) -> dict[str, str]:
        """Return what follows `spark.sql.catalog.NAME.` in Spark's settings, secrets included."""

    @abstractmethod
    def pyiceberg_properties(self) -> dict[str, str]:
        """Return PyIceberg's properties for the same catalog, storage included."""

    @abstractmethod
    def client(self) -> PyIcebergCatalog:
        """Return the PyIceberg catalog, made on first use and then reused.

        Raises:
            UnreachableError: nobody answers.
            RefusedError: credentials or permissions were refused.
        """

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        """Return a table for reading, or None if there is none of that name."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self.client().load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def check(self) -> Iterator[CheckStep]:
        """Look whether the catalog can be used, step by step."""
        yield from ()

    def close(self) -> None:
        """Let go of the client's connections. May be called more than once."""
