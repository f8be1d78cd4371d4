"""What an S3 store's refusals mean, and which key of the file to look at.

The same fault has a name of Amazon's protocol (`AccessDenied`), which Java shows, and one of the
C++ library (`ACCESS_DENIED`), which Arrow shows.
"""

from __future__ import annotations

import re

from icestream.contracts.faults import Fault, first_match
from icestream.errors import (
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
    UnreachableError,
)

RIGHTS = (
    "Are the credentials those of the right account? Do they allow s3:ListBucket, s3:GetObject, "
    "s3:PutObject and s3:DeleteObject on the bucket?"
)
# Whose fault it is: sources and Spark have faults that read alike.
OF_S3 = (
    r"AWS Error|S3Exception|services\.s3|s3[an]?://|S3FileIO|[Aa]mazon|aws-sdk|awssdk"
    r"|SdkClientException|NoSuchBucket|botocore|s3fs"
)
FAULTS = (
    Fault(
        r"ExpiredToken|EXPIRED_TOKEN|token included in the request is expired",
        TransientError,
        "the temporary credentials have run out",
        "Renew `s3.session_token` with its keys, or let the default AWS chain renew them: leave "
        "the keys out.",
    ),
    Fault(
        r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|InvalidClientTokenId|UnrecognizedClient",
        RefusedError,
        "the store does not know the access key id",
        "Look at `s3.access_key_id`, and whether `s3.endpoint` is the store that it belongs to.",
    ),
    Fault(
        r"SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH",
        RefusedError,
        "the signature is wrong: the secret key does not belong to the access key id",
        "Look at `s3.secret_access_key`: no space or line break may be at its end.",
    ),
    Fault(
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|RequestExpired|REQUEST_EXPIRED",
        RefusedError,
        "this machine's clock and the store's are too far apart",
        "Set this machine's clock by NTP; a signature is good for 15 minutes.",
    ),
    Fault(
        r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist",
        ConnectorError,
        "there is no such bucket",
        "Create it, or look at the spelling of `s3.bucket` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
        r"|[Ss]tatus [Cc]ode:? ?30[17]|HTTP status 301|region.{1,40}is wrong",
        RefusedError,
        "the bucket lies in another region",
        "Set `s3.region` to the bucket's own; `aws s3api get-bucket-location` tells it.",
    ),
    Fault(
        r"AccessDenied|ACCESS_DENIED|[Ss]tatus [Cc]ode:? ?403|HTTP status 403|Forbidden",
        RefusedError,
        "the store denies access",
        f"{RIGHTS} S3-compatible stores mostly want `s3.path_style_access: true`.",
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
        "no region is known",
        "Add e.g. `s3.region: eu-central-1`.",
    ),
    Fault(
        r"NETWORK_CONNECTION|UnknownHost|resolve host|[Tt]imed out|TimeoutException|curlCode"
        r"|SlowDown|SLOW_DOWN|SERVICE_UNAVAILABLE|[Ss]tatus [Cc]ode:? ?50\d|HTTP status 50\d"
        r"|Connection ?[Rr]efused|Connect to .{1,80} failed",
        UnreachableError,
        "the store does not answer",
        "Is it running? Are `s3.endpoint` and `s3.region` right? Is a firewall in between?",
    ),
)
PATH_STYLE = "Set `s3.path_style_access: true`, as most S3-compatible stores want."
# A bucket before `localhost` is this machine too, and the store takes the key for a bucket.
MISUNDERSTOOD = re.compile(r"HTTP status 40[05]|[Ss]tatus [Cc]ode:? ?40[05]|InvalidBucketName")
UNRESOLVED = re.compile(r"resolve host|UnknownHost", re.IGNORECASE)


def explain(
    said: str, where: str, *, endpoint: str | None, path_style: bool
) -> IcestreamError | None:
    """Return the error that a fault's text stands for; None if nothing is known of it.

    Args:
        said: what the library says.
        where: the place, for the message.
        endpoint: the host of a store that is not Amazon's.
        path_style: whether the bucket is put into the path.
    """
    if endpoint is not None and not path_style and UNRESOLVED.search(said):
        return UnreachableError(
            f"no machine is known by the name {endpoint!r}, or by the bucket's name before it",
            where=where,
            todo=f"Look at the spelling of `s3.endpoint`. {PATH_STYLE}",
        )
    known = first_match(FAULTS, said, where)
    if known is None and endpoint is not None and not path_style and MISUNDERSTOOD.search(said):
        return ConnectorError(
            "the store does not understand where the bucket's name is",
            where=where,
            todo=PATH_STYLE,
        )
    return known
