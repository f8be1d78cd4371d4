"""Catalog in Nessie, through its own API: a branch versions all tables together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from icestream.catalogs.base import ClientCatalog, resolve_warehouse
from icestream.contracts.catalog import Abilities
from icestream.contracts.faults import Fault, first_match, transport_faults
from icestream.contracts.options import LOCATION, Options
from icestream.errors import (
    ConnectorError,
    RefusedError,
    TransientError,
)
from icestream.storage.blocks import StorageBlocks, as_uri, storage_for

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyIcebergCatalog

    from icestream.contracts.storage import Storage
    from icestream.errors import IcestreamError


# Stores report similar faults, and buckets and folders may have the server's name.
NESSIE_PATTERN = re.compile(
    r"\bNessie(:| answered| ref )|NessieApi|projectnessie|iceberg\.nessie|with url: \S*/api/v\d/"
)
STORAGE_PATTERN = re.compile(r"AWS Error|services\.s3|StorageException")
NO_BRANCH_PATTERN = re.compile(
    r"REFERENCE_NOT_FOUND|NessieReferenceNotFound|Named reference .{1,200} not found"
    r"|Nessie ref .{1,200} does not exist"
)
FAULTS = (
    Fault(
        r"answered 401|Unauthorized|NessieNotAuthorized|HTTP.401|status code:? 401",
        RefusedError,
        "Nessie rejects the token, or requires one",
        "Check `nessie.token`, and whether it has expired.",
    ),
    Fault(
        r"answered 403|Forbidden|ACCESS_CHECK|HTTP.403|status code:? 403",
        RefusedError,
        "Nessie denies access",
        "Grant the user read and commit on `nessie.branch`.",
    ),
    Fault(
        r"answered 404|Not Found|no JSON|JsonParseException|Unexpected character",
        ConnectorError,
        "the server at that path is not Nessie's API",
        "Check `nessie.uri`; it is usually `http://HOST:19120/api/v2`.",
    ),
    Fault(
        r"answered 5\d\d|answered 429|HTTP.50\d|ServiceUnavailable|status code:? 50\d",
        TransientError,
        "Nessie has an internal error",
        "The request is retried. Check the server's log and its database.",
    ),
    *transport_faults(
        "Nessie",
        "`nessie.uri`",
        no_answer=r"ConnectException|[Tt]imed? ?out|Connection aborted|Connection reset"
        r"|Failed to establish|Failed to execute|HttpClient\w*Exception",
        tls=True,
    ),
)


def explain(text: str, where: str, *, branch: str) -> IcestreamError | None:
    """Return the error for a fault's text; None if it is not Nessie's.

    Args:
        text: the client's message.
        where: the catalog, for the message.
        branch: the configured branch.
    """
    if not NESSIE_PATTERN.search(text) or STORAGE_PATTERN.search(text):
        return None
    if NO_BRANCH_PATTERN.search(text):
        return ConnectorError(
            f"Nessie has no branch {branch!r}",
            where=where,
            todo="Check the spelling of `nessie.branch`, or create the branch.",
        )
    return first_match(FAULTS, text, where)


API = "/api/v2"


class NessieSettings(Options):
    """Address and branch."""

    uri: str = Field(
        description="Address of the server, `http://HOST:19120/api/v2`; `/api/v2` may be left out."
    )
    branch: str = Field("main", min_length=1, description="Branch of the catalog.")
    warehouse: str | None = Field(
        None,
        description="Folder or URI under which tables are created; defaults to the bucket of the "
        "storage block.",
        json_schema_extra=LOCATION,
    )
    token: SecretStr | None = Field(None, description="Bearer token, if the server requires one.")

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, uri: str) -> str:
        return _api_root(uri)


class NessieCatalogOptions(StorageBlocks):
    """Nessie, through its own API."""

    type: Literal["nessie"] = Field("nessie", description="The kind of catalog.")
    nessie: NessieSettings = Field(description="Address and branch.")


class NessieCatalog(ClientCatalog[NessieCatalogOptions]):
    """Iceberg's Nessie catalog for Spark, an icestream client for everything else."""

    options_type = NessieCatalogOptions
    abilities = Abilities(nested_namespaces=True, catalog_branches=True)
    extra = "all"

    def __init__(
        self, name: str, options: NessieCatalogOptions, storage: Storage | None = None
    ) -> None:
        storage = storage or options.configured_storage()
        warehouse = resolve_warehouse(
            options.nessie.warehouse,
            storage,
            where=f"catalog {name!r} (nessie {options.nessie.uri})",
            block="nessie",
        )
        self.warehouse = as_uri(warehouse)
        self.files = storage_for(self.warehouse, storage)
        super().__init__(name, options, self.files)

    def identity(self) -> str:
        nessie = self.options.nessie
        return f"nessie {nessie.uri.removesuffix(API)}, branch {nessie.branch}"

    @property
    def address_key(self) -> str:
        return "nessie.uri"

    def addresses(self) -> list[str]:
        return [self.options.nessie.uri]

    def storage_location(self) -> str:
        return self.warehouse

    def jars(self) -> tuple[str, ...]:
        # Iceberg's Spark runtime includes the catalog.
        return self.files.jars()

    def spark_settings(self) -> dict[str, str]:
        nessie = self.options.nessie
        settings = {
            "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
            "uri": nessie.uri,
            "ref": nessie.branch,
            "client-api-version": "2",
            "warehouse": self.warehouse,
            # Each session has its own cache, and would not see the commits of others.
            "cache-enabled": "false",
            **self.files.spark_settings(),
        }
        if nessie.token is not None:
            settings["authentication.type"] = "BEARER"
            settings["authentication.token"] = nessie.token.get_secret_value()
        return settings

    def pyiceberg_properties(self) -> dict[str, str]:
        nessie = self.options.nessie
        properties = {
            "py-catalog-impl": "icestream.catalogs.nessie_client.NessieClient",
            "uri": nessie.uri,
            "ref": nessie.branch,
            "warehouse": self.warehouse,
            **self.files.pyiceberg_properties(),
        }
        if nessie.token is not None:
            properties["token"] = nessie.token.get_secret_value()
        return properties

    def explain(self, text: str, where: str) -> IcestreamError | None:
        error = explain(text, where, branch=self.options.nessie.branch)
        return error or super().explain(text, where)

    def _load_client(self) -> PyIcebergCatalog:
        from icestream.catalogs.nessie_client import NessieClient

        client = NessieClient(self.name, **self.pyiceberg_properties())
        client.ping()
        return client


def _api_root(uri: str) -> str:
    """Return the root of version 2 of Nessie's API."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not the address of a server; write e.g. http://HOST:19120/api/v2")
    if parts.username or parts.password or parts.query:
        raise ValueError("contains more than an address; give a token as `token`")
    root = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if "/iceberg" in parts.path:
        raise ValueError(
            "is Nessie's Iceberg REST address; use `type: rest` for that one, or end it in /api/v2"
        )
    for path in (API, "/api/v1", "/api"):
        root = root.removesuffix(path)
    return root + API
