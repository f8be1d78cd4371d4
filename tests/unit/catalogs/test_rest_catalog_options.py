from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from icestream.catalogs.rest import RestCatalog, RestCatalogOptions
from icestream.contracts.jars import AWS_BUNDLE
from icestream.errors import PlanError

SECRET = "s3cr3t:with/colon"  # noqa: S105
KEYS = {"access_key_id": "AKIA", "secret_access_key": "store-secret"}
DELEGATION = "header.X-Iceberg-Access-Delegation"


def build(
    uri: str = "https://catalog.example/api/catalog/",
    *,
    properties: dict[str, Any] | None = None,
    s3: dict[str, Any] | None = None,
    **rest: Any,
) -> RestCatalog:
    block: dict[str, Any] = {"rest": {"uri": uri, "properties": properties or {}, **rest}}
    if s3 is not None:
        block["s3"] = s3
    return RestCatalog("lake", RestCatalogOptions.model_validate(block))


def test_address_settings_for_spark_and_pyiceberg() -> None:
    catalog = build()

    assert catalog.spark_settings() == {
        "type": "rest",
        "uri": "https://catalog.example/api/catalog",
        "cache-enabled": "false",
        "rest.client.connection-timeout-ms": "10000",
        "rest.client.socket-timeout-ms": "60000",
        DELEGATION: "vended-credentials",
    }
    assert catalog.pyiceberg_properties() == {
        "type": "rest",
        "uri": "https://catalog.example/api/catalog",
    }
    assert catalog.jars() == ()
    assert catalog.identity() == "rest https://catalog.example/api/catalog"


def test_client_credential_settings_include_the_token_server() -> None:
    catalog = build(
        credential=f"me:{SECRET}", warehouse="prod", scope="PRINCIPAL_ROLE:ALL", prefix="p"
    )

    shared = {
        "type": "rest",
        "uri": "https://catalog.example/api/catalog",
        "warehouse": "prod",
        "prefix": "p",
        "scope": "PRINCIPAL_ROLE:ALL",
        "credential": f"me:{SECRET}",
        "oauth2-server-uri": "https://catalog.example/api/catalog/v1/oauth/tokens",
    }
    assert catalog.pyiceberg_properties() == shared
    assert catalog.spark_settings() == {
        **shared,
        "cache-enabled": "false",
        "rest.client.connection-timeout-ms": "10000",
        "rest.client.socket-timeout-ms": "60000",
        "rest.auth.type": "oauth2",
        "token-exchange-enabled": "false",
        DELEGATION: "vended-credentials",
    }
    assert catalog.identity() == "rest https://catalog.example/api/catalog, warehouse prod"


@pytest.mark.parametrize("key", ["token", "credential"])
def test_credential_without_a_colon_is_a_bearer_token(key: str) -> None:
    given: dict[str, Any] = {key: "abc"}
    catalog = build(**given)

    assert catalog.pyiceberg_properties()["token"] == "abc"  # noqa: S105 - made up
    settings = catalog.spark_settings()
    assert (settings["token"], settings["rest.auth.type"]) == ("abc", "oauth2")
    assert not {"credential", "oauth2-server-uri", "token-exchange-enabled"} & settings.keys()


def test_client_credential_takes_precedence_over_a_token() -> None:
    settings = build(token="old", credential="me:secret").spark_settings()  # noqa: S106

    assert settings["credential"] == "me:secret"
    assert "token" not in settings


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://auth.example/token", "https://auth.example/token"),
        ("v1/other/tokens", "https://catalog.example/api/catalog/v1/other/tokens"),
    ],
)
def test_configured_token_server_becomes_an_absolute_url(given: str, url: str) -> None:
    catalog = build(credential="me:secret", properties={"oauth2-server-uri": given})

    assert catalog.spark_settings()["oauth2-server-uri"] == url
    assert catalog.pyiceberg_properties()["oauth2-server-uri"] == url


def test_configured_properties_override_ours_in_both_clients() -> None:
    properties = {
        "audience": "lake",
        "rest.client.socket-timeout-ms": 5000,
        "token-exchange-enabled": True,
    }
    catalog = build(credential="me:secret", properties=properties)

    for settings in (catalog.spark_settings(), catalog.pyiceberg_properties()):
        assert settings["audience"] == "lake"
        assert settings["rest.client.socket-timeout-ms"] == "5000"
        assert settings["token-exchange-enabled"] == "true"


