"""Options of Google Cloud Storage."""

from __future__ import annotations

from pydantic import Field, SecretStr

from icestream.contracts.options import Options


class GcsOptions(Options):
    """Google Cloud Storage; without a key, application default credentials."""

    project_id: str | None = Field(None, description="Google Cloud project.")
    bucket: str | None = Field(
        None, description="Bucket; gives the warehouse where the catalog names none."
    )
    service_account_key: SecretStr | None = Field(
        None, description="Key of a service account: the JSON text, or the path of its file."
    )
    endpoint: str | None = Field(None, description="Address of a compatible store.")
