"""What a Hive metastore's faults mean, as Python's client and as Java's tells them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from icestream.contracts.faults import Fault, first_match
from icestream.errors import ConnectorError, RefusedError, TransientError, UnreachableError

if TYPE_CHECKING:
    from icestream.errors import IcestreamError

# Files lie elsewhere, and their store's faults have words in common with the metastore's; buckets
# and folders may be called after it.
OF_HIVE = re.compile(
    r"\bT(Transport|Application|Protocol)Exception|MetaException|hive\.metastore\.|iceberg\.hive|"
    r"^(InvalidObject|InvalidOperation|WaitingForLock)Exception: ",
    re.MULTILINE,
)
OF_STORE = re.compile(r"AWS Error|services\.s3|StorageException")
FAULTS = (
    Fault(
        r"failed to resolve sockaddr|UnknownHostException",
        UnreachableError,
        "no machine is known by the metastore's name",
        "Look at the spelling of `hive.uri`, and whether this machine's DNS knows the name.",
    ),
    Fault(
        r"No FileSystem for scheme|UnsupportedFileSystemException|FileSystem\S* not found",
        ConnectorError,
        "the metastore itself does not know the kind of store that `hive.warehouse` lies in",
        "Add the store's Hadoop connector to the metastore, and its settings (for `s3://` also "
        "fs.s3.impl): it makes the folders of databases and tables.",
    ),
    Fault(
        r"AccessControlException|Permission denied|[Nn]ot authorized|AuthorizationException",
        RefusedError,
        "the metastore denies access",
        "May this process's user do that there? May the metastore's own user write to "
        "`hive.warehouse`?",
    ),
    Fault(
        r"is not a valid object name|not a valid (table|database) name|InvalidObjectException",
        ConnectorError,
        "the metastore does not take the name of the namespace or table",
        "Use letters a to z, digits and underscores in `namespace` and `table`.",
    ),
    Fault(
        r"WaitingForLock|LockException|[Ww]aiting for lock|acquire the lock",
        TransientError,
        "another writer holds the table's lock in the metastore",
        "It is tried again. A lock that stays belongs to a writer that died: `SHOW LOCKS` in "
        "Hive tells which, and it goes when hive.txn.timeout has passed.",
    ),
    Fault(
        r"Could not connect to (any of|meta ?store)|[Cc]onnection ?[Rr]efused"
        r"|Failed to connect to Hive Metastore",
        UnreachableError,
        "no metastore answers",
        "Is it running? Are the addresses in `hive.uri` right? Is a firewall in between?",
    ),
    Fault(
        r"TTransportException|read 0 bytes|Broken pipe|Connection reset|[Tt]imed out",
        UnreachableError,
        "the metastore broke off the connection, or did not answer in time",
        "Is it up and well? Is the port in `hive.uri` that of its Thrift service? One that wants "
        "Kerberos or TLS is not supported.",
    ),
)


def explain(said: str, where: str) -> IcestreamError | None:
    """Return the error that a fault's text stands for; None if it is not the metastore's."""
    if not OF_HIVE.search(said) or OF_STORE.search(said):
        return None
    return first_match(FAULTS, said, where)
