"""Google Cloud Storage, and stores that speak its protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, SecretStr, field_validator

from icestream.contracts.faults import CheckStep, first_match, has_proxy, reach, shows
from icestream.contracts.jars import GCP_BUNDLE
from icestream.contracts.options import HttpAddress, Options
from icestream.contracts.storage import Storage
from icestream.errors import RefusedError
from icestream.storage.gcs_faults import FAULTS, OF_GCS
from icestream.storage.gcs_key import check_json, check_key, is_text, key_file
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.errors import IcestreamError

HOST = "storage.googleapis.com:443"
# Arrow is not told to go without credentials, but takes a token: it then looks for no others.
NO_TOKEN = {"gcs.oauth2.token": "none", "gcs.oauth2.token-expires-at": "4102444800000"}


class GcsOptions(Options):
    """Google Cloud Storage; without a key, application default credentials."""

    project_id: str | None = Field(None, description="Google Cloud project.")
    bucket: str | None = Field(
        None, description="Bucket; gives the warehouse where the catalog names none."
    )
    service_account_key: SecretStr | None = Field(
        None,
        description="Key of a service account: the JSON text, or the path of its file.",
        json_schema_extra={"path": "if_file"},
    )
    endpoint: HttpAddress | None = Field(
        None,
        description="Address of a compatible store, or of an emulator; without a key, it is asked "
        "without credentials.",
    )

    @field_validator("service_account_key")
    @classmethod
    def _check_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            check_key(key.get_secret_value())
        return key


class GcsStorage(Storage):
    """Buckets of Google's, by Iceberg's GCSFileIO and Arrow's file system."""

    kind: ClassVar[str] = "gcs"
    schemes: ClassVar[tuple[str, ...]] = ("gs", "gcs")

    def __init__(self, options: GcsOptions) -> None:
        self.options = options

    def identity(self) -> str:
        options = self.options
        place = options.endpoint or "of Google"
        return f"gcs {place}" + (f", project {options.project_id}" if options.project_id else "")

    def warehouse(self) -> str | None:
        return f"gs://{self.options.bucket}" if self.options.bucket else None

    def jars(self) -> tuple[str, ...]:
        return (GCP_BUNDLE,)

    def environment(self) -> dict[str, str]:
        key = self._key
        return {} if key is None else {"GOOGLE_APPLICATION_CREDENTIALS": key_file(key)}

    def chain_variables(self) -> tuple[str, ...]:
        has_its_own = self._key is not None or self._is_anonymous
        return () if has_its_own else ("GOOGLE_APPLICATION_CREDENTIALS",)

    def spark_settings(self) -> dict[str, str]:
        settings = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO", **self._place()}
        if self._is_anonymous:
            settings["gcs.no-auth"] = "true"
        return settings

    def pyiceberg_properties(self) -> dict[str, str]:
        return {**self._place(), **(NO_TOKEN if self._is_anonymous else {})}

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        where, endpoint, key = f"storage {self.identity()}", self.options.endpoint, self._key
        if endpoint is not None:
            yield CheckStep("reach store", lambda: reach(endpoint, where, "gcs.endpoint"))
        elif not has_proxy():
            yield CheckStep("reach store", lambda: reach(HOST, where, "gcs.endpoint"))
        if key is not None and not is_text(key):
            path = Path(key_file(key))
            yield CheckStep("read key", lambda: _read_key(path, where))
        yield from probe(self, warehouse)

    def explain(self, said: str, where: str) -> IcestreamError | None:
        if not shows(said, OF_GCS, self.options.endpoint):
            return None
        return first_match(FAULTS, said, where)

    @property
    def _key(self) -> str | None:
        key = self.options.service_account_key
        return None if key is None else key.get_secret_value()

    @property
    def _is_anonymous(self) -> bool:
        return self.options.endpoint is not None and self.options.service_account_key is None

    def _place(self) -> dict[str, str]:
        names = {
            "gcs.project-id": self.options.project_id,
            "gcs.service.host": self.options.endpoint,
        }
        return {name: value for name, value in names.items() if value is not None}


def _read_key(path: Path, where: str) -> str:
    """Read the key as Google's libraries will, whose own words for a bad one are less clear."""
    try:
        check_json(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise RefusedError(
            f"the key file {str(path)!r} cannot be read ({exc.strerror})",
            where=where,
            todo="Look at `gcs.service_account_key`, and whether this user may read the file.",
        ) from exc
    except ValueError as exc:
        raise RefusedError(
            f"the key file {str(path)!r} {exc}",
            where=where,
            todo="Make a key of the service account as JSON, and name its file in "
            "`gcs.service_account_key`.",
        ) from None
    return path.name