@pytest.mark.parametrize("key", ["rest.sigv4-enabled", "rest.auth.type"])
def test_custom_authentication_is_left_to_the_properties(key: str) -> None:
    settings = build(credential="me:secret", properties={key: "x"}).spark_settings()

    assert {"rest.auth.type", "token-exchange-enabled"} & settings.keys() <= {key}


def test_storage_block_adds_its_jar_and_settings() -> None:
    catalog = build(s3={"region": "eu-central-1", "bucket": "lake"})

    settings = catalog.spark_settings()
    assert settings["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert settings[DELEGATION] == "vended-credentials"
    assert "warehouse" not in settings, "a bucket is not a name that the server knows"
    assert catalog.pyiceberg_properties()["s3.region"] == "eu-central-1"
    assert catalog.jars() == (AWS_BUNDLE,)
    assert catalog.storage_location() is None, "only the catalog lends keys for the bucket"


@pytest.mark.parametrize("s3", [KEYS, {"profile": "work"}])
def test_configured_keys_replace_vended_credentials(s3: dict[str, Any]) -> None:
    catalog = build(s3={**s3, "bucket": "lake"})

    assert DELEGATION not in catalog.spark_settings()
    assert catalog.storage_location() == "s3://lake"


def test_configured_delegation_header_keeps_its_spelling() -> None:
    header = "header.x-iceberg-access-delegation"
    settings = build(properties={header: "remote-signing"}).spark_settings()

    assert settings[header] == "remote-signing"
    assert DELEGATION not in settings


@pytest.mark.parametrize("uri", ["catalog.example:8181", "thrift://catalog.example", "http://"])
def test_address_without_http_is_refused(uri: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(uri)

    assert str(caught.value) == (
        "catalog 'lake': `rest.uri` begins with neither http:// nor https://\n"
        "  Write e.g. `uri: https://catalog.example/api/catalog`."
    )


@pytest.mark.parametrize(
    "uri", ["https://me:hunter2@catalog.example", "https://catalog.example/api?token=hunter2"]
)
def test_secret_in_the_address_is_refused_without_showing_it(uri: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(uri)

    assert str(caught.value) == (
        "catalog 'lake': `rest.uri` contains a user, a password or a query\n"
        "  Set credentials as `rest.credential` or `rest.token`: addresses are logged."
    )


def test_secrets_of_the_catalog_are_never_shown() -> None:
    properties = {
        "header.Authorization": "Basic aGk6aG8=",
        "token-refresh-enabled": True,
        "token-expires-in-ms": 3600000,
    }
    catalog = build(credential=f"me:{SECRET}", token="bearer-1", properties=properties, s3=KEYS)  # noqa: S106

    text = f"{SECRET} me:{SECRET} bearer-1 Basic aGk6aG8= store-secret AKIA true 3600000"

    assert catalog.mask_secrets(text) == "*** *** *** *** *** *** true 3600000"
    assert SECRET not in f"{catalog.options!r} {catalog.identity()} {catalog.where}"
    assert "aGk6aG8=" not in f"{catalog.options!r} {catalog.options}"
    assert "'token-expires-in-ms': '3600000'" in repr(catalog.options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "rest.client.connection-timeout-ms",
            "10s",
            "`rest.client.connection-timeout-ms` is '10s', not a number of milliseconds",
        ),
        (
            "rest.client.socket-timeout-ms",
            0,
            "`rest.client.socket-timeout-ms` is '0', not a number of milliseconds",
        ),
        (
            "ssl",
            "ca.pem",
            "`ssl` is a block that only PyIceberg supports; let Python (REQUESTS_CA_BUNDLE) and "
            "Java (javax.net.ssl.trustStore) trust the server's authority",
        ),
        (
            "auth",
            "basic",
            "`auth` is a block that only PyIceberg supports; give `credential` or `token`",
        ),
    ],
)
def test_unsupported_property_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(properties={name: value})

    (error,) = caught.value.errors()
    assert error["loc"] == ("rest", "properties")
    assert error["msg"] == f"Value error, {message}"


def test_check_reaches_a_configured_token_server_first() -> None:
    elsewhere = build(
        credential="me:secret", properties={"oauth2-server-uri": "https://auth.example/token"}
    )

    assert [step.name for step in elsewhere.check()] == [
        "reach token server",
        "reach catalog",
        "sign in",
    ]
    assert [step.name for step in build(credential="me:secret").check()] == [
        "reach catalog",
        "sign in",
    ]


@pytest.mark.parametrize(
    ("location", "block"),
    [
        ("s3://lake/db/events", "s3"),
        ("abfss://lake@account.dfs.core.windows.net/db", "azure"),
    ],
)
def test_table_in_a_store_that_was_not_known_is_refused(location: str, block: str) -> None:
    scheme = location.partition(":")[0]

    with pytest.raises(PlanError) as caught:
        build().require_storage(location, "table lake.db.events")

    assert str(caught.value) == (
        f"table lake.db.events: its files are in {scheme}://, which the catalog did not say before "
        "the table existed, so Spark runs without that store's jars\n"
        f"  Run again: the store is known now. To set it in the file, add `{block}: {{}}` to the "
        "block of catalog 'lake', with the keys that the store needs."
    )


def test_table_in_another_store_than_the_blocks_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        build(s3={}).require_storage("gs://lake/db/events", "table lake.db.events")

    assert str(caught.value) == (
        "table lake.db.events: its files are in gs://, but the store of catalog 'lake' is 's3'\n"
        "  A catalog has one store. Add `gcs: {}` to its block, in place of `s3`, with the keys "
        "that the store needs."
    )


@pytest.mark.parametrize(
    ("warehouse", "store"),
    [
        ("s3://lake/db", "s3"),
        ("s3a://lake/db", "s3"),
        ("s3n://lake/db", "s3"),
        ("gs://lake/db", "gcs"),
        ("abfss://lake@account.dfs.core.windows.net/db", "azure"),
        ("wasbs://lake@account.blob.core.windows.net/db", "azure"),
        ("file:///lake/db", "local"),
    ],
)
def test_store_is_derived_from_an_address_as_the_warehouse(warehouse: str, store: str) -> None:
    catalog = build(warehouse=warehouse)

    assert catalog.storage is not None
    assert catalog.storage.kind == store
    assert catalog.storage.derived_from == warehouse
    assert catalog.jars() == catalog.storage.jars()
    assert catalog.spark_settings().items() >= catalog.storage.spark_settings().items()
    # Without keys, the server is asked for credentials, as with an empty block.
    assert catalog.spark_settings()["header.X-Iceberg-Access-Delegation"] == "vended-credentials"


@pytest.mark.parametrize("warehouse", [None, "analytics", "arn:aws:s3tables:eu:1:bucket/b"])
def test_name_as_the_warehouse_tells_no_store(warehouse: str | None) -> None:
    catalog = build(warehouse=warehouse)

    assert catalog.storage is None
    assert catalog.jars() == ()


@pytest.mark.parametrize(
    "location", ["s3://lake/db", "file:///lake/db", "/lake/db", "viewfs://a/b"]
)
def test_table_with_a_usable_store_is_accepted(location: str) -> None:
    build(s3={}).require_storage(location, "table lake.db.events")


@pytest.mark.parametrize(
    ("message", "block"),
    [
        (
            "org.apache.iceberg.exceptions.RuntimeIOException: Failed to get file system for path: "
            "s3://b/x\norg.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for "
            'scheme "s3"',
            "s3",
        ),
        ("java.lang.NoClassDefFoundError: com/google/api/client/util/Lists", "gcs"),
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class "
            "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem not found",
            "azure",
        ),
    ],
)
def test_missing_jar_is_explained_by_the_missing_block(message: str, block: str) -> None:
    error = build().explain(message, "table lake.db.events")

    assert isinstance(error, PlanError)
    assert f"add `{block}: {{}}` to the block of catalog 'lake'" in error.todo


def test_fault_of_another_system_is_not_explained() -> None:
    message = (
        "HTTPError: 403 Client Error: Forbidden for url: https://storage.example/lake\n"
        "ValueError: something else"
    )

    assert build().explain(message, "here") is None
    assert build().explain("ValueError: no idea", "here") is None
