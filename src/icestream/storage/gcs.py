"""Google Cloud Storage, and stores that implement its protocol."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr, field_validator

from icestream.contracts.faults import (
    TIMED_OUT,
    CheckStep,
    Fault,
    check_connection,
    first_match,
    has_proxy,
    mentions,
    transport_faults,
)
from icestream.contracts.jars import GCP_BUNDLE
from icestream.contracts.options import HttpAddress, Options
from icestream.contracts.storage import Storage
from icestream.errors import ConnectorError, RefusedError
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.errors import IcestreamError


MAX_PATH_LENGTH = 4096
KEY_TYPE = "service_account"


def is_text(key: str) -> bool:
    """Tell whether a key is the JSON itself, and not the path of a file that holds it."""
    return key.lstrip().startswith("{")


def check_key(key: str) -> None:
    """Refuse what is neither a path nor the JSON of a service account.

    Raises:
        ValueError: with the reason, which never quotes the key.
    """
    if is_text(key):
        check_json(key)
    elif not key.strip() or "\n" in key.strip() or len(key) > MAX_PATH_LENGTH:
        raise ValueError("is neither a file path nor JSON text")


def check_json(text: str) -> None:
    """Refuse a text that is not the key of a service account.

    Raises:
        ValueError: with the reason, which never quotes the key.
    """
    try:
        key = json.loads(text)
    except ValueError:
        raise ValueError("begins like JSON, but is not valid: was it truncated?") from None
    kind = key.get("type") if isinstance(key, dict) else None
    if kind != KEY_TYPE:
        raise ValueError(f"is JSON of the type {kind!r}, but must be of the type {KEY_TYPE!r}")
    missing = [name for name in ("client_email", "private_key") if not key.get(name)]
    if missing:
        raise ValueError(f"is the key of a service account without {' and '.join(missing)}")


def key_file(key: str) -> str:
    """Return the path of a key's file; a key given as text gets one for this process's lifetime."""
    return _file_of(key) if is_text(key) else str(Path(key.strip()).expanduser().absolute())


@cache
def _file_of(text: str) -> str:
    """Write a text to a file once, so that equal keys have equal paths."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("icestream-gcs-key")
        os.write(descriptor, text.encode())
        # Named by process id: the JVM and Python workers open it too, as the same user.
        return f"/proc/{os.getpid()}/fd/{descriptor}"
    descriptor, path = tempfile.mkstemp(prefix="icestream-gcs-key-", suffix=".json")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    atexit.register(_remove_file, path, os.getpid())
    return path


def _remove_file(path: str, owner: int) -> None:
    # A forked child inherits the registration, but must not remove the file.
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)


# Recognises whose fault it is: sources and Spark report similar ones.
GCS_PATTERN = (
    r"google::cloud|com\.google\.(cloud|api|auth)|StorageException|gs://|GCSFileIO"
    r"|(storage|oauth2)\.googleapis|cloud\.google\.com|metadata\.google|gcsfs"
    r"|GOOGLE_APPLICATION_CREDENTIALS|Application\s+Default Credentials"
)
FAULTS = (
    Fault(
        r"invalid_grant.{0,80}(iat|exp|short-lived|time)|Token used too (early|late)",
        RefusedError,
        "this machine's clock and Google's are too far apart",
        "Synchronise this machine's clock with NTP; signatures are valid for an hour.",
    ),
    Fault(
        r"invalid_grant|Invalid JWT|account not found|invalid_client",
        RefusedError,
        "Google does not accept the key of the service account",
        "Was the key deleted, or the account? Create a new key, and set it as "
        "`gcs.service_account_key`.",
    ),
    Fault(
        r"[Ee]rror reading credential file|[Ii]nvalid (contents in|PKCS|private key)"
        r"|Cannot open credentials file|credentials? file .{0,200}(does not exist|parse)",
        RefusedError,
        "the key of the service account cannot be read",
        "Check `gcs.service_account_key`, or the variable GOOGLE_APPLICATION_CREDENTIALS: "
        "on a cluster the file must be on every machine.",
    ),
    Fault(
        r"default credentials were not found|[Cc]ould not find [Dd]efault [Cc]redentials"
        r"|automatically determine credentials|metadata\.google\.internal",
        RefusedError,
        "no credentials were found",
        "Give `gcs.service_account_key`, or set up application default credentials "
        "(`gcloud auth application-default login`, or the machine's service account).",
    ),
    Fault(
        # Listing and writing fail with 404 only if the bucket is missing.
        r"bucket does not exist|[Bb]ucket .{0,80}not (be )?found|404 Not Found\s+POST \S+/upload/"
        r"|retry\.function=(ListObjects|CreateResumableUpload|Insert\w+).{0,200}status_code=404",
        ConnectorError,
        "there is no such bucket",
        "Create it, or check the spelling of `gcs.bucket` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"UNAUTHENTICATED|401 Unauthorized|Invalid Credentials|Anonymous caller|status_code=401",
        RefusedError,
        "the store does not accept the credentials",
        "Check `gcs.service_account_key`, or without it the application default credentials.",
    ),
    Fault(
        r"PERMISSION_DENIED|403 Forbidden|does not have storage\.|status_code=403",
        RefusedError,
        "the store denies access",
        "Does the account have the role Storage Object Admin on the bucket, or at least "
        "storage.objects.list, get, create and delete?",
    ),
    *transport_faults(
        "the store",
        "`gcs.endpoint`",
        no_answer=rf"{TIMED_OUT}|UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]ould ?n.?t (connect|resolve)"
        r"|status_code=(429|50\d)|StorageException: (429|50\d)",
    ),
)


