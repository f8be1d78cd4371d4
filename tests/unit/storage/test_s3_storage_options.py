from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from icestream.contracts.jars import AWS_BUNDLE
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
    UnreachableError,
)
from icestream.storage.blocks import StorageBlocks, storage_at
from icestream.storage.s3 import S3Options, S3Storage

KEYS = {"access_key_id": "id", "secret_access_key": "secret"}
TIMEOUTS = {"s3.connect-timeout": "10", "s3.request-timeout": "60"}


def build(**options: Any) -> S3Storage:
    return S3Storage(S3Options.model_validate(options))


def test_compatible_store_settings_for_spark_and_pyiceberg() -> None:
    storage = build(endpoint="http://127.0.0.1:9000", path_style_access=True, bucket="b", **KEYS)

    assert storage.spark_settings() == {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.access-key-id": "id",
        "s3.secret-access-key": "secret",
        "client.region": "us-east-1",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.path-style-access": "true",
    }
    assert storage.pyiceberg_properties() == {
        "s3.access-key-id": "id",
        "s3.secret-access-key": "secret",
        "s3.region": "us-east-1",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.force-virtual-addressing": "false",
        **TIMEOUTS,
    }
    assert storage.warehouse() == "s3://b"
    assert storage.jars() == (AWS_BUNDLE,)
    assert storage.identity() == "s3 http://127.0.0.1:9000"
    assert storage.environment() == {}


def test_session_token_is_set_in_both_clients() -> None:
    storage = build(region="eu-west-1", session_token="token", **KEYS)  # noqa: S106

    assert storage.spark_settings()["s3.session-token"] == "token"
    assert storage.pyiceberg_properties()["s3.session-token"] == "token"
    assert storage.pyiceberg_properties()["s3.region"] == "eu-west-1"


def test_profile_is_set_in_the_environment() -> None:
    storage = build(profile="work", region="eu-west-1")

    assert storage.environment() == {"AWS_PROFILE": "work"}
    assert storage.identity() == "s3 eu-west-1, profile work"


def test_address_alone_uses_the_default_chain() -> None:
    storage = storage_at("s3a://bucket/lake")

    assert isinstance(storage, S3Storage)
    assert storage.spark_settings() == {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    assert storage.pyiceberg_properties() == TIMEOUTS
    assert storage.covers("s3://bucket/lake")
    assert not storage.covers("/lake")


def test_secrets_of_the_options_are_never_shown() -> None:
    options = build(session_token="t0ken", **KEYS).options  # noqa: S106

    assert "secret'" not in f"{options!r} {options}"
    assert "t0ken" not in f"{options!r} {options}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"access_key_id": "id"},
            "`access_key_id` and `secret_access_key` must be set together",
        ),
        (
            {"session_token": "t"},
            "`session_token` needs `access_key_id` and `secret_access_key`",
        ),
        ({"profile": "p", **KEYS}, "has both `profile` and keys; keep one of them"),
    ],
)
def test_incomplete_or_conflicting_keys_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build(**options)

    (error,) = caught.value.errors()
    assert error["msg"] == f"Value error, {message}"


def test_two_storage_blocks_are_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        StorageBlocks.model_validate({"s3": {}, "gcs": {}})

    (error,) = caught.value.errors()
    assert error["msg"] == (
        "Value error, has gcs and s3; keep one block, since all files are in one store"
    )


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (
            "OSError: When listing: AWS Error ACCESS_DENIED during ListObjectsV2 operation",
            RefusedError,
            "the store denies access",
        ),
        (
            "software.amazon.awssdk.services.s3.model.S3Exception: null (Service: S3, "
            "Status Code: 403, Request ID: null)",
            RefusedError,
            "the store denies access",
        ),
        (
            "OSError: AWS Error INVALID_ACCESS_KEY_ID during HeadObject operation",
            RefusedError,
            "the store does not know the access key id",
        ),
        (
            "OSError: AWS Error SIGNATURE_DOES_NOT_MATCH during PutObject operation",
            RefusedError,
            "the signature is wrong: the secret key does not belong to the access key id",
        ),
        (
            "S3Exception: The provided token has expired. (Code: ExpiredToken, Status Code: 400)",
            TransientError,
            "the temporary credentials have expired",
        ),
        (
            "OSError: AWS Error REQUEST_TIME_TOO_SKEWED during PutObject operation",
            RefusedError,
            "this machine's clock and the store's are too far apart",
        ),
        (
            "NoSuchBucketException: The specified bucket does not exist",
            ConnectorError,
            "there is no such bucket",
        ),
        (
            "S3Exception: null (Service: S3, Status Code: 301)",
            RefusedError,
            "the bucket is in another region",
        ),
        (
            "SdkClientException: Unable to load credentials from any of the providers",
            RefusedError,
            "no credentials were found",
        ),
        (
            "OSError: AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7",
            UnreachableError,
            "no answer from the store",
        ),
    ],
)
def test_fault_of_the_store_is_explained(
    message: str, kind: type[IcestreamError], what: str
) -> None:
    error = build().explain(message, "storage s3")

    assert type(error) is kind
    assert error.what == what
    assert error.where == "storage s3"
    assert error.todo


def test_bucket_before_the_host_hints_at_path_style() -> None:
    message = (
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request\n"
        "java.net.UnknownHostException: b.store.local: Name or service not known"
    )
    error = build(endpoint="http://store.local:9000").explain(message, "storage s3")

    assert isinstance(error, UnreachableError)
    assert str(error) == (
        "storage s3: cannot resolve the host name 'store.local', or the bucket's name before it\n"
        "  Check the spelling of `s3.endpoint`. "
        "Set `s3.path_style_access: true`, as most S3-compatible stores need."
    )


def test_bucket_missing_from_the_path_hints_at_path_style() -> None:
    message = "OSError: AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"

    error = build(endpoint="http://localhost:9000").explain(message, "storage s3")

    assert str(error) == (
        "storage s3: the store does not find the bucket's name in the request\n"
        "  Set `s3.path_style_access: true`, as most S3-compatible stores need."
    )
    styled = build(endpoint="http://localhost:9000", path_style_access=True)
    assert styled.explain(message, "storage s3") is None
    assert build().explain(message, "storage s3") is None


def test_unknown_fault_of_s3_is_not_explained() -> None:
    assert build().explain("ValueError: something else", "storage s3") is None
