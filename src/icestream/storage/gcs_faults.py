"""What the refusals of Google Cloud Storage mean, and which key of the file to look at.

The same fault has an HTTP status, which Java shows, and a name of the C++ library
(`PERMISSION_DENIED`), which Arrow shows.
"""

from __future__ import annotations

from icestream.contracts.faults import Fault
from icestream.errors import ConnectorError, RefusedError, UnreachableError

# Whose fault it is: sources and Spark have faults that read alike.
OF_GCS = (
    r"google::cloud|com\.google\.(cloud|api|auth)|StorageException|gs://|GCSFileIO"
    r"|(storage|oauth2)\.googleapis|cloud\.google\.com|metadata\.google|gcsfs"
    r"|GOOGLE_APPLICATION_CREDENTIALS|Application\s+Default Credentials"
)
FAULTS = (
    Fault(
        r"invalid_grant.{0,80}(iat|exp|short-lived|time)|Token used too (early|late)",
        RefusedError,
        "this machine's clock and Google's are too far apart",
        "Set this machine's clock by NTP; a signature is good for an hour.",
    ),
    Fault(
        r"invalid_grant|Invalid JWT|account not found|invalid_client",
        RefusedError,
        "Google does not accept the key of the service account",
        "Was the key deleted, or the account? Make a new key, and give it as "
        "`gcs.service_account_key`.",
    ),
    Fault(
        r"[Ee]rror reading credential file|[Ii]nvalid (contents in|PKCS|private key)"
        r"|Cannot open credentials file|credentials? file .{0,200}(does not exist|parse)",
        RefusedError,
        "the key of the service account cannot be read",
        "Look at `gcs.service_account_key`, or at the variable GOOGLE_APPLICATION_CREDENTIALS: "
        "on a cluster the file must be on every machine.",
    ),
    Fault(
        r"default credentials were not found|[Cc]ould not find [Dd]efault [Cc]redentials"
        r"|automatically determine credentials|metadata\.google\.internal",
        RefusedError,
        "no credentials were found",
        "Give `gcs.service_account_key`, or set up application default credentials "
        "(`gcloud auth application-default login`, or the machine's service account).",
    ),
    Fault(
        # To list or to write, nothing but the bucket must be there.
        r"bucket does not exist|[Bb]ucket .{0,80}not (be )?found|404 Not Found\s+POST \S+/upload/"
        r"|retry\.function=(ListObjects|CreateResumableUpload|Insert\w+).{0,200}status_code=404",
        ConnectorError,
        "there is no such bucket",
        "Create it, or look at the spelling of `gcs.bucket` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"UNAUTHENTICATED|401 Unauthorized|Invalid Credentials|Anonymous caller|status_code=401",
        RefusedError,
        "the store does not accept the credentials",
        "Look at `gcs.service_account_key`; without it, at the application default credentials.",
    ),
    Fault(
        r"PERMISSION_DENIED|403 Forbidden|does not have storage\.|status_code=403",
        RefusedError,
        "the store denies access",
        "Does the account have the role Storage Object Admin on the bucket, or at least "
        "storage.objects.list, get, create and delete?",
    ),
    Fault(
        r"UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]ould ?n.?t (connect|resolve)|UnknownHost"
        r"|[Cc]onnection ?[Rr]efused|timed out|TimeoutException|status_code=(429|50\d)"
        r"|StorageException: (429|50\d)",
        UnreachableError,
        "the store does not answer",
        "Is it running? Is `gcs.endpoint` right? Is a firewall or a proxy in between?",
    ),
)
