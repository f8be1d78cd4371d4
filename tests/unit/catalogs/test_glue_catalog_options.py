from __future__ import annotations

import pickle
from typing import Any

import pytest

from icestream.catalogs.glue import GlueCatalog, GlueCatalogOptions
from icestream.contracts.jars import AWS_BUNDLE
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    PlanError,
    RefusedError,
    TransientError,
    UnreachableError,
)
from icestream.storage.gcs import GcsOptions, GcsStorage
from icestream.storage.s3 import S3Options, S3Storage

TIMEOUTS = {"s3.connect-timeout": "10", "s3.request-timeout": "60"}


def build(**options: Any) -> GlueCatalog:
    return GlueCatalog("lake", GlueCatalogOptions.model_validate({"type": "glue", **options}))


def test_glue_settings_for_spark_and_pyiceberg() -> None:
    settings = {"region": "eu-west-1", "catalog_id": "123", "profile": "work"}
    catalog = build(glue=settings, warehouse="s3://bucket/lake/")

    assert catalog.spark_settings() == {
        "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
        "cache-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": "eu-west-1",
        "glue.id": "123",
        "warehouse": "s3://bucket/lake",
    }
    assert catalog.pyiceberg_properties() == {
        "type": "glue",
        "glue.region": "eu-west-1",
        "glue.id": "123",
        "glue.profile-name": "work",
        "s3.region": "eu-west-1",
        "warehouse": "s3://bucket/lake",
        **TIMEOUTS,
    }
    assert catalog.environment() == {"AWS_PROFILE": "work"}
    assert catalog.jars() == (AWS_BUNDLE,)
    assert catalog.identity() == "glue eu-west-1, account 123"
    assert catalog.storage_location() == "s3://bucket/lake"
    assert catalog.addresses() == []


def test_block_may_be_left_out() -> None:
    catalog = build()

    assert catalog.identity() == "glue of Amazon"
    assert "warehouse" not in catalog.spark_settings()
    assert "client.region" not in catalog.spark_settings()
    assert catalog.environment() == {}
    assert catalog.storage_location() is None


def test_keys_of_s3_are_not_used_for_glue() -> None:
    s3 = {"bucket": "b", "access_key_id": "id", "secret_access_key": "secret", "region": "eu-1"}
    properties = build(s3=s3).pyiceberg_properties()

    assert properties["s3.access-key-id"] == "id"
    assert properties["glue.region"] == "eu-1"
    assert properties["warehouse"] == "s3://b"
    assert not [name for name in properties if name.startswith("glue.") and "key" in name]


def test_other_endpoint_accepts_any_region() -> None:
    catalog = build(
        glue={"endpoint": "http://127.0.0.1:5000"},
        s3={"endpoint": "http://127.0.0.1:5000", "path_style_access": True, "bucket": "b"},
    )

    assert catalog.addresses() == ["http://127.0.0.1:5000"]
    assert catalog.spark_settings()["glue.endpoint"] == "http://127.0.0.1:5000"
    assert catalog.spark_settings()["client.region"] == "us-east-1"
    assert catalog.pyiceberg_properties()["glue.endpoint"] == "http://127.0.0.1:5000"
    assert catalog.pyiceberg_properties()["glue.region"] == "us-east-1"


def test_glue_and_s3_share_a_region_in_both_clients() -> None:
    catalog = build(glue={"region": "eu-west-1"}, s3={"endpoint": "http://s3", "bucket": "b"})

    assert catalog.spark_settings()["client.region"] == "eu-west-1"
    assert catalog.pyiceberg_properties()["s3.region"] == "eu-west-1"


def test_storage_of_the_sink_takes_precedence() -> None:
    storage = S3Storage(S3Options.model_validate({"bucket": "sinks"}))
    options = GlueCatalogOptions.model_validate({"s3": {"bucket": "catalogs"}})

    assert GlueCatalog("lake", options, storage).storage_location() == "s3://sinks"


