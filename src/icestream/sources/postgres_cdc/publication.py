"""The publication: which changes the slot returns. Ours, or one that someone else manages.

PostgreSQL refuses updates and deletes of a table without a replica identity while a publication
includes them. So that mirroring a database never breaks its applications, such tables go into a
second publication, of inserts only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from icestream.errors import ConnectorError, IcestreamError, RefusedError
from icestream.sources.postgres_cdc.tables import ONLY, as_published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg import sql

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.server import PgSession
    from icestream.sources.postgres_cdc.tables import CatalogTable, PgTable


# What `ERROR_RULES` puts before the server's own words.
MISSING_PRIVILEGE = "lacks a privilege: "
CANNOT_CREATE = "the database has no publication {name!r}, and user {user!r} may not create it"
CANNOT_ALTER = "user {user!r} may not alter publication {name!r}"


def create_command(name: str, actions: str, tables: Sequence[PgTable]) -> sql.Composed:
    """Return the command that creates a publication."""
    from psycopg import sql

    return sql.SQL(
        "CREATE PUBLICATION {} {}WITH (publish = {}, publish_via_partition_root = true)"
    ).format(sql.Identifier(name), _for_tables(tables), sql.Literal(actions))


def _for_tables(tables: Sequence[PgTable]) -> sql.Composable:
    from psycopg import sql

    return sql.SQL("FOR TABLE {} ").format(table_list(tables)) if tables else sql.SQL("")


def table_list(tables: Sequence[PgTable]) -> sql.Composed:
    """Return a list of tables for a command."""
    from psycopg import sql

    return sql.SQL(", ").join(
        # An inheriting table is published separately, if configured: its key differs.
        sql.SQL("{}{}").format(
            sql.SQL(ONLY[not table.is_partitioned]), sql.Identifier(*table.names)
        )
        for table in tables
    )


def run_as_owner(session: PgSession, name: str, command: sql.Composed, why: str) -> None:
    """Run a command that needs ownership; the error tells an administrator what to run."""
    try:
        session.rows(command)
    except RefusedError as exc:
        detail = exc.what.rpartition(MISSING_PRIVILEGE)[2]
        raise permission_error(session, name, command, why, detail) from None


def permission_error(
    session: PgSession, name: str, command: sql.Composed, why: str, detail: str
) -> RefusedError:
    """Return an error that tells an administrator what to run."""
    return RefusedError(
        why.format(name=name, user=session.server.options.user) + f" ({detail})",
        where=session.server.where,
        todo=f"As the owner of the tables, run: {command.as_string()}",
    )


def quote_identifier(name: str) -> str:
    """Quote a name as SQL does."""
    from psycopg import sql

    return sql.Identifier(name).as_string()


# Tables whose partitions are all published under their own names.
PUBLISHED_BY_PARTITION = """
SELECT root.id FROM unnest(%s::oid[]) AS root (id)
WHERE (
    SELECT bool_and(EXISTS (
        SELECT FROM pg_catalog.pg_publication_tables AS published
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = published.schemaname
        JOIN pg_catalog.pg_class AS c
             ON c.relnamespace = n.oid AND c.relname = published.tablename
        WHERE published.pubname = %s AND c.oid = part.relid
    ))
    FROM pg_catalog.pg_partition_tree(root.id) AS part WHERE part.isleaf
)
"""


def refuse_unpublished(
    session: PgSession,
    options: PostgresCdcOptions,
    missing: Sequence[PgTable],
    catalog_tables: Mapping[tuple[str, str], CatalogTable],
    state: Publication,
) -> list[ConnectorError]:
    """Refuse a publication that lacks tables or publishes partitions separately.

    Args:
        session: of the database.
        options: the configured tables, and which of them are named in full.
        missing: the tables that it does not publish.
        catalog_tables: all configured tables.
        state: the publication.

    Returns:
        Why tables that match a pattern only are left out.

    Raises:
        ConnectorError: it lacks a table that is named in full, or publishes partitions.
    """
    name = options.publication_name
    partitioned = [] if state.via_root else _published_by_partition(session, name, catalog_tables)
    if partitioned:
        raise ConnectorError(
            f"publication {name!r} publishes {', '.join(partitioned)} partition by partition",
            where=session.server.where,
            todo=f"Run `ALTER PUBLICATION {quote_identifier(name)} SET "
            "(publish_via_partition_root = true)`.",
        )
    named = [table.qualified_name for table in missing if table.names in options.named_tables]
    if named:
        raise _unpublished_error(session, name, ", ".join(named))
    return [_unpublished_error(session, name, table.qualified_name) for table in missing]


def _published_by_partition(
    session: PgSession, name: str, found: Mapping[tuple[str, str], CatalogTable]
) -> list[str]:
    names = {
        each.table.relation.id: each.table.qualified_name
        for each in found.values()
        if each.table.is_partitioned and each.table.mode == "incremental" and not each.is_partition
    }
    return [names[root] for (root,) in session.rows(PUBLISHED_BY_PARTITION, [list(names), name])]


def _unpublished_error(session: PgSession, name: str, tables: str) -> ConnectorError:
    return ConnectorError(
        f"publication {name!r} does not include {tables}",
        where=session.server.where,
        todo=f"Run `ALTER PUBLICATION {quote_identifier(name)} ADD TABLE {tables}`.",
    )


_log = logging.getLogger(__name__)

MARK = "made by icestream"
ALL_ACTIONS = "insert, update, delete, truncate"
INSERT_ACTIONS = "insert, truncate"
COLUMN_LISTS_VERSION = 150_000
INSERT_ONLY = "has no replica identity: inserts are replicated, updates and deletes are not"
MAY_CREATE = "SELECT pg_catalog.has_database_privilege(current_database(), 'CREATE')"
NOT_OWNED = """
SELECT relname::text FROM pg_catalog.pg_class
WHERE oid = ANY(%s::oid[]) AND NOT pg_catalog.pg_has_role(relowner, 'USAGE') ORDER BY 1
"""
STATE_QUERY = """
SELECT coalesce(pg_catalog.obj_description(oid, 'pg_publication') = %s, false),
       pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot
