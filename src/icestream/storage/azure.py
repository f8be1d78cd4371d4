"""Azure's storage, and stores that speak its protocol."""

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


RIGHTS = (
    "Does the identity have the role Storage Blob Data Contributor on the container? A "
    "`sas_token` needs the permissions read, add, create, write, delete and list."
)
# Whose fault it is: sources and Spark have faults that read alike.
OF_AZURE = (
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
        "Set this machine's clock by NTP; a signature is good for 15 minutes.",
    ),
    Fault(
        r"Signature not valid in the specified time frame|Signed expiry|signature has expired"
        r"|token (is|has) expired|AuthenticationTokenExpired",
        RefusedError,
        "the shared access signature has run out, or is not valid yet",
        "Make a new one, and give it as `azure.sas_token`.",
    ),
    Fault(
        r"AuthorizationPermissionMismatch|AuthorizationServiceMismatch"
        r"|AuthorizationResourceTypeMismatch|InsufficientAccountPermissions",
        RefusedError,
        "the credentials are good, and do not allow this",
        RIGHTS,
    ),
    Fault(
        r"KeyBasedAuthenticationNotPermitted",
        RefusedError,
        "the account takes no access keys",
        "Leave `azure.access_key` out and use the default Azure credential chain, or allow shared "
        "keys in the account's settings.",
    ),
    Fault(
        r"AuthenticationFailed|InvalidAuthenticationInfo|NoAuthenticationInformation"
        r"|Server failed to authenticate|MAC signature",
        RefusedError,
        "the store does not accept the credentials",
        "Look at `azure.access_key` or `azure.sas_token`, and whether it belongs to "
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
        "the access key is not one of Azure's: it cannot be decoded",
        "Look at `azure.access_key`: it was cut off, or holds a space or a line break.",
    ),
    Fault(
        r"ContainerNotFound|FilesystemNotFound|specified (container|filesystem) does not exist"
        r"|ContainerBeingDeleted",
        ConnectorError,
        "there is no such container",
        "Create it, or look at the spelling of `azure.container` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"AuthorizationFailure|PublicAccessNotPermitted|[Ss]tatus ?[Cc]ode:? ?403|\b403,"
        r"|Forbidden",
        RefusedError,
        "the store denies access",
        f"{RIGHTS} Does the account's firewall let this machine in?",
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
        description="Container; gives the warehouse where the catalog names none.",
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
            raise ValueError("holds both an `access_key` and a `sas_token`; keep one of them")
        if self.storage_account is None:
            for name in ("access_key", "sas_token", "endpoint", "container"):
                if getattr(self, name) is not None:
                    raise ValueError(f"`{name}` needs `storage_account`")
        return self


class AzureStorage(Storage):
    """Containers of Azure's, by Iceberg's ADLSFileIO and by adlfs."""

    kind = "azure"
    schemes = ("abfss", "abfs", "wasb", "wasbs")
    options_type = AzureOptions
    description = "Azure storage."
    bucket_option = "container"
    missing_jars = r"azurebfs\.\w+ not found|NoClassDefFoundError: com/azure/"

    def __init__(self, options: AzureOptions) -> None:
        self.options = options

    def identity(self) -> str:
        options = self.options
        place = options.endpoint or options.storage_account or "of Microsoft"
        return f"azure {place}"

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
        # Arrow's own file system knows no shared access signature, and no account in a path.
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
            # The account is a part of the name, and its library looks a wrong one up for minutes.
            host = f"{account}.{BLOB_DOMAIN}:443"
            yield CheckStep(
                "reach store", lambda: check_connection(host, where, "`azure.storage_account`")
            )
        yield from probe(self, warehouse)

    def faults(self) -> tuple[type[Exception], ...]:
        from azure.core.exceptions import AzureError

        # adlfs wraps what it meets while it connects or removes into the last two.
        return OSError, AzureError, ValueError, RuntimeError

    def explain(self, said: str, where: str) -> IcestreamError | None:
        if not mentions(said, OF_AZURE, self.options.endpoint):
            return None
        known = first_match(FAULTS, said, where)
        ended = _ended(self._token) if self._token is not None else None
        if isinstance(known, RefusedError) and ended is not None:
            # Not every store says why it refuses a signature; the signature itself does.
            return RefusedError(
                f"the shared access signature ran out at {ended}",
                where=where,
                todo="Make a new one, and give it as `azure.sas_token`.",
            )
        return known

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


def _ended(token: str) -> str | None:
    """Return when a signature ran out, as it says itself; None if it did not, or does not say."""
    (told, *_) = parse_qs(token).get("se", [""])
    try:
        end = datetime.fromisoformat(told.replace("Z", "+00:00"))
    except ValueError:
        return None
    end = end if end.tzinfo else end.replace(tzinfo=timezone.utc)
    return told if end <= datetime.now(timezone.utc) else None