@pytest.mark.parametrize(
    ("key", "other"), [("region", "eu-1"), ("profile", "home")], ids=["region", "profile"]
)
def test_different_values_for_glue_and_s3_are_refused(key: str, other: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(glue={key: "work"}, s3={key: other, "bucket": "b"})

    assert str(caught.value).splitlines() == [
        f"catalog 'lake' (glue {'work' if key == 'region' else 'of Amazon'}): `glue.{key}` is "
        f"'work' and `s3.{key}` is {other!r}, but Spark has one {key} for both",
        "  Set both to the same value, or remove one of them.",
    ]


@pytest.mark.parametrize("warehouse", ["/data/lake", "gs://bucket/lake"])
def test_tables_outside_s3_are_refused(warehouse: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(warehouse=warehouse)

    shown = warehouse if ":" in warehouse else f"file://{warehouse}"
    assert str(caught.value) == (
        f"catalog 'lake' (glue): tables of Glue must be in S3, not in {shown}\n"
        "  Set a `warehouse` that begins with s3://, and an `s3` block if the default AWS chain "
        "is not enough."
    )


def test_other_store_of_the_sink_is_refused() -> None:
    storage = GcsStorage(GcsOptions.model_validate({}))

    with pytest.raises(PlanError, match="tables of Glue must be in S3, not in gcs of Google"):
        GlueCatalog("lake", GlueCatalogOptions.model_validate({}), storage)


def test_pickled_copy_is_the_same_catalog() -> None:
    catalog = build(glue={"region": "eu-west-1"}, warehouse="s3://b/w")

    copy: GlueCatalog = pickle.loads(pickle.dumps(catalog))  # noqa: S301 - our own bytes

    assert copy.spark_settings() == catalog.spark_settings()


BOTO = "ClientError: An error occurred ({}) when calling the GetDatabases operation: {}"
JAVA = "software.amazon.awssdk.services.glue.model.{}: {} (Service: Glue, Status Code: 400)"


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (
            BOTO.format("AccessDeniedException", "User: x is not authorized to perform"),
            RefusedError,
            "Glue denies access",
        ),
        (JAVA.format("AccessDeniedException", "no"), RefusedError, "Glue denies access"),
        (
            BOTO.format("UnrecognizedClientException", "The security token is invalid."),
            RefusedError,
            "Amazon does not know the access key",
        ),
        (
            JAVA.format("GlueException", "The security token included in the request is invalid."),
            RefusedError,
            "Amazon does not know the access key",
        ),
        (
            BOTO.format("ExpiredTokenException", "The security token is expired"),
            TransientError,
            "the temporary credentials have expired",
        ),
        (
            BOTO.format("InvalidSignatureException", "Signature expired: 20261115T000000Z"),
            RefusedError,
            "this machine's clock and Amazon's are too far apart",
        ),
        (
            BOTO.format(
                "InvalidSignatureException", "Credential should be scoped to a valid region."
            ),
            RefusedError,
            "the region does not match the endpoint",
        ),
        (
            BOTO.format("EntityNotFoundException", "Catalog not found."),
            ConnectorError,
            "Glue has no such catalog, database or table",
        ),
        (
            "NoCredentialsError: Unable to locate credentials",
            RefusedError,
            "no credentials were found",
        ),
        (
            "software.amazon.awssdk.core.exception.SdkClientException: Unable to load credentials "
            "from any of the providers in the chain",
            RefusedError,
            "no credentials were found",
        ),
        (
            "ProfileNotFound: The config profile (work) could not be found",
            RefusedError,
            "the profile is not in the AWS configuration files",
        ),
        ("NoRegionError: You must specify a region.", ConnectorError, "no region is set"),
        (
            "org.apache.iceberg.exceptions.ValidationException: Cannot convert namespace a.b to "
            "Glue database name, because it must be 1-252 chars",
            ConnectorError,
            "Glue rejects the name",
        ),
        (
            'EndpointConnectionError: Could not connect to the endpoint URL: "https://glue.x/"',
            UnreachableError,
            "no answer from Glue",
        ),
        (
            "java.net.UnknownHostException: glue.eu-cntral-1.amazonaws.com",
            UnreachableError,
            "cannot resolve the host name of Glue",
        ),
        (
            BOTO.format("ThrottlingException", "Rate exceeded"),
            TransientError,
            "Glue is busy",
        ),
    ],
)
def test_fault_of_glue_is_explained(message: str, kind: type[IcestreamError], what: str) -> None:
    error = build().explain(message, "catalog 'lake'")

    assert type(error) is kind
    assert error.what == what
    assert error.where == "catalog 'lake'"
    assert error.todo


def test_fault_of_the_store_is_left_to_the_store() -> None:
    message = "OSError: AWS Error ACCESS_DENIED during PutObject operation"

    error = build().explain(message, "catalog 'lake'")

    assert error is not None
    assert error.what == "the store denies access"