FROM pg_catalog.pg_publication WHERE pubname = %s
"""
PAIRS_QUERY = """
SELECT pubname::text, schemaname::text, tablename::text
FROM pg_catalog.pg_publication_tables WHERE pubname = ANY(%s)
"""
# A table that leaves the publication and comes back gets a new row in `pg_publication_rel`. When a
# publication's options change, the `xmin` of its own row does.
MEMBERS_QUERY = """
SELECT published.schemaname::text, published.tablename::text, {columns_and_filter},
       pg_catalog.concat_ws(':', p.oid, p.xmin,
           (SELECT pg_catalog.string_agg(r.oid::text, ',' ORDER BY r.oid)
            FROM pg_catalog.pg_publication_rel AS r
            WHERE r.prpubid = p.oid AND (r.prrelid = c.oid OR r.prrelid IN
                  (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))),
           {by_schema})
FROM pg_catalog.pg_publication_tables AS published
JOIN pg_catalog.pg_publication AS p ON p.pubname = published.pubname
JOIN pg_catalog.pg_namespace AS n ON n.nspname = published.schemaname
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = published.tablename
WHERE published.pubname = ANY(%s) ORDER BY published.pubname
"""
BY_SCHEMA = """
(SELECT pg_catalog.string_agg(s.oid::text, ',' ORDER BY s.oid)
 FROM pg_catalog.pg_publication_namespace AS s WHERE s.pnpubid = p.oid AND s.pnnspid IN
      (SELECT c.relnamespace UNION SELECT root.relnamespace FROM pg_catalog.pg_class AS root
       JOIN pg_catalog.pg_partition_ancestors(c.oid) AS a ON a.relid = root.oid))
"""


@dataclass(frozen=True)
class Publication:
    """An existing publication.

    Attributes:
        is_ours: whether we created it, and so may alter it.
        publishes_all: whether it includes every kind of change.
        via_root: whether changes to a partition are published as changes to its root table.
    """

    is_ours: bool
    publishes_all: bool
    via_root: bool


@dataclass(frozen=True)
class Member:
    """How a table is published.

    Attributes:
        columns: which columns; None for all of them.
        row_filter: which rows; None for all of them.
        version: changes when the table is removed and added back, or the publication altered.
    """

    columns: tuple[str, ...] | None
    row_filter: str | None
    version: str


def publication_names(options: PostgresCdcOptions) -> tuple[str, str]:
    """Return the names of the publication and of its companion for tables without a key."""
    return options.publication_name, f"{options.publication_name}_appends"


def find(session: PgSession, name: str) -> Publication | None:
    """Return a publication; None if it does not exist."""
    rows = session.rows(STATE_QUERY, [MARK, name])
    return Publication(*rows[0]) if rows else None


def find_names(session: PgSession, options: PostgresCdcOptions) -> list[str]:
    """Return the publications to read from the slot: two of ours, or one of someone else's."""
    main, appends = publication_names(options)
    return [main] if find(session, appends) is None else [main, appends]


def find_members(session: PgSession, options: PostgresCdcOptions) -> dict[tuple[str, str], Member]:
    """Return how each published table is published."""
    lists = session.version >= COLUMN_LISTS_VERSION
    columns_and_filter = (
        "published.attnames::text[], published.rowfilter" if lists else "NULL::text[], NULL::text"
    )
    query = MEMBERS_QUERY.format(
        columns_and_filter=columns_and_filter, by_schema=BY_SCHEMA if lists else "NULL"
    )
    return {
        (schema, name): Member(
            None if columns is None else tuple(columns), row_filter, f"{crc32(rows.encode()):x}"
        )
        for schema, name, columns, row_filter, rows in session.rows(
            query, [list(publication_names(options))]
        )
    }


def published_tables(
    found: Mapping[tuple[str, str], CatalogTable], published: Mapping[tuple[str, str], Member]
) -> list[PgTable]:
    """Return the published tables, with the columns and rows that the publication includes."""
    return [
        as_published(found[name].table, member.columns, member.row_filter, member.version)
        for name, member in sorted(published.items())
        if name in found
    ]


