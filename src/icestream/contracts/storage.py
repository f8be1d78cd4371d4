"""The storage contract: where table files are stored, configured alike for Spark and PyIceberg."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from icestream.contracts import registry
from icestream.contracts.secrets import without_secrets
from icestream.errors import DependencyError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.faults import CheckStep
    from icestream.contracts.options import Options
    from icestream.errors import IcestreamError


class Storage(ABC):
    """A store for files, registered as an entry point of `icestream.storage`.

    Building one touches nothing outside. It is built from its options, or without an argument if it
    has no `options_type`. Every configuration loads the modules of all stores, since their blocks
    are part of the file's schema: import client libraries where they are used.

    Attributes:
        kind: its name in messages and of its block in the file, such as `s3`; the name of its
            entry point.
        schemes: the schemes of locations that lie in it, the usual one first.
        options_type: the options of its block; None for a store that needs no block.
        description: the block in a few words, for the docs and for editors.
        bucket_option: the option of its block that names a bucket, if locations begin with one.
        missing_jars: a regular expression for what Java says when the store's jars are not loaded.
        derived_from: the location that the store was chosen by; None for one that the file has a
            block for.
    """

    kind: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]
    options_type: ClassVar[type[Options] | None] = None
    description: ClassVar[str] = ""
    bucket_option: ClassVar[str | None] = None
    missing_jars: ClassVar[str | None] = None
    derived_from: str | None = None

    @classmethod
    def from_options(cls, options: Options | None = None) -> Storage:
        """Build the store; without options, credentials come from the store's default chain."""
        kind: Any = cls
        if cls.options_type is None:
            built: Storage = kind()
        else:
            built = kind(cls.options_type.model_validate({}) if options is None else options)
        return built

    @classmethod
    def normalize(cls, location: str) -> str:
        """Return a location in the spelling that Spark and PyIceberg both understand."""
        return location.rstrip("/")

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

        Called for each batch, so that credentials from elsewhere are looked up again.
        """

    @abstractmethod
    def check(self, warehouse: str) -> Iterator[CheckStep]:
        """Check that files below a location can be listed, written, read and removed."""

    def warehouse(self) -> str | None:
        """Return the warehouse location that the block's bucket or container implies, if any."""
        return None

    def required_packages(self) -> dict[str, str]:
        """Return what to install for each package that Python needs, by the name to import."""
        return {}

    def environment(self) -> dict[str, str]:
        """Return the environment variables to set for the client libraries of this store."""
        return {}

    def chain_variables(self) -> tuple[str, ...]:
        """Return the variables that choose the credentials if the options hold none."""
        return ()

    def covers(self, location: str) -> bool:
        """Tell whether a location lies in this kind of store."""
        scheme, colon, _ = location.partition("://")
        return (scheme.lower() if colon else "file") in self.schemes

    def faults(self) -> tuple[type[Exception], ...]:
        """Return the classes of everything that PyIceberg's client of this store raises."""
        # Arrow raises a ValueError for invalid data and arguments.
        return OSError, ValueError

    def mask_secrets(self, text: str) -> str:
        """Return a text with the secrets of the store's options masked."""
        options = getattr(self, "options", None)
        return text if options is None else without_secrets(text, options)

    def explain(self, text: str, where: str) -> IcestreamError | None:  # noqa: ARG002
        """Turn a fault of the store into an icestream error; None if it is unknown.

        Args:
            text: the fault and its causes, from `contracts.faults.exception_text`.
            where: the location, for the message.
        """
        return None


@cache
def installed_stores() -> dict[str, type[Storage]]:
    """Return the stores that are installed and complete, by the names of their blocks."""
    stores = {}
    for name in registry.names("storage"):
        # A store that lacks a package is reported when a configuration uses it.
        with suppress(DependencyError):
            stores[name] = registry.find("storage", name)
    return stores


def store_of_scheme(scheme: str) -> type[Storage] | None:
    """Return the store of locations with a scheme; None if none is installed."""
    for store in installed_stores().values():
        if scheme.lower() in store.schemes:
            return store
    return None


def store_at(location: str) -> type[Storage]:
    """Return the store that a location lies in; a plain path lies in the local one.

    Raises:
        PlanError: no store for its scheme is installed, or it is not a valid address.
    """
    try:
        scheme = urlsplit(location).scheme
    except ValueError as exc:
        raise PlanError(f"{location!r} is not a valid address: {exc}") from exc
    # One letter is a drive of Windows.
    store = store_of_scheme(scheme if len(scheme) > 1 else "file")
    if store is None:
        *others, last = [
            f"{other.schemes[0]}://"
            for other in installed_stores().values()
            if other.options_type is not None
        ]
        raise PlanError(
            f"the warehouse {location!r} lies at {scheme}:, which is not supported",
            todo=f"Name a folder, or an address that begins with {', '.join(others)} or {last}.",
        )
    return store
