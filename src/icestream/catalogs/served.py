"""A catalog that a server keeps: one client a process, and its faults in our words."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from icestream.contracts.catalog import Catalog
from icestream.contracts.faults import CheckStep, check_connection, exception_text
from icestream.contracts.secrets import without_secrets
from icestream.contracts.source import OptionsT
from icestream.errors import ConnectorError, DependencyError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyiceberg.table import Table

AnswerT = TypeVar("AnswerT")


class ServedCatalog(Catalog[OptionsT]):
    """Tables by name behind a server, asked by PyIceberg's client for that kind of server.

    A subclass says where the server is (`addresses`, with the key of the file that names it), how
    its faults are understood (`explain`), and which extra its client comes with.
    """

    extra: str
    _client: PyIcebergCatalog | None = None

    @abstractmethod
    def addresses(self) -> list[str]:
        """Return where the server may be: any of them will do; none if a library knows."""

    @property
    @abstractmethod
    def address_key(self) -> str:
        """The key of the file that holds the address."""

    def place(self) -> str | None:
        """Return the URI below which tables are made; None if only the server knows."""
        return None

    @property
    def where(self) -> str:
        return f"catalog {self.name!r} ({self.identity()})"

    def client(self) -> PyIcebergCatalog:
        with self._connecting:
            if self._client is None:
                self._client = self.asked(self._connect)
            return self._client

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        return self.asked(lambda: self._find_table(identifier))

    def has_namespace(self, namespace: tuple[str, ...]) -> bool:
        return self.asked(lambda: super(ServedCatalog, self).has_namespace(namespace))

    def asked(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """Return an answer of the server; a fault is raised in our words, free of secrets."""
        from pyiceberg.exceptions import NotInstalledError

        try:
            return ask()
        except IcestreamError:
            raise
        except (ModuleNotFoundError, NotInstalledError) as exc:
            # PyIceberg wraps the one that names the package.
            lacking = exc if isinstance(exc, ModuleNotFoundError) else exc.__cause__
            raise DependencyError(
                f"needs the package {getattr(lacking, 'name', None) or self.extra}, which is not "
                "installed",
                where=self.where,
                todo=f"pip install 'icestream[{self.extra}]'",
            ) from exc
        except self.faults() as exc:
            # The fault's own text may quote a secret, so it is not shown as a cause.
            raise self.explained(exc) from None

    def faults(self) -> tuple[type[Exception], ...]:
        """Return the classes of everything that the client raises when the server refuses."""
        from pyiceberg.exceptions import RESTError

        return OSError, RESTError, ValueError, *self._faults_of_store()

    def explained(self, fault: Exception) -> IcestreamError:
        """Return a fault in our words, or as the server told it where we have none."""
        said = exception_text(fault)
        shown = self.hidden(said.splitlines()[0])
        return self.explain(said, self.where) or ConnectorError(
            f"the catalog answered: {shown}",
            where=self.where,
            todo="Look at the catalog's block, and at the server's log.",
        )

    def hidden(self, text: str) -> str:
        """Return a text with the secrets of the catalog and of its store put out of sight."""
        text = without_secrets(text, self.options)
        return text if self.storage is None else self.storage.hidden(text)

    def check(self) -> Iterator[CheckStep]:
        if self.addresses():
            yield CheckStep("reach catalog", self._reach)
        yield CheckStep("sign in", self._sign_in)
        place = self.place()
        if self.storage is not None and place is not None:
            yield from self.storage.check(place)

    def checks_storage(self) -> bool:
        return self.storage is not None and self.place() is not None

    def close(self) -> None:
        with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            close = getattr(client, "close", None)
            if close is not None:
                close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _find_table(self, identifier: tuple[str, ...]) -> Table | None:
        from pyiceberg.exceptions import (
            NoSuchIcebergTableError,
            NoSuchNamespaceError,
            NoSuchPropertyException,
            NoSuchTableError,
        )

        try:
            return self.client().load_table(identifier)
        except (NoSuchIcebergTableError, NoSuchPropertyException):
            raise ConnectorError(
                f"{'.'.join(identifier)!r} is a table of another kind, not of Iceberg's",
                where=self.where,
                todo="Choose another `table`, or turn it into an Iceberg table first, by Spark's "
                "procedure `migrate`.",
            ) from None
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _faults_of_store(self) -> tuple[type[Exception], ...]:
        try:
            return () if self.storage is None else self.storage.faults()
        except ModuleNotFoundError:
            return ()  # what is missing cannot have raised anything

    def _connect(self) -> PyIcebergCatalog:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.name, **self.pyiceberg_properties())

    def _reach(self) -> str:
        """Try the addresses in order, as the clients do; the last one's fault is told."""
        *others, last = self.addresses()
        for address in others:
            try:
                return check_connection(address, self.where, self.address_key)
            except ConnectorError:  # noqa: PERF203 - a handful of addresses
                continue
        return check_connection(last, self.where, self.address_key)

    def _sign_in(self) -> str:
        namespaces = self.asked(lambda: self.client().list_namespaces())
        return f"{len(namespaces)} namespace{'' if len(namespaces) == 1 else 's'}"
