"""Azure storage, and stores that implement its protocol."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, model_validator

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
from icestream.contracts.jars import AZURE_BUNDLE
from icestream.contracts.options import HttpAddress, Options
from icestream.contracts.storage import Storage
from icestream.errors import ConnectorError, RefusedError
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.errors import IcestreamError


PERMISSIONS_HINT = (
    "Does the identity have the role Storage Blob Data Contributor on the container? A "
    "`sas_token` needs the permissions read, add, create, write, delete and list."
)
# Recognises whose fault it is: sources and Spark report similar ones.
AZURE_PATTERN = (
    r"(?i:azure|adls|adlfs|abfs|wasbs?://|DataLake|BlobStorage)|(dfs|blob)\.core"
    r"|HttpResponseError|ResourceNotFoundError|ClientAuthenticationError"
    r"|Service(Request|Response)Error|ErrorCode:\w|reactor\.|unable to connect to account"
)
FAULTS = (
    Fault(
        r"Request date header too old|not within the valid time|[Cc]lock skew"
        r"|RequestTimeTooSkewed|AADSTS700024",
        RefusedError,
        "this machine's clock and the store's are too far apart",
        "Synchronise this machine's clock with NTP; signatures are valid for 15 minutes.",
    ),
    Fault(
        r"Signature not valid in the specified time frame|Signed expiry|signature has expired"
        r"|token (is|has) expired|AuthenticationTokenExpired",
        RefusedError,
        "the shared access signature has expired, or is not valid yet",
        "Create a new one, and set it as `azure.sas_token`.",
    ),
    Fault(
        r"AuthorizationPermissionMismatch|AuthorizationServiceMismatch"
        r"|AuthorizationResourceTypeMismatch|InsufficientAccountPermissions",
        RefusedError,
        "the credentials are valid, but lack a permission",
        PERMISSIONS_HINT,
    ),
    Fault(
        r"KeyBasedAuthenticationNotPermitted",
        RefusedError,
        "the account does not allow access keys",
        "Remove `azure.access_key` and use the default Azure credential chain, or allow shared "
        "keys in the account's settings.",
    ),
    Fault(
        r"AuthenticationFailed|InvalidAuthenticationInfo|NoAuthenticationInformation"
        r"|Server failed to authenticate|MAC signature",
        RefusedError,
        "the store does not accept the credentials",
        "Check `azure.access_key` or `azure.sas_token`, and that it belongs to "
        "`azure.storage_account`.",
    ),
    Fault(
        r"DefaultAzureCredential|ChainedTokenCredential|CredentialUnavailable"
        r"|EnvironmentCredential|ClientAuthenticationError|AADSTS",
        RefusedError,
        "no credentials were found, or they were refused",
        "Give `azure.access_key` or `azure.sas_token`, or set up the default Azure credential "
        "chain (`az login`, a managed identity, or the AZURE_ variables).",
    ),
    Fault(
        r"Incorrect padding|Illegal base64|[Ii]nvalid base64|not.{0,20}valid base64",
        RefusedError,
        "the access key is not valid base64",
        "Check `azure.access_key`: it is truncated, or contains a space or a line break.",
    ),
    Fault(
        r"ContainerNotFound|FilesystemNotFound|specified (container|filesystem) does not exist"
        r"|ContainerBeingDeleted",
        ConnectorError,
        "there is no such container",
        "Create it, or check the spelling of `azure.container` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"AuthorizationFailure|PublicAccessNotPermitted|[Ss]tatus ?[Cc]ode:? ?403|\b403,"
        r"|Forbidden",
        RefusedError,
        "the store denies access",
        f"{PERMISSIONS_HINT} Does the account's firewall allow this machine?",
    ),
    *transport_faults(
        "the storage account",
        "`azure.storage_account` (or the catalog's `warehouse`) and `azure.endpoint`",
        no_answer=rf"{TIMED_OUT}|ServiceRequestError|ServiceResponseError|Connect call failed"
        r"|Cannot connect to host|ServerBusy|[Ss]tatus ?[Cc]ode:? ?50\d",
    ),
)


DOMAIN = "dfs.core.windows.net"
BLOB_DOMAIN = "blob.core.windows.net"


class AzureOptions(Options):
    """Azure storage; without a key, the default Azure credential chain."""

    storage_account: str | None = Field(None, min_length=1, description="Storage account.")
    container: str | None = Field(
        None,
        min_length=1,
        description="Container; the default warehouse if the catalog names none.",
    )
    access_key: SecretStr | None = Field(None, description="Access key of the account.")
    sas_token: SecretStr | None = Field(None, description="Shared access signature.")
    endpoint: HttpAddress | None = Field(
        None,
        description="Address of a compatible store or of an emulator, its account included: "
        "`http://127.0.0.1:10000/devstoreaccount1`.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> AzureOptions:
        if self.access_key is not None and self.sas_token is not None:
            raise ValueError("has both `access_key` and `sas_token`; keep one of them")
        if self.storage_account is None:
            for name in ("access_key", "sas_token", "endpoint", "container"):
                if getattr(self, name) is not None:
                    raise ValueError(f"`{name}` needs `storage_account`")
        return self


class AzureStorage(Storage):
    """Azure containers, through Iceberg's ADLSFileIO and adlfs."""

    kind = "azure"
    schemes = ("abfss", "abfs", "wasb", "wasbs")
    options_type = AzureOptions
    description = "Azure storage."
    bucket_option = "container"
    missing_jars = r"azurebfs\.\w+ not found|NoClassDefFoundError: com/azure/"

    def __init__(self, options: AzureOptions) -> None:
        self.options = options

    def required_packages(self) -> dict[str, str]:
        return {"adlfs": "icestream[azure]"}

    def identity(self) -> str:
        options = self.options
        endpoint = options.endpoint or options.storage_account or "of Microsoft"
        return f"azure {endpoint}"

    def warehouse(self) -> str | None:
        if self.options.container is None:
            return None
        return f"abfss://{self.options.container}@{self._host}"

    def jars(self) -> tuple[str, ...]:
        return (AZURE_BUNDLE,)

    def spark_settings(self) -> dict[str, str]:
        settings = {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
        if self._key is not None:
            settings["adls.auth.shared-key.account.name"] = self.options.storage_account or ""
            settings["adls.auth.shared-key.account.key"] = self._key
        if self._token is not None:
            settings[f"adls.sas-token.{self._host}"] = self._token
        if self.options.endpoint is not None:
            settings[f"adls.connection-string.{self._host}"] = self.options.endpoint
        return settings

    def pyiceberg_properties(self) -> dict[str, str]:
        # Arrow's own file system supports neither shared access signatures nor accounts in paths.
        properties = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
        account = self.options.storage_account
        if account is not None:
            properties["adls.account-name"] = account
        endpoint = self.options.endpoint
        if endpoint is not None and (self._key or self._token):
            properties["adls.connection-string"] = self._connection_string(endpoint)
        elif endpoint is not None:
            properties["adls.account-host"] = endpoint.partition("://")[2] or endpoint
        elif self._key is not None:
            properties["adls.account-key"] = self._key
        elif self._token is not None:
            properties["adls.sas-token"] = self._token
        return properties

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        endpoint, account = self.options.endpoint, self.options.storage_account
        where = f"storage {self.identity()}"
        if endpoint is not None:
            yield CheckStep(
                "reach store", lambda: check_connection(endpoint, where, "`azure.endpoint`")
            )
        elif account is not None and not has_proxy():
            # The account is part of the host name, and the library retries a wrong one for minutes.
            host = f"{account}.{BLOB_DOMAIN}:443"
            yield CheckStep(
                "reach store", lambda: check_connection(host, where, "`azure.storage_account`")
            )
        yield from probe(self, warehouse)

    def faults(self) -> tuple[type[Exception], ...]:
        from azure.core.exceptions import AzureError

        # adlfs wraps errors of connecting and of deleting in the last two.
        return OSError, AzureError, ValueError, RuntimeError

    def explain(self, text: str, where: str) -> IcestreamError | None:
        if not mentions(text, AZURE_PATTERN, self.options.endpoint):
            return None
        error = first_match(FAULTS, text, where)
        expiry = _past_expiry(self._token) if self._token is not None else None
        if isinstance(error, RefusedError) and expiry is not None:
            # Not every store says why it refuses a signature, but the signature has its expiry.
            return RefusedError(
                f"the shared access signature expired at {expiry}",
                where=where,
                todo="Create a new one, and set it as `azure.sas_token`.",
            )
        return error

    @property
    def _host(self) -> str:
        return f"{self.options.storage_account}.{DOMAIN}"

    @property
    def _key(self) -> str | None:
        key = self.options.access_key
        return None if key is None else key.get_secret_value()

    @property
    def _token(self) -> str | None:
        token = self.options.sas_token
        return None if token is None else token.get_secret_value().removeprefix("?")

    def _connection_string(self, endpoint: str) -> str:
        parts = {
            "DefaultEndpointsProtocol": urlsplit(endpoint).scheme,
            "AccountName": self.options.storage_account,
            "AccountKey": self._key,
            "SharedAccessSignature": self._token,
            "BlobEndpoint": endpoint,
        }
        return ";".join(f"{name}={value}" for name, value in parts.items() if value is not None)


def _past_expiry(token: str) -> str | None:
    """Return when a signature expired, by its own `se` field; None if it is valid or has none."""
    (expiry, *_) = parse_qs(token).get("se", [""])
    try:
        end = datetime.fromisoformat(expiry.replace("Z", "+00:00"))
    except ValueError:
        return None
    end = end if end.tzinfo else end.replace(tzinfo=timezone.utc)
    return expiry if end <= datetime.now(timezone.utc) else None