HOST = "storage.googleapis.com:443"
# Arrow has no option for anonymous access, but with a token it looks for no other credentials.
NO_TOKEN = {"gcs.oauth2.token": "none", "gcs.oauth2.token-expires-at": "4102444800000"}


class GcsOptions(Options):
    """Google Cloud Storage; without a key, application default credentials."""

    project_id: str | None = Field(None, description="Google Cloud project.")
    bucket: str | None = Field(
        None, description="Bucket; the default warehouse if the catalog names none."
    )
    service_account_key: SecretStr | None = Field(
        None,
        description="Key of a service account: the JSON text, or the path of its file.",
        json_schema_extra={"path": "if_file"},
    )
    endpoint: HttpAddress | None = Field(
        None,
        description="Address of a compatible store, or of an emulator; without a key, it is "
        "accessed without credentials.",
    )

    @field_validator("service_account_key")
    @classmethod
    def _check_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            check_key(key.get_secret_value())
        return key


class GcsStorage(Storage):
    """Google Cloud buckets, through Iceberg's GCSFileIO and Arrow's file system."""

    kind = "gcs"
    schemes = ("gs", "gcs")
    options_type = GcsOptions
    description = "Google Cloud Storage."
    bucket_option = "bucket"
    missing_jars = r"No FileSystem for scheme \"?gs|NoClassDefFoundError: com/google/"

    def __init__(self, options: GcsOptions) -> None:
        self.options = options

    @classmethod
    def normalize(cls, location: str) -> str:
        scheme, _, rest = location.partition(":")
        # PyIceberg accepts `gcs:` too, but Java does not.
        return super().normalize(f"gs:{rest}" if scheme.lower() == "gcs" else location)

    def identity(self) -> str:
        options = self.options
        endpoint = options.endpoint or "of Google"
        return f"gcs {endpoint}" + (f", project {options.project_id}" if options.project_id else "")

    def warehouse(self) -> str | None:
        return f"gs://{self.options.bucket}" if self.options.bucket else None

    def jars(self) -> tuple[str, ...]:
        return (GCP_BUNDLE,)

    def environment(self) -> dict[str, str]:
        key = self._key
        return {} if key is None else {"GOOGLE_APPLICATION_CREDENTIALS": key_file(key)}

    def chain_variables(self) -> tuple[str, ...]:
        has_credentials = self._key is not None or self._is_anonymous
        return () if has_credentials else ("GOOGLE_APPLICATION_CREDENTIALS",)

    def spark_settings(self) -> dict[str, str]:
        settings = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO", **self._location()}
        if self._is_anonymous:
            settings["gcs.no-auth"] = "true"
        return settings

    def pyiceberg_properties(self) -> dict[str, str]:
        return {**self._location(), **(NO_TOKEN if self._is_anonymous else {})}

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        where, endpoint, key = f"storage {self.identity()}", self.options.endpoint, self._key
        if endpoint is not None:
            yield CheckStep(
                "reach store", lambda: check_connection(endpoint, where, "`gcs.endpoint`")
            )
        elif not has_proxy():
            yield CheckStep("reach store", lambda: check_connection(HOST, where, "`gcs.endpoint`"))
        if key is not None and not is_text(key):
            path = Path(key_file(key))
            yield CheckStep("read key", lambda: _read_key(path, where))
        yield from probe(self, warehouse)

    def explain(self, text: str, where: str) -> IcestreamError | None:
        if not mentions(text, GCS_PATTERN, self.options.endpoint):
            return None
        return first_match(FAULTS, text, where)

    @property
    def _key(self) -> str | None:
        key = self.options.service_account_key
        return None if key is None else key.get_secret_value()

    @property
    def _is_anonymous(self) -> bool:
        return self.options.endpoint is not None and self.options.service_account_key is None

    def _location(self) -> dict[str, str]:
        names = {
            "gcs.project-id": self.options.project_id,
            "gcs.service.host": self.options.endpoint,
        }
        return {name: value for name, value in names.items() if value is not None}


def _read_key(path: Path, where: str) -> str:
    """Read the key before Google's libraries do: their errors for an invalid one are less clear."""
    try:
        check_json(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise RefusedError(
            f"the key file {str(path)!r} cannot be read ({exc.strerror})",
            where=where,
            todo="Check `gcs.service_account_key`, and that this user may read the file.",
        ) from exc
    except ValueError as exc:
        raise RefusedError(
            f"the key file {str(path)!r} {exc}",
            where=where,
            todo="Create a JSON key of the service account, and name its file in "
            "`gcs.service_account_key`.",
        ) from None
    return path.name
