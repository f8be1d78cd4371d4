from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from icestream.catalogs.nessie import NessieCatalog, NessieCatalogOptions
from icestream.contracts.jars import AWS_BUNDLE
from icestream.errors import PlanError

TOKEN = "not-to-be-seen"  # noqa: S105


def build(uri: str = "http://n:19120/api/v2", **options: Any) -> NessieCatalog:
    keys = ("warehouse", "branch", "token")
    nessie = {"uri": uri, **{key: options.pop(key) for key in keys if key in options}}
    block = {"nessie": nessie, **options}
    return NessieCatalog("lake", NessieCatalogOptions.model_validate(block))


def test_branch_settings_for_spark_and_pyiceberg() -> None:
    catalog = build(warehouse="s3://bucket/lake/", branch="team/dev", token=TOKEN)

    assert catalog.spark_settings() == {
        "catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
        "uri": "http://n:19120/api/v2",
        "ref": "team/dev",
        "client-api-version": "2",
        "warehouse": "s3://bucket/lake",
        "cache-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "authentication.type": "BEARER",
        "authentication.token": TOKEN,
    }
    properties = catalog.pyiceberg_properties()
    assert properties["py-catalog-impl"] == "icestream.catalogs.nessie_client.NessieClient"
    assert (properties["uri"], properties["ref"]) == ("http://n:19120/api/v2", "team/dev")
    assert (properties["warehouse"], properties["token"]) == ("s3://bucket/lake", TOKEN)
    assert catalog.jars() == (AWS_BUNDLE,)
    assert catalog.identity() == "nessie http://n:19120, branch team/dev"
    assert TOKEN not in f"{catalog.options!r} {catalog.identity()}"


def test_catalog_without_a_token_has_none() -> None:
    catalog = build(warehouse="/w")

    assert "authentication.type" not in catalog.spark_settings()
    assert "token" not in catalog.pyiceberg_properties()


@pytest.mark.parametrize(
    "uri",
    [
        "http://n:19120",
        "http://n:19120/",
        "http://n:19120/api",
        "http://n:19120/api/v1",
        "http://n:19120/api/v2/",
    ],
)
def test_api_path_is_optional(uri: str) -> None:
    assert build(uri, warehouse="/w").addresses() == ["http://n:19120/api/v2"]


def test_path_before_the_api_path_is_kept() -> None:
    assert build("https://h/nessie", warehouse="/w").addresses() == ["https://h/nessie/api/v2"]


def test_bucket_is_the_default_warehouse() -> None:
    assert build(s3={"bucket": "b"}).warehouse == "s3://b"


def test_catalog_without_warehouse_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        build()

    assert str(caught.value) == (
        "catalog 'lake' (nessie http://n:19120/api/v2): no warehouse is set\n"
        "  Add e.g. `warehouse: s3://bucket/lake` to the block `nessie`, the folder or URI under "
        "which tables are created."
    )


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "is not the address of a server; write e.g. http://HOST:19120/api/v2"),
        ("n:19120", "is not the address of a server; write e.g. http://HOST:19120/api/v2"),
        ("http://:19120", "is not the address of a server; write e.g. http://HOST:19120/api/v2"),
        ("http://me:secret@n", "contains more than an address; give a token as `token`"),
        ("http://n?token=secret", "contains more than an address; give a token as `token`"),
        (
            "http://n:19120/iceberg/main",
            "is Nessie's Iceberg REST address; use `type: rest` for that one, or end it in /api/v2",
        ),
    ],
)
def test_unusable_address_is_refused_without_showing_it(uri: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(uri, warehouse="/w")

    (error,) = caught.value.errors()
    assert error["loc"] == ("nessie", "uri")
    assert error["msg"] == f"Value error, {message}"
    assert "secret" not in str(caught.value)


ASKED = "with url: /api/v2/trees/main (Caused by "


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (
            f"ConnectionError: Max retries exceeded {ASKED}NewConnectionError('Failed to establish "
            "a new connection: [Errno 111] Connection refused'))",
            "UnreachableError",
            "connection to Nessie refused",
        ),
        (
            f'ConnectionError: Max retries exceeded {ASKED}NameResolutionError("Failed to resolve '
            "'nohost'\"))",
            "UnreachableError",
            "cannot resolve the host name of Nessie",
        ),
        (
            "org.projectnessie.client.http.HttpClientException: Failed to execute GET request "
            "against 'http://127.0.0.1:1/api/v2/config'.\njava.net.ConnectException: null",
            "UnreachableError",
            "no answer from Nessie",
        ),
        (
            "ReadTimeout: Nessie: HTTPConnectionPool(host='127.0.0.1', port=1): Read timed out.",
            "UnreachableError",
            "no answer from Nessie",
        ),
        (
            f"SSLError: Max retries exceeded {ASKED}SSLCertVerificationError("
            "'[SSL: CERTIFICATE_VERIFY_FAILED]'))",
            "ConnectorError",
            "TLS connection to Nessie failed",
        ),
        (
            "UnauthorizedError: Nessie answered 401 : no JSON",
            "RefusedError",
            "Nessie rejects the token, or requires one",
        ),
        (
            "org.projectnessie.client.rest.NessieNotAuthorizedException: Unauthorized (HTTP/401)",
            "RefusedError",
            "Nessie rejects the token, or requires one",
        ),
        (
            "ForbiddenError: Nessie answered 403 FORBIDDEN: not yours",
            "RefusedError",
            "Nessie denies access",
        ),
        (
            "ServerError: Nessie answered 503 UNKNOWN: no database",
            "TransientError",
            "Nessie has an internal error",
        ),
        (
            "RESTError: Nessie answered 404 REFERENCE_NOT_FOUND: Named reference 'main' not found",
            "ConnectorError",
            "Nessie has no branch 'main'",
        ),
        (
            "java.lang.IllegalArgumentException: Nessie ref 'main' does not exist",
            "ConnectorError",
            "Nessie has no branch 'main'",
        ),
        (
            "RESTError: Nessie answered 404 : no JSON",
            "ConnectorError",
            "the server at that path is not Nessie's API",
        ),
    ],
)
def test_faults_are_explained(message: str, kind: str, what: str) -> None:
    error = build(warehouse="/w").explain(message, "table t")

    assert error is not None
    assert type(error).__name__ == kind
    assert str(error).startswith(f"table t: {what}\n  ")


def test_faults_of_the_store_are_not_explained_by_the_catalog() -> None:
    error = build(warehouse="s3://b/w").explain("S3Exception: AccessDenied", "table t")

    assert error is not None
    assert error.what == "the store denies access"


@pytest.mark.parametrize(
    "message",
    [
        "OSError: When reading s3://nessie/api/v2/x: AWS Error ACCESS_DENIED: Forbidden",
        "CommitFailedException: Nessie: broken off\nsoftware.amazon.awssdk.services.s3.model."
        "S3Exception: AccessDenied",
    ],
)
def test_bucket_named_nessie_is_not_mistaken_for_the_server(message: str) -> None:
    error = build(warehouse="s3://nessie/w").explain(message, "table t")

    assert error is not None
    assert error.what == "the store denies access"


def test_unknown_fault_is_not_explained() -> None:
    assert build(warehouse="/w").explain("ValueError: odd", "table t") is None
