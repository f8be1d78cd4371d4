"""S3, and stores that implement its protocol."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from icestream.contracts.faults import (
    NAME_NOT_RESOLVED,
    TIMED_OUT,
    CheckStep,
    Fault,
    check_connection,
    first_match,
    mentions,
    transport_faults,
)
from icestream.contracts.jars import AWS_BUNDLE
from icestream.contracts.options import HttpAddress, Options
from icestream.contracts.storage import Storage
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
    UnreachableError,
)
from icestream.storage.probing import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.errors import IcestreamError


PERMISSIONS_HINT = (
    "Are the credentials those of the right account? Do they allow s3:ListBucket, s3:GetObject, "
    "s3:PutObject and s3:DeleteObject on the bucket?"
)
# Recognises whose fault it is: sources and Spark report similar ones.
S3_PATTERN = (
    r"AWS Error|S3Exception|services\.s3|s3[an]?://|S3FileIO|[Aa]mazon|aws-sdk|awssdk"
    r"|SdkClientException|NoSuchBucket|botocore|s3fs"
)
FAULTS = (
    Fault(
        r"ExpiredToken|EXPIRED_TOKEN|token included in the request is expired",
        TransientError,
        "the temporary credentials have expired",
        "Renew `s3.session_token` with its keys, or let the default AWS chain renew them: leave "
        "the keys out.",
    ),
    Fault(
        r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|InvalidClientTokenId|UnrecognizedClient",
        RefusedError,
        "the store does not know the access key id",
        "Check `s3.access_key_id`, and that `s3.endpoint` is the store that it belongs to.",
    ),
    Fault(
        r"SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH",
        RefusedError,
        "the signature is wrong: the secret key does not belong to the access key id",
        "Check `s3.secret_access_key`: it must not end with a space or a line break.",
    ),
    Fault(
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|RequestExpired|REQUEST_EXPIRED",
        RefusedError,
        "this machine's clock and the store's are too far apart",
        "Synchronise this machine's clock with NTP; signatures are valid for 15 minutes.",
    ),
    Fault(
        r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist",
        ConnectorError,
        "there is no such bucket",
        "Create it, or check the spelling of `s3.bucket` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
        r"|[Ss]tatus [Cc]ode:? ?30[17]|HTTP status 301|region.{1,40}is wrong",
        RefusedError,
        "the bucket is in another region",
        "Set `s3.region` to the bucket's; `aws s3api get-bucket-location` prints it.",
    ),
    Fault(
        r"AccessDenied|ACCESS_DENIED|[Ss]tatus [Cc]ode:? ?403|HTTP status 403|Forbidden",
        RefusedError,
        "the store denies access",
        f"{PERMISSIONS_HINT} Most S3-compatible stores need `s3.path_style_access: true`.",
    ),
    Fault(
        r"[Uu]nable to load credentials|Unable to locate credentials",
        RefusedError,
        "no credentials were found",
        "Give `s3.access_key_id` and `s3.secret_access_key`, `s3.profile`, or set up the default "
        "AWS chain (environment, `aws configure`, the machine's role).",
    ),
    Fault(
        r"[Uu]nable to load region|region must not be null",
        ConnectorError,
        "no AWS region is set",
        "Add e.g. `s3.region: eu-central-1`.",
    ),
    *transport_faults(
        "the store",
        "`s3.endpoint` and `s3.region`",
        no_answer=rf"{TIMED_OUT}|NETWORK_CONNECTION|curlCode|SlowDown|SLOW_DOWN"
        r"|SERVICE_UNAVAILABLE|[Ss]tatus [Cc]ode:? ?50\d|HTTP status 50\d"
        r"|Connect to .{1,80} failed",
    ),
)
PATH_STYLE = "Set `s3.path_style_access: true`, as most S3-compatible stores need."
# `bucket.localhost` resolves to this machine, and the store then takes the key for a bucket.
BUCKET_NOT_IN_PATH = re.compile(r"HTTP status 40[05]|[Ss]tatus [Cc]ode:? ?40[05]|InvalidBucketName")


def explain(
    text: str, where: str, *, endpoint: str | None, path_style: bool
) -> IcestreamError | None:
    """Return the error for a fault's text; None if it is unknown.

    Args:
        text: the library's message.
        where: the location, for the message.
        endpoint: the host of a store that is not Amazon's.
        path_style: whether requests have the bucket in the path.
    """
    if endpoint is not None and not path_style and re.search(NAME_NOT_RESOLVED, text):
        return UnreachableError(
            f"cannot resolve the host name {endpoint!r}, or the bucket's name before it",
            where=where,
            todo=f"Check the spelling of `s3.endpoint`. {PATH_STYLE}",
        )
    error = first_match(FAULTS, text, where)
    if (
        error is None
        and endpoint is not None
        and not path_style
        and BUCKET_NOT_IN_PATH.search(text)
    ):
        return ConnectorError(
            "the store does not find the bucket's name in the request",
            where=where,
            todo=PATH_STYLE,
        )
    return error


CONNECT_SECS = 10
REQUEST_SECS = 60
# Most stores that are not Amazon's accept any region, and signing needs one.
ANY_REGION = "us-east-1"
AMAZON = re.compile(r"(^|\.)amazonaws\.com(\.cn)?$")


class S3Options(Options):
    """S3 storage; without keys, the default AWS chain."""

    region: str | None = Field(None, description="AWS region.")
    bucket: str | None = Field(
        None, description="Bucket; the default warehouse if the catalog names none."
    )
    endpoint: HttpAddress | None = Field(None, description="Address of an S3-compatible store.")
    path_style_access: bool = Field(
        False, description="Put the bucket into the path, as most S3-compatible stores need."
    )
    access_key_id: SecretStr | None = Field(None, description="Access key id.")
    secret_access_key: SecretStr | None = Field(None, description="Secret access key.")
    session_token: SecretStr | None = Field(None, description="Token of temporary credentials.")
    profile: str | None = Field(None, description="Profile of the AWS configuration files.")

    @model_validator(mode="after")
    def _check_keys(self) -> S3Options:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("`access_key_id` and `secret_access_key` must be set together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("`session_token` needs `access_key_id` and `secret_access_key`")
        if self.profile is not None and self.access_key_id is not None:
            raise ValueError("has both `profile` and keys; keep one of them")
        return self


class S3Storage(Storage):
    """S3 buckets, through Iceberg's S3FileIO and Arrow's file system."""

    kind = "s3"
    schemes = ("s3", "s3a", "s3n")
    options_type = S3Options
    description = "S3 storage."
    bucket_option = "bucket"
    missing_jars = r"No FileSystem for scheme \"?s3|NoClassDefFoundError: software/amazon/"

    def __init__(self, options: S3Options) -> None:
        self.options = options
        # Looked up here: the processes that this is sent to may have other variables.
        self._region = options.region or region_at(options.endpoint)

    def identity(self) -> str:
        options = self.options
        endpoint = options.endpoint or options.region or "of Amazon"
        return f"s3 {endpoint}" + (f", profile {options.profile}" if options.profile else "")

    def warehouse(self) -> str | None:
        return f"s3://{self.options.bucket}" if self.options.bucket else None

    def jars(self) -> tuple[str, ...]:
        return (AWS_BUNDLE,)

    def environment(self) -> dict[str, str]:
        # The one setting of a profile that AWS's Java, C++ and Python libraries share.
        return {"AWS_PROFILE": self.options.profile} if self.options.profile else {}

    def chain_variables(self) -> tuple[str, ...]:
        has_credentials = self.options.profile or self.options.access_key_id
        return () if has_credentials else ("AWS_PROFILE",)

    def spark_settings(self) -> dict[str, str]:
        settings = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **self._keys()}
        # Java reads only AWS_REGION, not AWS_DEFAULT_REGION.
        region = self._region or (None if os.getenv("AWS_REGION") else _default_region())
        if region is not None:
            settings["client.region"] = region
        if self.options.endpoint is not None:
            settings["s3.endpoint"] = self.options.endpoint
        if self.options.path_style_access:
            settings["s3.path-style-access"] = "true"
        return settings

    def pyiceberg_properties(self) -> dict[str, str]:
        properties = {
            **self._keys(),
            "s3.connect-timeout": str(CONNECT_SECS),
            "s3.request-timeout": str(REQUEST_SECS),
        }
        if self._region is not None:
            properties["s3.region"] = self._region
        if self.options.endpoint is not None:
            properties["s3.endpoint"] = self.options.endpoint
            virtual = "false" if self.options.path_style_access else "true"
            properties["s3.force-virtual-addressing"] = virtual
        return properties

    def check(self, warehouse: str) -> Iterator[CheckStep]:
        endpoint = self.options.endpoint
        if endpoint is not None:
            where = f"storage {self.identity()}"
            yield CheckStep(
                "reach store", lambda: check_connection(endpoint, where, "`s3.endpoint`")
            )
        yield from probe(self, warehouse)

    def explain(self, text: str, where: str) -> IcestreamError | None:
        if not mentions(text, S3_PATTERN, self.options.endpoint):
            return None
        host = urlsplit(self.options.endpoint or "").hostname
        return explain(text, where, endpoint=host, path_style=self.options.path_style_access)

    def _keys(self) -> dict[str, str]:
        options = self.options
        keys = {
            "s3.access-key-id": options.access_key_id,
            "s3.secret-access-key": options.secret_access_key,
            "s3.session-token": options.session_token,
        }
        return {name: key.get_secret_value() for name, key in keys.items() if key is not None}


def region_at(endpoint: str | None) -> str | None:
    """Return the region for an endpoint without one; None to let the client libraries find it.

    Java and Python look in different places, and the store checks the region that a request was
    signed for.
    """
    if endpoint is None:
        return None
    region = os.getenv("AWS_REGION") or _default_region()
    is_amazon = AMAZON.search(urlsplit(endpoint).hostname or "")
    return region or (None if is_amazon else ANY_REGION)


def _default_region() -> str | None:
    return os.getenv("AWS_DEFAULT_REGION") or None
