"""Options of Google Cloud Storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, SecretStr

from icestream.contracts.jars import GCP_BUNDLE
from icestream.contracts.options import Options
from icestream.contracts.storage import Storage
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.check import CheckStep


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


class GcsStorage(Storage):
    """Files behind Iceberg's FileIO for this store."""

    kind: ClassVar[str] = "gcs"
    schemes: ClassVar[tuple[str, ...]] = ("gs", "gcs")

    def __init__(self, options: GcsOptions) -> None:
        self.options = options

    def identity(self) -> str:
        return "gcs"

    def jars(self) -> tuple[str, ...]:
        return (GCP_BUNDLE,)

    def spark_settings(self) -> dict[str, str]:
        return {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}

    def pyiceberg_properties(self) -> dict[str, str]:
        return {}

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        yield from probe(self, warehouse)
