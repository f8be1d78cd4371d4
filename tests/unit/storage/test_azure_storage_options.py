from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from icestream.contracts.jars import AZURE_BUNDLE
from icestream.errors import ConnectorError, IcestreamError, RefusedError, UnreachableError
from icestream.storage.azure import AzureOptions, AzureStorage
from icestream.storage.blocks import storage_at

IO = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
ADLS = {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
HOST = "acct.dfs.core.windows.net"
FAILED = "HttpResponseError: ErrorCode:AuthenticationFailed"
AWAY = "ServiceRequestError: Cannot connect to host a:1"


def build(**options: Any) -> AzureStorage:
    return AzureStorage(AzureOptions.model_validate(options))


def test_access_key_settings_for_spark_and_pyiceberg() -> None:
    storage = build(storage_account="acct", container="c", access_key="a2V5")

    assert storage.spark_settings() == {
        **ADLS,
        "adls.auth.shared-key.account.name": "acct",
        "adls.auth.shared-key.account.key": "a2V5",
    }
    assert storage.pyiceberg_properties() == {
        **IO,
        "adls.account-name": "acct",
        "adls.account-key": "a2V5",
    }
    assert storage.warehouse() == f"abfss://c@{HOST}"
    assert storage.jars() == (AZURE_BUNDLE,)
    assert storage.identity() == "azure acct"
    assert storage.environment() == {}


def test_shared_access_signature_loses_its_question_mark() -> None:
    storage = build(storage_account="acct", sas_token="?sv=1&sig=x")  # noqa: S106

    assert storage.spark_settings() == {**ADLS, f"adls.sas-token.{HOST}": "sv=1&sig=x"}
    assert storage.pyiceberg_properties() == {
        **IO,
        "adls.account-name": "acct",
        "adls.sas-token": "sv=1&sig=x",
    }


def test_emulator_is_configured_by_its_address() -> None:
    endpoint = "http://127.0.0.1:10000/acct"
    storage = build(storage_account="acct", access_key="a2V5", endpoint=endpoint)

    assert storage.spark_settings()[f"adls.connection-string.{HOST}"] == endpoint
    assert storage.pyiceberg_properties()["adls.connection-string"] == (
        "DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=a2V5;"
        "BlobEndpoint=http://127.0.0.1:10000/acct"
    )
    assert storage.identity() == f"azure {endpoint}"


def test_signature_reaches_an_emulator_too() -> None:
    storage = build(storage_account="acct", sas_token="sig=x", endpoint="http://h:1/acct")  # noqa: S106

    assert storage.pyiceberg_properties()["adls.connection-string"] == (
        "DefaultEndpointsProtocol=http;AccountName=acct;SharedAccessSignature=sig=x;"
        "BlobEndpoint=http://h:1/acct"
    )


def test_endpoint_without_a_key_uses_the_default_chain() -> None:
    storage = build(storage_account="acct", endpoint="https://acct.private.example")

    assert storage.pyiceberg_properties() == {
        **IO,
        "adls.account-name": "acct",
        "adls.account-host": "acct.private.example",
    }


def test_container_without_a_key_uses_the_default_chain() -> None:
    storage = storage_at(f"abfss://c@{HOST}/lake")

    assert isinstance(storage, AzureStorage)
    assert storage.spark_settings() == ADLS
    assert storage.pyiceberg_properties() == IO
    assert storage.identity() == "azure of Microsoft"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"storage_account": "a", "access_key": "k", "sas_token": "t"},
            "has both `access_key` and `sas_token`; keep one of them",
        ),
        ({"access_key": "k"}, "`access_key` needs `storage_account`"),
        ({"sas_token": "t"}, "`sas_token` needs `storage_account`"),
        ({"endpoint": "http://h"}, "`endpoint` needs `storage_account`"),
        ({"container": "c"}, "`container` needs `storage_account`"),
    ],
)
def test_conflicting_azure_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(**options)

    (error,) = caught.value.errors()
    assert error["msg"] == f"Value error, {message}"


def test_secrets_of_the_options_are_never_shown() -> None:
    options = build(storage_account="a", access_key="s3cret").options

    assert "s3cret" not in f"{options!r} {options}"


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (
            "HttpResponseError: Server failed to authenticate the request.\n"
            "ErrorCode:AuthenticationFailed",
            RefusedError,
            "the store does not accept the credentials",
        ),
        (
            "com.azure.storage.file.datalake.models.DataLakeStorageException: Status code 403, "
            '"AuthorizationPermissionMismatch"',
            RefusedError,
            "the credentials are valid, but lack a permission",
        ),
        (
            "ErrorCode:AuthenticationFailed\nauthenticationerrordetail:Signature not valid in the "
            "specified time frame: Start [..] - Expiry [..]",
            RefusedError,
            "the shared access signature has expired, or is not valid yet",
        ),
        (
            "ErrorCode:AuthenticationFailed Request date header too old: 'Sun, 15 Nov 2026'",
            RefusedError,
            "this machine's clock and the store's are too far apart",
        ),
        (
            "ResourceNotFoundError: The specified container does not exist.\n"
            "ErrorCode:ContainerNotFound",
            ConnectorError,
            "there is no such container",
        ),
        (
            "DefaultAzureCredential failed to retrieve a token from the included credentials.",
            RefusedError,
            "no credentials were found, or they were refused",
        ),
        (
            "ErrorCode:KeyBasedAuthenticationNotPermitted",
            RefusedError,
            "the account does not allow access keys",
        ),
        (
            "ValueError: unable to connect to account for Incorrect padding",
            RefusedError,
            "the access key is not valid base64",
        ),
        (
            "HttpResponseError: AuthorizationFailure: This request is not authorized.",
            RefusedError,
            "the store denies access",
        ),
        (
            "java.net.UnknownHostException: acct.dfs.core.windows.net",
            UnreachableError,
            "cannot resolve the host name of the storage account",
        ),
        (
            "ServiceRequestError: Cannot connect to host 127.0.0.1:10000",
            UnreachableError,
            "no answer from the storage account",
        ),
    ],
)
def test_fault_of_azure_is_explained(message: str, kind: type[IcestreamError], what: str) -> None:
    error = build().explain(message, "storage azure")

    assert type(error) is kind
    assert error.what == what
    assert error.todo


@pytest.mark.parametrize(
    ("token", "what"),
    [
        ("se=2024-01-01T00%3A00%3A00Z&sig=x", "expired at 2024-01-01T00:00:00Z"),
        ("se=2024-01-01&sig=x", "expired at 2024-01-01"),
        ("se=2924-01-01&sig=x", None),
        ("se=soon&sig=x", None),
        ("sig=x", None),
    ],
)
def test_expiry_of_a_signature_is_read_from_the_signature(token: str, what: str | None) -> None:
    error = build(storage_account="a", sas_token=token).explain(FAILED, "here")

    assert isinstance(error, RefusedError)
    assert error.what == (
        f"the shared access signature {what}"
        if what
        else "the store does not accept the credentials"
    )


def test_unreachable_store_is_not_blamed_on_the_signature() -> None:
    storage = build(storage_account="a", sas_token="se=2024-01-01&sig=x")  # noqa: S106

    assert isinstance(storage.explain(AWAY, "here"), UnreachableError)
