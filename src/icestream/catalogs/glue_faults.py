"""What the refusals of AWS Glue mean, and which key of the file to look at.

boto says `An error occurred (CODE) when calling the NAME operation`, Java's library
`software.amazon.awssdk.services.glue.model.CODE`.
"""

from __future__ import annotations

import re

from icestream.contracts.faults import Fault
from icestream.errors import ConnectorError, RefusedError, TransientError, UnreachableError

# Faults of S3 come through the same catalog, and have a table of their own.
OF_GLUE = re.compile(
    r"services\.glue|Service: Glue|when calling the \w+ operation|glue\.[\w-]+\.amazonaws"
    r"|(NoCredentials|PartialCredentials|NoRegion|ProfileNotFound|EndpointConnection|InvalidRegion"
    r"|ConnectTimeout|ReadTimeout|ConnectionClosed|TokenRetrieval|UnauthorizedSSOToken)(Error)?: "
    r"|[Uu]nable to load (credentials|region)|GlueCatalog"
    r"|Cannot convert .{1,300} to Glue|No default path is set|derive default warehouse location"
)
NO_CREDENTIALS = (
    "Set up the default AWS chain (environment, `aws configure`, the machine's role), or name "
    "`glue.profile`; the keys of an `s3` block are not used for Glue."
)
FAULTS = (
    Fault(
        r"ExpiredToken|token included in the request is expired|TokenRetrieval"
        r"|UnauthorizedSSOToken",
        TransientError,
        "the temporary credentials have run out",
        "Sign in again (`aws sso login`), or renew the session token of the default AWS chain.",
    ),
    Fault(
        r"Signature expired|Signature not yet current|RequestExpired|RequestTimeTooSkewed",
        RefusedError,
        "this machine's clock and Amazon's are too far apart",
        "Set this machine's clock by NTP; a signature is good for 5 minutes.",
    ),
    Fault(
        r"UnrecognizedClient|InvalidClientTokenId|security token included in the request is "
        r"invalid|InvalidAccessKeyId",
        RefusedError,
        "Amazon does not know the access key",
        "Look at the keys that the default AWS chain finds (`aws sts get-caller-identity`), and at "
        "`glue.profile`.",
    ),
    Fault(
        r"scoped to a valid region|InvalidRegion",
        RefusedError,
        "the region is not the one of the address",
        "Look at `glue.region`, and at `glue.endpoint` if it is given.",
    ),
    Fault(
        r"InvalidSignature|SignatureDoesNotMatch|IncompleteSignature",
        RefusedError,
        "the signature is wrong: the secret key does not belong to the access key",
        "Look at the keys that the default AWS chain finds (`aws sts get-caller-identity`).",
    ),
    Fault(
        r"AccessDenied|not authorized to perform|Insufficient Lake Formation",
        RefusedError,
        "Glue denies access",
        "Do the credentials allow glue:GetDatabase(s), glue:GetTable(s), glue:CreateDatabase, "
        "glue:CreateTable and glue:UpdateTable? With Lake Formation, is the database granted? Is "
        "`glue.catalog_id` right?",
    ),
    Fault(
        r"NoCredentials|PartialCredentials|[Uu]nable to (load|locate) credentials",
        RefusedError,
        "no credentials were found",
        NO_CREDENTIALS,
    ),
    Fault(
        r"ProfileNotFound|config profile .{1,80} could not be found",
        RefusedError,
        "the profile is not in the AWS configuration files",
        "Look at the spelling of `glue.profile`; `aws configure list-profiles` shows what there "
        "is.",
    ),
    Fault(
        r"NoRegion|must specify a region|[Uu]nable to load region",
        ConnectorError,
        "no region is known",
        "Add e.g. `glue.region: eu-central-1`.",
    ),
    Fault(
        r"Cannot convert .{1,300} to Glue",
        ConnectorError,
        "Glue does not take the name",
        "Names in Glue have lower-case letters, digits and underscores, and a namespace has one "
        "level.",
    ),
    Fault(
        r"No default path is set|derive default warehouse location",
        ConnectorError,
        "nobody says where the table's files shall lie",
        "Add e.g. `warehouse: s3://bucket/lake` to the catalog, or give the database a location.",
    ),
    Fault(
        r"ConcurrentModification|Throttling|RateExceeded|TooManyRequests|OperationTimeout"
        r"|InternalService|ServiceUnavailable|[Ss]tatus [Cc]ode: 50\d",
        TransientError,
        "Glue is busy",
        "It is asked again by the `restart` policy. Does another job change the same tables?",
    ),
    Fault(
        r"EntityNotFound",
        ConnectorError,
        "Glue does not know the catalog, the database or the table",
        "Look at `glue.catalog_id` and `glue.region`, and at the spelling of the namespace.",
    ),
    Fault(
        r"EndpointConnection|UnknownHost|Could not connect|Connection ?[Rr]efused|[Tt]imed out"
        r"|TimeoutE|ConnectionClosed|Connect to .{1,80} failed",
        UnreachableError,
        "Glue does not answer",
        "Is `glue.region` spelt right? Is `glue.endpoint`? Is a firewall or a proxy in between?",
    ),
)
