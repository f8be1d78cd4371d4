"""Options of S3 and stores that speak its protocol."""

from __future__ import annotations

from pydantic import Field, SecretStr

from icestream.contracts.options import Options


class S3Options(Options):
    """S3 storage; without keys, the default AWS chain."""

    region: str | None = Field(None, description="AWS region.")
    bucket: str | None = Field(
        None, description="Bucket; gives the warehouse where the catalog names none."
    )
    endpoint: str | None = Field(None, description="Address of an S3-compatible store.")
    path_style_access: bool = Field(
        False, description="Put the bucket into the path, as most S3-compatible stores want."
    )
    access_key_id: SecretStr | None = Field(None, description="Access key id.")
    secret_access_key: SecretStr | None = Field(None, description="Secret access key.")
    session_token: SecretStr | None = Field(None, description="Token of temporary credentials.")
    profile: str | None = Field(None, description="Profile of the AWS configuration files.")