def find_usable(session: PgSession, options: PostgresCdcOptions) -> Publication | None:
    """Return the publication; None if it is still to be created.

    Raises:
        ConnectorError: it exists, and does not publish every kind of change.
    """
    name = options.publication_name
    state = find(session, name)
    if state is not None and not state.publishes_all:
        raise ConnectorError(
            f"publication {name!r} does not publish every kind of change",
            where=session.server.where,
            todo=f"Run `ALTER PUBLICATION {quote_identifier(name)} SET "
            f"(publish = '{ALL_ACTIONS}')`.",
        )
    return state


def ensure(
    session: PgSession, options: PostgresCdcOptions, found: Mapping[tuple[str, str], CatalogTable]
) -> list[IcestreamError]:
    """Create the publication if needed; add missing tables if it is ours.

    Returns:
        Why tables that match a pattern only are left out, one error each.

    Raises:
        RefusedError: the user may not create it, or add a table that is named in full.
        ConnectorError: it is someone else's, and does not publish what is configured.
    """
    state = find_usable(session, options)
    missing = unpublished_tables(session, options, found)
    main, appends = publication_names(options)
    keyed = [table for table in missing if not table.is_insert_only]
    insert_only = [table for table in missing if table.is_insert_only]
    left_out: list[IcestreamError] = []
    if state is None:
        # Both before the slot: it cannot read a log that is older than its publications.
        _create(session, main, ALL_ACTIONS, keyed)
        if find(session, appends) is None:
            _create(session, appends, INSERT_ACTIONS, insert_only)
    elif not state.is_ours:
        left_out += refuse_unpublished(session, options, missing, found, state)
    else:
        if find(session, appends) is None:  # the first start was interrupted
            _create(session, appends, INSERT_ACTIONS, ())
        added = [_add(session, options, main, table) for table in keyed]
        added += [_add(session, options, appends, table) for table in insert_only]
        left_out += [refused for refused in added if refused is not None]
        _move_tables(session, main, appends, found)
    return left_out


def unpublished_tables(
    session: PgSession, options: PostgresCdcOptions, found: Mapping[tuple[str, str], CatalogTable]
) -> list[PgTable]:
    """Return the tables to replicate that are not published yet."""
    published = find_members(session, options)
    return [
        each.table
        for name, each in found.items()
        if each.table.mode == "incremental" and name not in published and not each.is_partition
    ]


def refuse_missing_privileges(
    session: PgSession, options: PostgresCdcOptions, found: Mapping[tuple[str, str], CatalogTable]
) -> None:
    """Refuse a user who may not create the publication.

    Raises:
        RefusedError: a privilege is missing.
    """
    missing = unpublished_tables(session, options, found)
    (may_create,) = session.row(MAY_CREATE)
    others = session.rows(NOT_OWNED, [[table.relation.id for table in missing]])
    if may_create and not others:
        return
    why = (
        f"must be owner of table {others[0][0]}"
        if may_create
        else f"permission denied for database {options.database}"
    )
    command = create_command(options.publication_name, ALL_ACTIONS, missing)
    raise permission_error(session, options.publication_name, command, CANNOT_CREATE, why)


def _create(session: PgSession, name: str, actions: str, tables: Sequence[PgTable]) -> None:
    from psycopg import sql

    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(name), sql.Literal(MARK)
    )
    with session.connection.transaction():
        run_as_owner(session, name, create_command(name, actions, tables), CANNOT_CREATE)
        run_as_owner(session, name, comment, CANNOT_ALTER)
    _log.info("created publication %s", name)
    _warn_about_insert_only(tables)


def _add(
    session: PgSession, options: PostgresCdcOptions, name: str, table: PgTable
) -> RefusedError | None:
    """Add one table, so that a table of another owner does not keep the others out."""
    from psycopg import sql

    command = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(
        sql.Identifier(name), table_list([table])
    )
    try:
        run_as_owner(session, name, command, CANNOT_ALTER)
    except RefusedError as exc:
        if table.names in options.named_tables:
            raise
        return exc
    _warn_about_insert_only([table])
    return None


def _warn_about_insert_only(tables: Sequence[PgTable]) -> None:
    for table in tables:
        if table.is_insert_only:
            _log.warning("%s %s", table.qualified_name, INSERT_ONLY)


def _move_tables(
    session: PgSession, main: str, appends: str, found: Mapping[tuple[str, str], CatalogTable]
) -> None:
    """Move tables that gained or lost a key to the other publication."""
    from psycopg import sql

    members = set(session.rows(PAIRS_QUERY, [[main, appends]]))
    for (schema, name), each in found.items():
        here, there = (appends, main) if each.table.is_insert_only else (main, appends)
        if (there, schema, name) in members and (here, schema, name) not in members:
            table = table_list([each.table])
            with session.connection.transaction():
                for publication, word in ((here, "ADD"), (there, "DROP")):
                    command = sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
                        sql.Identifier(publication), sql.SQL(word), table
                    )
                    run_as_owner(session, publication, command, CANNOT_ALTER)
