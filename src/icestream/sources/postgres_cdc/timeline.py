"""LSNs and timelines: whether a server still has the log that an offset refers to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icestream.errors import AttentionError, IcestreamError, SourceChangedError, TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.sources.postgres_cdc.server import PgServer, PgSession


def format_lsn(lsn: int) -> str:
    """Format an LSN as the server does: `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Parse an LSN in the server's format."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


# The name of a WAL file starts with its timeline. The timeline of the last checkpoint would be out
# of date between a promotion and the next checkpoint.
LINEAGE_QUERY = """
SELECT system_identifier::text,
       pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()),
       (pg_catalog.pg_current_wal_flush_lsn() - '0/0')::int8,
       (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8,
       (SELECT (confirmed_flush_lsn - '0/0')::int8
        FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)
FROM pg_catalog.pg_control_system()
"""
RELOAD_REMEDY = (
    "The Iceberg tables may hold rows that the database no longer has. Reload them with "
    "`icestream run --start-over`."
)


@dataclass(frozen=True)
class Lineage:
    """Which log a server writes, and how far.

    Attributes:
        system: the server's system identifier, which its copies and standbys share.
        timeline: incremented by each promotion and each point-in-time recovery.
        flushed: end of the log on disk.
        inserted: end of the log in memory.
        confirmed: LSN of our replication slot; None without a slot.
    """

    system: str
    timeline: int
    flushed: int
    inserted: int
    confirmed: int | None


@dataclass(frozen=True)
class Anchor:
    """What a server must have to continue from an offset.

    Attributes:
        system: its system identifier.
        timeline: the timeline of the offset; 0 if the offset was written without one.
        lsn: the log must be on disk, and identical, up to here.
        snapshot_lsn: LSN of the latest table snapshot, which may be past `lsn`.
        confirmed: an LSN of the slot that a checkpoint saved, so no crash can undo it.
    """

    system: str
    timeline: int = 0
    lsn: int = 0
    snapshot_lsn: int = 0
    confirmed: int = 0


def read_lineage(session: PgSession) -> Lineage:
    """Query which log a server writes."""
    system, wal_file, *rest = session.row(LINEAGE_QUERY, [session.server.options.slot])
    return Lineage(system, int(wal_file[:8], 16), *rest)


def verify_anchor(session: PgSession, anchor: Anchor) -> None:
    """Refuse a server that cannot continue from an offset.

    Raises:
        SourceChangedError: it is another server, was restored from a backup, or was promoted
            without some changes that were already read.
        AttentionError: it was promoted, and its timeline history cannot be read.
        TransientError: reading the history failed for now.
    """
    found = session.lineage = read_lineage(session)
    where = session.server.where
    if found.system != anchor.system:
        raise SourceChangedError(
            f"the server has system identifier {found.system}, and the offset is from "
            f"{anchor.system}: it is another server",
            where=where,
            todo="Check `host` and `port`. If the server was replaced, reload the tables with "
            "`icestream run --start-over`.",
        )
    is_switched = anchor.timeline not in (0, found.timeline)
    if is_switched:
        _refuse_unproven_switch(session.server, anchor, found.timeline)
    if found.flushed < anchor.lsn or found.inserted < anchor.snapshot_lsn:
        read = max(anchor.lsn, anchor.snapshot_lsn)
        raise SourceChangedError(
            f"the server's log ends at {format_lsn(found.flushed)}, and it was read up to "
            f"{format_lsn(read)} before: the server was restored from a backup, or is a standby "
            "that had not received everything when it was promoted",
            where=where,
            todo=RELOAD_REMEDY,
        )
    is_behind = found.confirmed is not None and found.confirmed < anchor.confirmed
    if is_behind and not is_switched:
        raise SourceChangedError(
            f"replication slot {session.server.options.slot!r} is back at "
            f"{format_lsn(found.confirmed or 0)}, and was saved to disk at "
            f"{format_lsn(anchor.confirmed)}: the server was restored from a backup",
            where=where,
            todo=RELOAD_REMEDY,
        )


def _refuse_unproven_switch(server: PgServer, anchor: Anchor, timeline: int) -> None:
    """Refuse a timeline unless it contains everything that was read."""
    read = max(anchor.lsn, anchor.snapshot_lsn)
    switch = f"the server is on timeline {timeline}, and timeline {anchor.timeline} was read up to"
    try:
        branched = dict(_timeline_history(server, timeline)).get(anchor.timeline)
    except TransientError:
        raise
    except IcestreamError as exc:
        raise AttentionError(
            f"{switch} {format_lsn(read)}: cannot read the timeline history, which shows whether "
            f"changes were lost: {exc.what}",
            where=server.where,
            todo="It is read over a replication connection. Give the user the REPLICATION "
            f"attribute (`ALTER ROLE {server.options.user} REPLICATION`), and set `host` and "
            "`port` to the server itself, not a connection pooler.",
        ) from exc
    if branched is not None and branched >= read:
        return
    why = (
        f"it does not descend from timeline {anchor.timeline}"
        if branched is None
        else f"it left timeline {anchor.timeline} at {format_lsn(branched)}"
    )
    raise SourceChangedError(
        f"{switch} {format_lsn(read)}: {why}",
        where=server.where,
        todo="The server was restored from a backup, or is a standby that was promoted before it "
        f"had received everything. {RELOAD_REMEDY}",
    )


def _timeline_history(server: PgServer, timeline: int) -> Iterator[tuple[int, int]]:
    """Yield the timelines that a timeline descends from, and the LSN where each ended."""
    import psycopg

    with server.translate_errors(), server.open_connection(replication="database") as connection:
        # Replication commands are not SQL, which psycopg's cursor expects.
        answer = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        content = answer.get_value(0, 1) if answer.ntuples else None
        if content is None:
            message = answer.error_message.decode("utf-8", "replace").strip()
            raise psycopg.OperationalError(message or "no answer")
    for line in content.decode("utf-8", "replace").splitlines():
        words = line.split()
        if words and words[0].isdigit():
            yield int(words[0]), parse_lsn(words[1])
