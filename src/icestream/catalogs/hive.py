"""Catalog in a Hive metastore, with one address or several for failover."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from icestream.catalogs.base import ClientCatalog, resolve_warehouse
from icestream.contracts.catalog import Abilities
from icestream.contracts.faults import DEFAULT_PORTS, Fault, first_match, transport_faults
from icestream.contracts.options import LOCATION, Options
from icestream.errors import (
    ConnectorError,
    RefusedError,
    TransientError,
    UnreachableError,
)
from icestream.storage.blocks import StorageBlocks, as_uri, storage_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog as PyIcebergCatalog

    from icestream.contracts.catalog import ResultT
    from icestream.contracts.storage import Storage
    from icestream.errors import IcestreamError


# Stores report similar faults, and buckets and folders may have the metastore's name.
HIVE_PATTERN = re.compile(
    r"\bT(Transport|Application|Protocol)Exception|MetaException|hive\.metastore\.|iceberg\.hive|"
    r"^(InvalidObject|InvalidOperation|WaitingForLock)Exception: ",
    re.MULTILINE,
)
STORAGE_PATTERN = re.compile(r"AWS Error|services\.s3|StorageException")
FAULTS = (
    Fault(
        r"No FileSystem for scheme|UnsupportedFileSystemException|FileSystem\S* not found",
        ConnectorError,
        "the metastore does not support the storage that `hive.warehouse` names",
        "Add the store's Hadoop connector to the metastore, and its settings (for `s3://` also "
        "fs.s3.impl): it creates the folders of databases and tables.",
    ),
    Fault(
        r"AccessControlException|Permission denied|[Nn]ot authorized|AuthorizationException",
        RefusedError,
        "the metastore denies access",
        "Check this user's permissions in the metastore, and that the metastore's own user may "
        "write to `hive.warehouse`.",
    ),
    Fault(
        r"is not a valid object name|not a valid (table|database) name|InvalidObjectException",
        ConnectorError,
        "the metastore rejects the name of the namespace or table",
        "Use letters a to z, digits and underscores in `namespace` and `table`.",
    ),
    Fault(
        r"WaitingForLock|LockException|[Ww]aiting for lock|acquire the lock",
        TransientError,
        "another writer holds the table's lock in the metastore",
        "The commit is retried. A lock that remains belongs to a writer that died: `SHOW LOCKS` "
        "in Hive names it, and it expires after hive.txn.timeout.",
    ),
    *transport_faults(
        "the metastore",
        "`hive.uri`",
        no_answer=r"Could not connect to (any of|meta ?store)|Failed to connect to Hive Metastore",
    ),
    Fault(
        r"TTransportException|read 0 bytes|Broken pipe|Connection reset|[Tt]imed out",
        UnreachableError,
        "the metastore closed the connection or timed out",
        "Is the metastore healthy? Is the port in `hive.uri` that of its Thrift service? "
        "Kerberos and TLS are not supported.",
    ),
)


def explain(text: str, where: str) -> IcestreamError | None:
    """Return the error for a fault's text; None if it is not the metastore's."""
    if not HIVE_PATTERN.search(text) or STORAGE_PATTERN.search(text):
        return None
    return first_match(FAULTS, text, where)


class HiveSettings(Options):
    """Address of the metastore."""

    uri: str = Field(
        description="Thrift address, `thrift://HOST:9083`; several, comma-separated, are tried "
        "one after the other.",
    )
    warehouse: str | None = Field(
        None,
        description="Folder or URI under which tables are created; defaults to the bucket of the "
        "storage block.",
        json_schema_extra=LOCATION,
    )

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        return ",".join(_address(piece.strip()) for piece in uri.split(","))


class HiveCatalogOptions(StorageBlocks):
    """A Hive metastore."""

    type: Literal["hive"] = Field("hive", description="The kind of catalog.")
    hive: HiveSettings = Field(description="Address of the metastore.")


class HiveCatalog(ClientCatalog[HiveCatalogOptions]):
    """Iceberg's Hive catalog for Spark, PyIceberg's for everything else."""

    options_type = HiveCatalogOptions
    abilities = Abilities(case_sensitive=False)
    extra = "hive"
    packages = ("thrift",)

    def __init__(
        self, name: str, options: HiveCatalogOptions, storage: Storage | None = None
    ) -> None:
        storage = storage or options.configured_storage()
        warehouse = resolve_warehouse(
            options.hive.warehouse,
            storage,
            where=f"catalog {name!r} (hive {options.hive.uri})",
            block="hive",
        )
        self.warehouse = as_uri(warehouse)
        self.files = storage_for(self.warehouse, storage)
        super().__init__(name, options, self.files)

    def identity(self) -> str:
        return f"hive {self.options.hive.uri}"

    @property
    def address_key(self) -> str:
        return "hive.uri"

    def addresses(self) -> list[str]:
        return self.options.hive.uri.split(",")

    def storage_location(self) -> str:
        return self.warehouse

    def jars(self) -> tuple[str, ...]:
        # Spark includes a metastore client, and Iceberg's runtime the catalog.
        return self.files.jars()

    def spark_settings(self) -> dict[str, str]:
        return {
            "type": "hive",
            "uri": self.options.hive.uri,
            "warehouse": self.warehouse,
            # Each session has its own cache, and would not see the commits of others.
            "cache-enabled": "false",
            **self.files.spark_settings(),
        }

    def pyiceberg_properties(self) -> dict[str, str]:
        return {
            "type": "hive",
            "uri": self.options.hive.uri,
            "warehouse": self.warehouse,
            **self.files.pyiceberg_properties(),
        }

    def call(self, request: Callable[[], ResultT]) -> ResultT:
        return super().call(lambda: _retry_once(request))

    def faults(self) -> tuple[type[Exception], ...]:
        try:
            from thrift.Thrift import TException
        except ModuleNotFoundError:
            return super().faults()  # a missing package cannot have raised anything
        return *super().faults(), TException

    def explain(self, text: str, where: str) -> IcestreamError | None:
        return explain(text, where) or super().explain(text, where)

    def _load_client(self) -> PyIcebergCatalog:
        from icestream.catalogs.hive_client import MetastoreClient

        client = MetastoreClient(self.name, **self.pyiceberg_properties())
        client.ping()
        return client


def _retry_once(request: Callable[[], ResultT]) -> ResultT:
    """Send a request, and once more to another address if the connection breaks."""
    from thrift.transport.TTransport import TTransportException

    try:
        return request()
    except TTransportException as exc:
        if exc.type == TTransportException.NOT_OPEN:
            raise  # every address was tried
        return request()


def _address(uri: str) -> str:
    """Return an address with its port, which Java's client needs."""
    parts = urlsplit(uri)
    if parts.scheme != "thrift":
        raise ValueError("does not begin with thrift://; write thrift://HOST:9083")
    try:
        port = parts.port or DEFAULT_PORTS["thrift"]
    except ValueError:
        raise ValueError("has an invalid port") from None
    if not parts.hostname or "@" in parts.netloc or parts.path.strip("/"):
        raise ValueError("is not the address of a metastore; write thrift://HOST:9083")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"thrift://{host}:{port}"
