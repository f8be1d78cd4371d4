from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from icestream.catalogs.hive import HiveCatalog, HiveCatalogOptions
from icestream.contracts.jars import AWS_BUNDLE
from icestream.errors import PlanError

TWO = "thrift://a.example:9083,thrift://b.example:9083"


def build(uri: str = TWO, **options: Any) -> HiveCatalog:
    hive = {"uri": uri, **{k: options.pop(k) for k in ("warehouse",) if k in options}}
    return HiveCatalog("lake", HiveCatalogOptions.model_validate({"hive": hive, **options}))


def test_metastore_settings_for_spark_and_pyiceberg() -> None:
    catalog = build(warehouse="s3://bucket/lake/")

    assert catalog.spark_settings() == {
        "type": "hive",
        "uri": TWO,
        "warehouse": "s3://bucket/lake",
        "cache-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    }
    properties = catalog.pyiceberg_properties()
    assert (properties["type"], properties["uri"], properties["warehouse"]) == (
        "hive",
        TWO,
        "s3://bucket/lake",
    )
    assert catalog.jars() == (AWS_BUNDLE,)
    assert catalog.identity() == f"hive {TWO}"
    assert catalog.addresses() == ["thrift://a.example:9083", "thrift://b.example:9083"]


def test_port_is_optional_and_spaces_between_addresses_are_allowed() -> None:
    catalog = build("thrift://a , thrift://[::1]:9084/", warehouse="/w")

    assert catalog.addresses() == ["thrift://a:9083", "thrift://[::1]:9084"]


def test_bucket_is_the_default_warehouse() -> None:
    assert build(s3={"bucket": "b"}).warehouse == "s3://b"


def test_catalog_without_warehouse_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        build("thrift://a")

    assert str(caught.value) == (
        "catalog 'lake' (hive thrift://a:9083): no warehouse is set\n"
        "  Add e.g. `warehouse: s3://bucket/lake` to the block `hive`, the folder or URI under "
        "which tables are created."
    )


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "does not begin with thrift://; write thrift://HOST:9083"),
        ("metastore:9083", "does not begin with thrift://; write thrift://HOST:9083"),
        ("thrift://a,", "does not begin with thrift://; write thrift://HOST:9083"),
        ("http://a:9083", "does not begin with thrift://; write thrift://HOST:9083"),
        ("thrift://a:port", "has an invalid port"),
        ("thrift://:9083", "is not the address of a metastore; write thrift://HOST:9083"),
        (
            "thrift://me:secret@a:9083",
            "is not the address of a metastore; write thrift://HOST:9083",
        ),
        ("thrift://a:9083/db", "is not the address of a metastore; write thrift://HOST:9083"),
    ],
)
def test_unusable_address_is_refused_without_showing_it(uri: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(uri, warehouse="/w")

    (error,) = caught.value.errors()
    assert error["loc"] == ("hive", "uri")
    assert error["msg"] == f"Value error, {message}"
    assert "secret" not in str(caught.value)


CONNECT = (
    "org.apache.iceberg.hive.RuntimeMetaException: Failed to connect to Hive Metastore\n"
    "org.apache.hadoop.hive.metastore.api.MetaException: Could not connect to meta store using any "
    "of the URIs provided. Most recent failure: org.apache.thrift.transport.TTransportException: "
)


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (
            f"{CONNECT}java.net.ConnectException: Connection refused",
            "UnreachableError",
            "connection to the metastore refused",
        ),
        (
            f"{CONNECT}java.net.UnknownHostException: nohost",
            "UnreachableError",
            "cannot resolve the host name of the metastore",
        ),
        (
            "TTransportException: failed to resolve sockaddr for nohost:9083",
            "UnreachableError",
            "cannot resolve the host name of the metastore",
        ),
        (
            "TTransportException: Could not connect to any of [('127.0.0.1', 1)]",
            "UnreachableError",
            "no answer from the metastore",
        ),
        (
            "TTransportException: TSocket read 0 bytes",
            "UnreachableError",
            "the metastore closed the connection or timed out",
        ),
        (
            "MetaException: MetaException(message='Got exception: org.apache.hadoop.fs."
            'UnsupportedFileSystemException No FileSystem for scheme "s3"\')',
            "ConnectorError",
            "the metastore does not support the storage that `hive.warehouse` names",
        ),
        (
            "MetaException: MetaException(message='Got exception: org.apache.hadoop.security."
            "AccessControlException Permission denied: user=me, access=WRITE')",
            "RefusedError",
            "the metastore denies access",
        ),
        (
            "InvalidObjectException: InvalidObjectException(message='a b is not a valid object "
            "name')",
            "ConnectorError",
            "the metastore rejects the name of the namespace or table",
        ),
        (
            "org.apache.iceberg.hive.LockException: Timed out after 181000 ms waiting for lock",
            "TransientError",
            "another writer holds the table's lock in the metastore",
        ),
    ],
)
def test_faults_are_explained(message: str, kind: str, what: str) -> None:
    error = build(warehouse="/w").explain(message, "table t")

    assert error is not None
    assert type(error).__name__ == kind
    assert str(error).startswith(f"table t: {what}\n  ")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("S3Exception: Access Denied (Status Code: 403) AccessDenied", "the store denies access"),
        ("SdkClientException: Connect to 127.0.0.1:9000 failed", "no answer from the store"),
        (
            "OSError: When reading s3://metastore/thrift: AWS Error ACCESS_DENIED: Permission "
            "denied",
            "the store denies access",
        ),
        (
            "org.apache.iceberg.hive.RuntimeMetaException: broken off\nsoftware.amazon.awssdk."
            "services.s3.model.S3Exception: AccessDenied",
            "the store denies access",
        ),
    ],
)
def test_faults_of_the_store_are_not_explained_by_the_catalog(message: str, what: str) -> None:
    error = build(warehouse="s3://b/w").explain(message, "table t")

    assert error is not None
    assert error.what == what


def test_unknown_fault_is_not_explained() -> None:
    assert build(warehouse="/w").explain("ValueError: odd", "table t") is None
