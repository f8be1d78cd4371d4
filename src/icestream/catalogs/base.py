"""The base of every catalog: one PyIceberg client per process, and its faults as errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.catalog import Catalog, ResultT
from icestream.contracts.faults import CheckStep, check_connection, exception_text
from icestream.contracts.secrets import without_secrets
from icestream.contracts.source import OptionsT
from icestream.errors import ConnectorError, DependencyError, IcestreamError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyiceberg.table import Table

    from icestream.contracts.storage import Storage


class ClientCatalog(Catalog[OptionsT]):
    """A catalog that is reached through PyIceberg's client for its kind.

    A subclass names the server's `addresses` and the key of the file that holds them, explains the
    client's faults (`explain`), and names the packages of the client and the extra that installs
    them. A catalog without a server of its own overrides `check`.
    """

    extra: str
    packages: tuple[str, ...] = ()
    _client: PyIcebergCatalog | None = None

    def addresses(self) -> list[str]:
        """Return the server's alternative addresses; none if only the client library knows them."""
        return []

    @property
    def address_key(self) -> str:
        """The key of the file that holds the address."""
        return ""

    def storage_location(self) -> str | None:
        """Return the URI under which tables are created; None if only the server knows."""
        return None

    @property
    def where(self) -> str:
        """The catalog, for messages."""
        return f"catalog {self.name!r} ({self.identity()})"

    def client(self) -> PyIcebergCatalog:
        with self._client_lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def required_packages(self) -> dict[str, str]:
        ours = dict.fromkeys(self.packages, f"icestream[{self.extra}]")
        return {**ours, **super().required_packages()}

    def find_table(self, identifier: tuple[str, ...]) -> Table | None:
        return self.call(lambda: self._load_table(identifier))

    def has_namespace(self, namespace: tuple[str, ...]) -> bool:
        return self.call(lambda: super(ClientCatalog, self).has_namespace(namespace))

    def call(self, request: Callable[[], ResultT]) -> ResultT:
        """Return the result of a request; raise faults as icestream errors, free of secrets."""
        from pyiceberg.exceptions import NotInstalledError

        try:
            return request()
        except IcestreamError:
            raise
        except (ModuleNotFoundError, NotInstalledError) as exc:
            raise self._dependency_error(exc) from exc
        except self.faults() as exc:
            # The fault's own text may quote a secret, so it is not shown as a cause.
            raise self.to_error(exc) from None

    def faults(self) -> tuple[type[Exception], ...]:
        """Return the exception classes that the client raises when a request fails."""
        from pyiceberg.exceptions import RESTError

        return OSError, RESTError, ValueError, *self._storage_faults()

    def to_error(self, fault: Exception) -> IcestreamError:
        """Return the error for a fault; one that quotes the server if the fault is unknown."""
        text = exception_text(fault)
        first_line = self.mask_secrets(text.splitlines()[0])
        return self.explain(text, self.where) or ConnectorError(
            f"the catalog answered: {first_line}",
            where=self.where,
            todo="Check the catalog's block, and the server's log.",
        )

    def mask_secrets(self, text: str) -> str:
        """Return a text with the secrets of the catalog and of its store masked."""
        text = without_secrets(text, self.options)
        return text if self.storage is None else self.storage.mask_secrets(text)

    def check(self) -> Iterator[CheckStep]:
        if self.addresses():
            yield CheckStep("reach catalog", self._check_addresses)
        yield CheckStep("sign in", self._sign_in)
        location = self.storage_location()
        if self.storage is not None and location is not None:
            yield from self.storage.check(location)

    def checks_storage(self) -> bool:
        return self.storage is not None and self.storage_location() is not None

    def close(self) -> None:
        with self._client_lock:
            client, self._client = self._client, None
        if client is not None:
            self._close_client(client)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connect(self) -> PyIcebergCatalog:
        return self.call(self._load_client)

    def _load_client(self) -> PyIcebergCatalog:
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.name, **self.pyiceberg_properties())

    def _close_client(self, client: Any) -> None:
        close = getattr(client, "close", None)
        if close is not None:
            close()

    def _load_table(self, identifier: tuple[str, ...]) -> Table | None:
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
                f"{'.'.join(identifier)!r} is not an Iceberg table",
                where=self.where,
                todo="Choose another `table`, or convert this one with Spark's procedure "
                "`migrate` first.",
            ) from None
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _dependency_error(self, fault: Exception) -> DependencyError:
        # PyIceberg wraps the exception that names the package.
        missing = fault if isinstance(fault, ModuleNotFoundError) else fault.__cause__
        return DependencyError(
            f"needs the package {getattr(missing, 'name', None) or self.extra}, which is not "
            "installed",
            where=self.where,
            todo=f"pip install 'icestream[{self.extra}]'",
        )

    def _storage_faults(self) -> tuple[type[Exception], ...]:
        try:
            return () if self.storage is None else self.storage.faults()
        except ModuleNotFoundError:
            return ()  # a package that is missing cannot have raised anything

    def _check_addresses(self) -> str:
        """Try the addresses in order, as the clients do; report the fault of the last one."""
        *others, last = self.addresses()
        for address in others:
            try:
                return check_connection(address, self.where, f"`{self.address_key}`")
            except ConnectorError:  # noqa: PERF203 - a handful of addresses
                continue
        return check_connection(last, self.where, f"`{self.address_key}`")

    def _sign_in(self) -> str:
        return count_namespaces(len(self.call(lambda: self.client().list_namespaces())))


def resolve_warehouse(
    configured: str | None,
    storage: Storage | None,
    *,
    where: str,
    block: str = "",
    default: str | None = None,
) -> str:
    """Return the folder or URI under which a catalog creates tables.

    Args:
        configured: the value of the option.
        storage: the catalog's storage, which may name a bucket.
        where: the catalog, for the message.
        block: the block that has the option `warehouse`; empty for the catalog's own.
        default: what to use if neither is set.

    Raises:
        PlanError: no warehouse is set, and there is no default.
    """
    warehouse = configured or (storage.warehouse() if storage else None) or default
    if warehouse is None:
        in_block = f" to the block `{block}`" if block else ""
        raise PlanError(
            "no warehouse is set",
            where=where,
            todo=f"Add e.g. `warehouse: s3://bucket/lake`{in_block}, the folder or URI under which "
            "tables are created.",
        )
    return warehouse


def count_namespaces(count: int) -> str:
    """Return the number of namespaces as text: `1 namespace`."""
    return f"{count} namespace{'' if count == 1 else 's'}"
