"""Options of Azure storage."""

from __future__ import annotations

from pydantic import Field, SecretStr

from icestream.contracts.options import Options


class AzureOptions(Options):
    """Azure storage; without a key, the default Azure credential chain."""

    storage_account: str | None = Field(None, description="Storage account.")
    container: str | None = Field(
        None, description="Container; gives the warehouse where the catalog names none."
    )
    access_key: SecretStr | None = Field(None, description="Access key of the account.")
    sas_token: SecretStr | None = Field(None, description="Shared access signature.")
    endpoint: str | None = Field(None, description="Address of a compatible store.")
