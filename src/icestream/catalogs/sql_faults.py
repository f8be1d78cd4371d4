"""What the faults of a SQL catalog's database mean while a pipeline runs.

Iceberg's JDBC catalog wraps the driver's exception; the driver's own text says what happened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from icestream.contracts.faults import Fault, first_match
from icestream.errors import RefusedError, TransientError, UnreachableError

if TYPE_CHECKING:
    from icestream.errors import IcestreamError

# Sources and stores are refused connections too, and must not be taken for the database.
OF_DATABASE = re.compile(
    r"\bP?SQL\w*Exception|UncheckedSQL|\borg\.(postgresql|mariadb|sqlite)\b|sqlalchemy"
    r"|\b(psycopg|pymysql|sqlite3)\.|\bSQLITE_"
)
BROKE_OFF = "the catalog's database broke off"
ANYWHERE = (
    Fault(
        r"password authentication failed|no pg_hba.conf entry|Access denied for user"
        r"|permission denied for|role .{1,80} does not exist",
        RefusedError,
        "the catalog's database refuses the user",
        "Look at `jdbc.user` and `jdbc.password`, and at what the user may do in the database.",
    ),
    Fault(
        r"SQLITE_BUSY|SQLITE_LOCKED|database is locked",
        TransientError,
        "another process holds the catalog's database locked",
        "It is asked again by the `restart` policy. Look for the process if it goes on.",
    ),
)
OVER_A_NETWORK = (
    Fault(
        r"Connection (to .{1,120} )?refused|Connection ?[Rr]efused|UnknownHostException"
        r"|connection attempt failed|[Ss]ocket fail to connect|Communications link failure",
        UnreachableError,
        "nobody answers at the address of the catalog's database",
        "Is it running? Is `jdbc.uri` right? Is a firewall in between?",
    ),
    Fault(
        r"terminating connection|the database system is (starting|shutting)|I/O error occurred"
        r"|Connection reset|Broken pipe|connection has been closed|[Cc]onnection is closed"
        r"|SQLNonTransientConnectionException|SQLTransientConnectionException|EOFException"
        r"|unexpected end of stream|too many (clients|connections)|Lock wait timeout|[Dd]eadlock",
        TransientError,
        BROKE_OFF,
        "It is asked again by the `restart` policy. Look at the database's log if it goes on.",
    ),
)
UNKNOWN = Fault(
    r"UncheckedSQLException",
    TransientError,
    BROKE_OFF,
    "It is asked again by the `restart` policy. Look at the database's log if it goes on.",
)


def explain(said: str, where: str, *, is_served: bool) -> IcestreamError | None:
    """Return the error that a fault's text stands for; None if it is not the database's.

    Args:
        said: what the driver says.
        where: the place, for the message.
        is_served: whether the database is reached over a network.
    """
    if not OF_DATABASE.search(said):
        return None
    faults = (*ANYWHERE, *OVER_A_NETWORK, UNKNOWN) if is_served else (*ANYWHERE, UNKNOWN)
    return first_match(faults, said, where)
