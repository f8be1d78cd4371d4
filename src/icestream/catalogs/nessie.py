"""Catalog in Nessie, by its own API: a branch holds all tables together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from icestream.catalogs import nessie_faults
from icestream.catalogs.served import ServedCatalog
from icestream.contracts.catalog import Abilities
from icestream.contracts.options import PLACE, Options
from icestream.errors import PlanError
from icestream.storage.blocks import StorageBlocks, storage_for
from icestream.storage.places import as_uri

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyIcebergCatalog

    from icestream.contracts.storage import Storage
    from icestream.errors import IcestreamError

API = "/api/v2"


class NessieSettings(Options):
    """Address and branch."""

    uri: str = Field(
        description="Address of the server, `http://HOST:19120/api/v2`; `/api/v2` may be left out."
    )
    branch: str = Field("main", min_length=1, description="Branch of the catalog.")
    warehouse: str | None = Field(
        None,
        description="Folder or URI below which tables are made; the bucket of the storage block "
        "where absent.",
        json_schema_extra=PLACE,
    )
    token: SecretStr | None = Field(None, description="Bearer token, where the server wants one.")

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        return _api_root(uri)


class NessieCatalogOptions(StorageBlocks):
    """Nessie, by its own API."""

    type: Literal["nessie"] = Field("nessie", description="The kind of catalog.")
    nessie: NessieSettings = Field(description="Address and branch.")


class NessieCatalog(ServedCatalog[NessieCatalogOptions]):
    """Iceberg's Nessie catalog for Spark, a client of our own for everything else."""

    options_type = NessieCatalogOptions
    abilities = Abilities(nested_namespaces=True, views=True, catalog_branches=True)
    extra = "all"
    address_key = "nessie.uri"

    def __init__(
        self, name: str, options: NessieCatalogOptions, storage: Storage | None = None
    ) -> None:
        storage = storage or options.given_storage()
        warehouse = options.nessie.warehouse or (storage.warehouse() if storage else None)
        if warehouse is None:
            raise PlanError(
                "no warehouse is given",
                where=f"catalog {name!r} (nessie {options.nessie.uri})",
                todo="Add e.g. `warehouse: s3://bucket/lake` to the block `nessie`, the folder or "
                "URI below which tables are made.",
            )
        self.warehouse = as_uri(warehouse)
        self.files = storage_for(self.warehouse, storage)
        super().__init__(name, options, self.files)

    def identity(self) -> str:
        told = self.options.nessie
        return f"nessie {told.uri.removesuffix(API)}, branch {told.branch}"

    def addresses(self) -> list[str]:
        return [self.options.nessie.uri]

    def place(self) -> str:
        return self.warehouse

    def jars(self) -> tuple[str, ...]:
        # Iceberg's runtime for Spark brings the catalog.
        return self.files.jars()

    def spark_settings(self) -> dict[str, str]:
        told = self.options.nessie
        settings = {
            "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
            "uri": told.uri,
            "ref": told.branch,
            "client-api-version": "2",
            "warehouse": self.warehouse,
            # Each session has a cache of its own, and would not see what another one committed.
            "cache-enabled": "false",
            **self.files.spark_settings(),
        }
        if told.token is not None:
            settings["authentication.type"] = "BEARER"
            settings["authentication.token"] = told.token.get_secret_value()
        return settings

    def pyiceberg_properties(self) -> dict[str, str]:
        told = self.options.nessie
        properties = {
            "py-catalog-impl": "icestream.catalogs.nessie_client.NessieClient",
            "uri": told.uri,
            "ref": told.branch,
            "warehouse": self.warehouse,
            **self.files.pyiceberg_properties(),
        }
        if told.token is not None:
            properties["token"] = told.token.get_secret_value()
        return properties

    def explain(self, said: str, where: str) -> IcestreamError | None:
        ours = nessie_faults.explain(said, where, branch=self.options.nessie.branch)
        return ours or super().explain(said, where)

    def _connect(self) -> PyIcebergCatalog:
        from icestream.catalogs.nessie_client import NessieClient

        client = NessieClient(self.name, **self.pyiceberg_properties())
        client.knock()
        return client


def _api_root(uri: str) -> str:
    """Return the root of the second version of Nessie's API."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is no address of a server; write e.g. http://HOST:19120/api/v2")
    if parts.username or parts.password or parts.query:
        raise ValueError("holds more than an address; give a token as `token`")
    root = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if "/iceberg" in parts.path:
        raise ValueError(
            "is Nessie's Iceberg REST address; use `type: rest` for that one, or end it in /api/v2"
        )
    for known in (API, "/api/v1", "/api"):
        root = root.removesuffix(known)
    return root + API
