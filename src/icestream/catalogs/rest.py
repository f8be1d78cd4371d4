"""Options of REST catalogs: Polaris, Lakekeeper, Nessie, Gravitino, Unity, S3 Tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from icestream.contracts.options import Options, PropertyText


class RestSettings(Options):
    """Address and credentials of the server."""

    uri: str = Field(min_length=1, description="Address of the catalog.")
    warehouse: str | None = Field(None, description="Any name that the server knows.")
    credential: SecretStr | None = Field(
        None,
        description="`id:secret` is an OAuth2 client credential; anything else a bearer token.",
    )
    token: SecretStr | None = Field(None, description="Bearer token.")
    scope: str | None = Field(None, description="OAuth2 scope.")
    prefix: str | None = Field(None, description="Prefix of the server's paths.")
    properties: dict[str, PropertyText] = Field(
        default_factory=dict, description="Further properties, e.g. `oauth2-server-uri`."
    )


class RestCatalogOptions(Options):
    """A catalog that speaks Iceberg's REST protocol."""

    type: Literal["rest"] = Field("rest", description="Kind of catalog.")
    rest: RestSettings = Field(description="Address and credentials.")
