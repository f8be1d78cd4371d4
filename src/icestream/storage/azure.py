"""Options of Azure storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, SecretStr

from icestream.contracts.jars import AZURE_BUNDLE
from icestream.contracts.options import Options
from icestream.contracts.storage import Storage
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.check import CheckStep


class AzureOptions(Options):
    """Azure storage; without a key, the default Azure credential chain."""

    storage_account: str | None = Field(None, description="Storage account.")
    container: str | None = Field(
        None, description="Container; gives the warehouse where the catalog names none."
    )
    access_key: SecretStr | None = Field(None, description="Access key of the account.")
    sas_token: SecretStr | None = Field(None, description="Shared access signature.")
    endpoint: str | None = Field(None, description="Address of a compatible store.")


class AzureStorage(Storage):
    """Files behind Iceberg's FileIO for this store."""

    kind: ClassVar[str] = "azure"
    schemes: ClassVar[tuple[str, ...]] = ("abfs", "abfss", "wasb", "wasbs")

    def __init__(self, options: AzureOptions) -> None:
        self.options = options

    def identity(self) -> str:
        return "azure"

    def jars(self) -> tuple[str, ...]:
        return (AZURE_BUNDLE,)

    def spark_settings(self) -> dict[str, str]:
        return {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}

    def pyiceberg_properties(self) -> dict[str, str]:
        return {}

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        yield from probe(self, warehouse)
