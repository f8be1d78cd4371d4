"""What Nessie's faults mean, as our own client and as Java's tells them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from icestream.contracts.faults import Fault, first_match
from icestream.errors import ConnectorError, RefusedError, TransientError, UnreachableError

if TYPE_CHECKING:
    from icestream.errors import IcestreamError

# Files lie elsewhere, and their store's faults have words in common with the server's; buckets and
# folders may be called after it.
OF_NESSIE = re.compile(
    r"\bNessie(:| answered| ref )|NessieApi|projectnessie|iceberg\.nessie|with url: \S*/api/v\d/"
)
OF_STORE = re.compile(r"AWS Error|services\.s3|StorageException")
NO_BRANCH = re.compile(
    r"REFERENCE_NOT_FOUND|NessieReferenceNotFound|Named reference .{1,200} not found"
    r"|Nessie ref .{1,200} does not exist"
)
FAULTS = (
    Fault(
        r"answered 401|Unauthorized|NessieNotAuthorized|HTTP.401|status code:? 401",
        RefusedError,
        "Nessie does not accept the token, or wants one",
        "Look at `nessie.token`, and whether it has run out.",
    ),
    Fault(
        r"answered 403|Forbidden|ACCESS_CHECK|HTTP.403|status code:? 403",
        RefusedError,
        "Nessie denies access",
        "Does the server let this user read and commit on `nessie.branch`?",
    ),
    Fault(
        r"UnknownHost|UnresolvedAddress|NameResolution|resolve host|Name or service not known",
        UnreachableError,
        "no machine is known by Nessie's name",
        "Look at the spelling of `nessie.uri`, and whether this machine's DNS knows the name.",
    ),
    Fault(
        r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLHandshake|PKIX path",
        ConnectorError,
        "Nessie's certificate is not trusted",
        "Is `nessie.uri` right? Let Python (REQUESTS_CA_BUNDLE) and Java (its trust store) trust "
        "the server's authority.",
    ),
    Fault(
        r"answered 404|Not Found|no JSON|JsonParseException|Unexpected character",
        ConnectorError,
        "what answers at that path is not Nessie's API",
        "Look at `nessie.uri`; it is mostly `http://HOST:19120/api/v2`.",
    ),
    Fault(
        r"answered 5\d\d|answered 429|HTTP.50\d|ServiceUnavailable|status code:? 50\d",
        TransientError,
        "Nessie has a fault of its own",
        "It is tried again. Look at the server's log, and at its database.",
    ),
    Fault(
        r"[Cc]onnection ?[Rr]efused|ConnectException|[Tt]imed? ?out|Connection aborted"
        r"|Connection reset|Failed to establish|Failed to execute|HttpClient\w*Exception",
        UnreachableError,
        "Nessie does not answer",
        "Is it running? Is the address in `nessie.uri` right? Is a firewall in between?",
    ),
)


def explain(said: str, where: str, *, branch: str) -> IcestreamError | None:
    """Return the error that a fault's text stands for; None if it is not Nessie's.

    Args:
        said: what the client says.
        where: the place, for the message.
        branch: the branch of the file.
    """
    if not OF_NESSIE.search(said) or OF_STORE.search(said):
        return None
    if NO_BRANCH.search(said):
        return ConnectorError(
            f"Nessie has no branch {branch!r}",
            where=where,
            todo="Look at the spelling of `nessie.branch`, or create the branch.",
        )
    return first_match(FAULTS, said, where)
