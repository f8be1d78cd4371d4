"""The storage contract: where the files of tables lie, told to Spark and to PyIceberg alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from icestream.contracts.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.faults import CheckStep
    from icestream.errors import IcestreamError


class Storage(ABC):
    """A store for files. Building one touches nothing outside.

    Attributes:
        kind: its name in messages and in the file, such as `s3`.
        schemes: the schemes of locations that lie in it.
    """

    kind: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def identity(self) -> str:
        """Name the store for messages, free of secrets: `s3 http://127.0.0.1:9000`."""

    @abstractmethod
    def jars(self) -> tuple[str, ...]:
        """Return the Maven coordinates that Spark must load, pinned in the jar lock."""

    @abstractmethod
    def spark_settings(self) -> dict[str, str]:
        """Return what a catalog that keeps its tables here adds to its Spark settings."""

    @abstractmethod
    def pyiceberg_properties(self) -> dict[str, str]:
        """Return PyIceberg's properties for the same store, secrets included.

        Asked for each batch: credentials that are looked up elsewhere are looked up anew.
        """

    @abstractmethod
    def check(self, warehouse: str) -> Iterator[CheckStep]:
        """Look whether files below a place can be listed, written, read and removed."""

    def warehouse(self) -> str | None:
        """Return the place of tables that the block itself names, by its bucket or container."""
        return None

    def environment(self) -> dict[str, str]:
        """Return variables that libraries of this store read from the process's environment."""
        return {}

    def chain_variables(self) -> tuple[str, ...]:
        """Return variables that would change as whom it is asked: it has no keys of its own."""
        return ()

    def covers(self, location: str) -> bool:
        """Tell whether a location lies in this kind of store."""
        scheme, colon, _ = location.partition("://")
        return (scheme.lower() if colon else "file") in self.schemes

    def faults(self) -> tuple[type[Exception], ...]:
        """Return the classes of everything that PyIceberg's client of this store raises."""
        # Arrow has a class for what it cannot read or is told wrongly, and it is a ValueError.
        return OSError, ValueError

    def hidden(self, text: str) -> str:
        """Return a text with the secrets of the store's block put out of sight."""
        options = getattr(self, "options", None)
        return text if options is None else without_secrets(text, options)

    def explain(self, said: str, where: str) -> IcestreamError | None:  # noqa: ARG002
        """Turn a fault of the store into an error of ours; None if it is not known.

        Args:
            said: the fault and its causes, as `contracts.faults.told` puts them.
            where: the place, for the message.
        """
        return None
