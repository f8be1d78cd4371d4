"""Places in PostgreSQL's log, as numbers and as the server writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from icestream.errors import AttentionError, IcestreamError, SourceChangedError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.sources.postgres_cdc.server import Server, Session


def as_lsn(place: int) -> str:
    """Return a place as the server writes it: `16/B374D848`."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def from_lsn(text: str) -> int:
    """Read a place as the server writes it."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


# The name of a log file begins with its timeline. The last checkpoint's timeline would be that of
# before a promotion until the next one.
LINEAGE_QUERY = """
SELECT system_identifier::text,
       pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()),
       (pg_catalog.pg_current_wal_flush_lsn() - '0/0')::int8,
       (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8,
       (SELECT (confirmed_flush_lsn - '0/0')::int8
        FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)
FROM pg_catalog.pg_control_system()
"""
LOAD_AGAIN = (
    "The Iceberg tables may hold rows that the database no longer has. Load them again with "
    "`icestream run --start-over`."
)


@dataclass(frozen=True)
class Lineage:
    """Which log a server writes, and how far it has come.

    Attributes:
        system: the server's system identifier, which its copies and standbys share.
        timeline: counted up by each promotion and each point-in-time recovery.
        flushed: end of the log on disk.
        inserted: end of the log in memory.
        confirmed: where our replication slot stands; None without a slot.
    """

    system: str
    timeline: int
    flushed: int
    inserted: int
    confirmed: int | None


@dataclass(frozen=True)
class Anchor:
    """What a server must have for an offset to be continued there.

    Attributes:
        system: its system identifier.
        timeline: the timeline of the offset; 0 if the offset was written without one.
        lsn: the log must be on disk up to here, and the same up to here.
        snapshot_lsn: where the newest snapshot of a table was taken, which may be past `lsn`.
        confirmed: the slot stood here, and a checkpoint wrote that to disk: no crash can bring
            it back to before.
    """

    system: str
    timeline: int = 0
    lsn: int = 0
    snapshot_lsn: int = 0
    confirmed: int = 0


def lineage_of(session: Session) -> Lineage:
    """Ask a server which log it writes."""
    system, wal_file, *rest = session.row(LINEAGE_QUERY, [session.server.options.slot])
    return Lineage(system, int(wal_file[:8], 16), *rest)


def verify(session: Session, anchor: Anchor) -> None:
    """Refuse a server on which an offset can't be continued.

    Raises:
        SourceChangedError: it is another server, was restored from a backup, or was promoted
            without some of the changes that were read already.
        AttentionError: it was promoted, and its timeline history can't be read.
        TransientError: the history could not be read this time.
    """
    found = session.lineage = lineage_of(session)
    where = session.server.where
    if found.system != anchor.system:
        raise SourceChangedError(
            f"the server has system identifier {found.system}, and the offset is from "
            f"{anchor.system}: it is another server",
            where=where,
            todo="Check `host` and `port`. If the server was replaced, load the tables again with "
            "`icestream run --start-over`.",
        )
    is_switched = anchor.timeline not in (0, found.timeline)
    if is_switched:
        _refuse_unproven_switch(session.server, anchor, found.timeline)
    if found.flushed < anchor.lsn or found.inserted < anchor.snapshot_lsn:
        read = max(anchor.lsn, anchor.snapshot_lsn)
        raise SourceChangedError(
            f"the server's log ends at {as_lsn(found.flushed)}, and it was read up to "
            f"{as_lsn(read)} before: the server was restored from a backup, or is a standby that "
            "had not received everything when it was promoted",
            where=where,
            todo=LOAD_AGAIN,
        )
    is_behind = found.confirmed is not None and found.confirmed < anchor.confirmed
    if is_behind and not is_switched:
        raise SourceChangedError(
            f"replication slot {session.server.options.slot!r} is back at "
            f"{as_lsn(found.confirmed or 0)}, and was saved to disk at "
            f"{as_lsn(anchor.confirmed)}: the server was restored from a backup",
            where=where,
            todo=LOAD_AGAIN,
        )


def _refuse_unproven_switch(server: Server, anchor: Anchor, timeline: int) -> None:
    """Refuse a timeline unless it branched off where everything that was read is part of it."""
    read = max(anchor.lsn, anchor.snapshot_lsn)
    switch = f"the server is on timeline {timeline}, and timeline {anchor.timeline} was read up to"
    try:
        branched = dict(_branches(server, timeline)).get(anchor.timeline)
    except TransientError:
        raise
    except IcestreamError as exc:
        raise AttentionError(
            f"{switch} {as_lsn(read)}: the timeline history, which shows whether anything was "
            f"lost, can't be read: {exc.what}",
            where=server.where,
            todo="It is read over a replication connection. Give the user the REPLICATION "
            f"privilege (`ALTER ROLE {server.options.user} REPLICATION`), and let `host` and "
            "`port` name the server itself if they name a connection pooler.",
        ) from exc
    if branched is not None and branched >= read:
        return
    why = (
        f"it does not descend from timeline {anchor.timeline}"
        if branched is None
        else f"it left timeline {anchor.timeline} at {as_lsn(branched)}"
    )
    raise SourceChangedError(
        f"{switch} {as_lsn(read)}: {why}",
        where=server.where,
        todo="The server was restored from a backup, or is a standby that was promoted before it "
        f"had received everything. {LOAD_AGAIN}",
    )


def _branches(server: Server, timeline: int) -> Iterator[tuple[int, int]]:
    """Yield the timelines that a timeline descends from, and where in the log each was left."""
    with server.told(), server.open_connection(replication="database") as connection:
        # Commands of the replication protocol are no SQL, and psycopg's cursor expects SQL.
        answer = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        content = answer.get_value(0, 1) if answer.ntuples else None
        if content is None:
            said = answer.error_message.decode("utf-8", "replace").strip()
            raise psycopg.OperationalError(said or "no answer")
    for line in content.decode("utf-8", "replace").splitlines():
        words = line.split()
        if words and words[0].isdigit():
            yield int(words[0]), from_lsn(words[1])
