"""What the refusals of Azure's storage mean, and which key of the file to look at."""

from __future__ import annotations

from icestream.contracts.faults import Fault
from icestream.errors import ConnectorError, RefusedError, UnreachableError

RIGHTS = (
    "Does the identity have the role Storage Blob Data Contributor on the container? A "
    "`sas_token` needs the permissions read, add, create, write, delete and list."
)
# Whose fault it is: sources and Spark have faults that read alike.
OF_AZURE = (
    r"(?i:azure|adls|adlfs|abfs|wasbs?://|DataLake|BlobStorage)|(dfs|blob)\.core"
    r"|HttpResponseError|ResourceNotFoundError|ClientAuthenticationError"
    r"|Service(Request|Response)Error|ErrorCode:\w|reactor\.|unable to connect to account"
)
FAULTS = (
    Fault(
        r"Request date header too old|not within the valid time|[Cc]lock skew"
        r"|RequestTimeTooSkewed|AADSTS700024",
        RefusedError,
        "this machine's clock and the store's are too far apart",
        "Set this machine's clock by NTP; a signature is good for 15 minutes.",
    ),
    Fault(
        r"Signature not valid in the specified time frame|Signed expiry|signature has expired"
        r"|token (is|has) expired|AuthenticationTokenExpired",
        RefusedError,
        "the shared access signature has run out, or is not valid yet",
        "Make a new one, and give it as `azure.sas_token`.",
    ),
    Fault(
        r"AuthorizationPermissionMismatch|AuthorizationServiceMismatch"
        r"|AuthorizationResourceTypeMismatch|InsufficientAccountPermissions",
        RefusedError,
        "the credentials are good, and do not allow this",
        RIGHTS,
    ),
    Fault(
        r"KeyBasedAuthenticationNotPermitted",
        RefusedError,
        "the account takes no access keys",
        "Leave `azure.access_key` out and use the default Azure credential chain, or allow shared "
        "keys in the account's settings.",
    ),
    Fault(
        r"AuthenticationFailed|InvalidAuthenticationInfo|NoAuthenticationInformation"
        r"|Server failed to authenticate|MAC signature",
        RefusedError,
        "the store does not accept the credentials",
        "Look at `azure.access_key` or `azure.sas_token`, and whether it belongs to "
        "`azure.storage_account`.",
    ),
    Fault(
        r"DefaultAzureCredential|ChainedTokenCredential|CredentialUnavailable"
        r"|EnvironmentCredential|ClientAuthenticationError|AADSTS",
        RefusedError,
        "no credentials were found, or they were refused",
        "Give `azure.access_key` or `azure.sas_token`, or set up the default Azure credential "
        "chain (`az login`, a managed identity, or the AZURE_ variables).",
    ),
    Fault(
        r"Incorrect padding|Illegal base64|[Ii]nvalid base64|not.{0,20}valid base64",
        RefusedError,
        "the access key is not one of Azure's: it cannot be decoded",
        "Look at `azure.access_key`: it was cut off, or holds a space or a line break.",
    ),
    Fault(
        r"ContainerNotFound|FilesystemNotFound|specified (container|filesystem) does not exist"
        r"|ContainerBeingDeleted",
        ConnectorError,
        "there is no such container",
        "Create it, or look at the spelling of `azure.container` or of the catalog's `warehouse`.",
    ),
    Fault(
        r"AuthorizationFailure|PublicAccessNotPermitted|[Ss]tatus ?[Cc]ode:? ?403|\b403,"
        r"|Forbidden",
        RefusedError,
        "the store denies access",
        f"{RIGHTS} Does the account's firewall let this machine in?",
    ),
    Fault(
        r"UnknownHost|Name or service not known|getaddrinfo|nodename nor servname"
        r"|Temporary failure in name resolution|Failed to resolve|DnsNameResolver",
        UnreachableError,
        "no machine is known by the account's name",
        "Look at the spelling of `azure.storage_account` or of the catalog's `warehouse`, or at "
        "`azure.endpoint`.",
    ),
    Fault(
        r"ServiceRequestError|ServiceResponseError|Connect call failed|Cannot connect to host"
        r"|[Cc]onnection ?[Rr]efused|[Tt]imed out|TimeoutException|ServerBusy"
        r"|[Ss]tatus ?[Cc]ode:? ?50\d",
        UnreachableError,
        "the store does not answer",
        "Is it running? Is `azure.endpoint` right? Is a firewall or a proxy in between?",
    ),
)
