"""What a run would mirror and create in the database, found without creating anything."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from icestream.contracts.source import SourceObject
from icestream.sources.postgres_cdc import publication, slot
from icestream.sources.postgres_cdc.changes import load_types
from icestream.sources.postgres_cdc.tables import block_schema, find_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from icestream.sources.postgres_cdc.driver import Driver
    from icestream.sources.postgres_cdc.server import PgSession
    from icestream.sources.postgres_cdc.tables import PgTable

LOCK_TIMEOUT_SECS = 5.0


def list_tables(driver: Driver) -> list[pa.Schema]:
    """Return the schema of each table that a run would mirror, as that of its first rows.

    Raises:
        ConnectorError: a run would refuse the tables or the publication, or a table is locked.
        UnreachableError: the server does not answer.
    """
    takes_snapshots = driver.options.snapshot != "never"
    with _limited_waits(driver.session):
        tables = sorted(_tables(driver), key=lambda table: table.names)
        sizes = find_sizes(driver.session, tables) if takes_snapshots else {}
    for table in tables:
        load_types(driver.session, driver.types, table.relation.columns)
    return [
        block_schema(
            table.relation,
            driver.types,
            snapshot=True,
            first=True,
            size=sizes.get(table.relation.id),
        )
        for table in tables
    ]


@contextmanager
def _limited_waits(session: PgSession) -> Iterator[None]:
    """Do not wait long for a table that another session has locked; a run does."""
    session.rows(f"SET lock_timeout = {LOCK_TIMEOUT_SECS * 1000:.0f}")
    try:
        yield
    finally:
        if not session.is_broken:
            session.rows("SET lock_timeout = 0")


def _tables(driver: Driver) -> list[PgTable]:
    found = driver.find_tables()
    readable = driver.readable_tables(found)
    if not driver.options.follows:
        return readable
    session, options = driver.session, driver.options
    state = publication.find_usable(session, options)
    missing = publication.unpublished_tables(session, options, found)
    if state is not None and not state.is_ours:
        # Someone else decides which tables that match a pattern are published.
        publication.refuse_unpublished(session, options, missing, found, state)
        return readable
    return [*readable, *missing]


def list_objects(driver: Driver) -> list[SourceObject]:
    """Return the publications and the slot that a run reads; none if it takes snapshots only."""
    if not driver.options.follows:
        return []
    session = driver.session
    main, appends = publication.publication_names(driver.options)
    state = publication.find(session, main)
    names = [main] if state is not None and not state.is_ours else [main, appends]
    return [
        *(
            SourceObject("publication", name, exists=publication.find(session, name) is not None)
            for name in names
        ),
        SourceObject(
            "replication slot", driver.options.slot, exists=slot.find(session) is not None
        ),
    ]
