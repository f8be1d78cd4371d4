"""What the faults of a SQL catalog's database mean while a pipeline runs.

Iceberg's JDBC catalog wraps the driver's exception; the driver's own text says what happened.
"""

from __future__ import annotations

from icestream.contracts.fault_table import Fault
from icestream.errors import RefusedError, TransientError, UnreachableError

FAULTS = (
    Fault(
        r"password authentication failed|no pg_hba.conf entry|Access denied for user"
        r"|permission denied for|role .{1,80} does not exist",
        RefusedError,
        "the catalog's database refuses the user",
        "Look at `jdbc.user` and `jdbc.password`, and at what the user may do in the database.",
    ),
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
        r"|unexpected end of stream|too many (clients|connections)|Lock wait timeout|[Dd]eadlock"
        r"|SQLITE_BUSY|database is locked|UncheckedSQLException",
        TransientError,
        "the catalog's database broke off",
        "It is asked again by the `restart` policy. Look at the database's log if it goes on.",
    ),
)
