"""The publication: what of the database's changes the slot tells, made by us or by somebody else.

PostgreSQL refuses updates and deletes of a table without a key while it is in a publication that
tells them. So that no application breaks because its database is mirrored, such tables go into a
publication of their own, which tells of new rows alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from psycopg import sql

from icestream.errors import ConnectorError, IcestreamError, RefusedError
from icestream.sources.postgres_cdc.tables import ONLY, narrowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.tables import Found, Table


CANT_MAKE = "the database has no publication {name!r}, and user {user!r} may not make it"
CANT_CHANGE = "user {user!r} may not change publication {name!r}"


def creating(name: str, actions: str, tables: Sequence[Table]) -> sql.Composed:
    """Return the command that makes a publication."""
    return sql.SQL(
        "CREATE PUBLICATION {} {}WITH (publish = {}, publish_via_partition_root = true)"
    ).format(sql.Identifier(name), _for_tables(tables), sql.Literal(actions))


def _for_tables(tables: Sequence[Table]) -> sql.Composable:
    return sql.SQL("FOR TABLE {} ").format(listed(tables)) if tables else sql.SQL("")


def listed(tables: Sequence[Table]) -> sql.Composed:
    """Return tables as a command names them."""
    return sql.SQL(", ").join(
        # A table that inherits is published for itself, if it is followed: it has another key.
        sql.SQL("{}{}").format(ONLY[not table.is_partitioned], sql.Identifier(*table.names))
        for table in tables
    )


def run(session: Session, name: str, command: sql.Composed, why: str) -> None:
    """Run a command that only an owner may run, and else say what an administrator should."""
    try:
        session.rows(command)
    except RefusedError as exc:
        said = exc.what.rpartition("lacks a right: ")[2]
        raise refusal(session, name, command, why, said) from None


def refusal(
    session: Session, name: str, command: sql.Composed, why: str, said: str
) -> RefusedError:
    """Return the error that tells an administrator what to run."""
    return RefusedError(
        why.format(name=name, user=session.server.options.user) + f" ({said})",
        where=session.server.where,
        todo=f"Let the owner of the tables run: {command.as_string()}",
    )


def shown(name: str) -> str:
    """Return a name as SQL writes it."""
    return sql.Identifier(name).as_string()


# Tables of which every part is told, each by its own name.
TOLD_BY_PARTS = """
SELECT root.id FROM unnest(%s::oid[]) AS root (id)
WHERE (
    SELECT bool_and(EXISTS (
        SELECT FROM pg_catalog.pg_publication_tables AS told
        JOIN pg_catalog.pg_namespace AS n ON n.nspname = told.schemaname
        JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = told.tablename
        WHERE told.pubname = %s AND c.oid = part.relid
    ))
    FROM pg_catalog.pg_partition_tree(root.id) AS part WHERE part.isleaf
)
"""


def refuse_untold(
    session: Session,
    options: PostgresCdcOptions,
    lacking: Sequence[Table],
    found: Mapping[tuple[str, str], Found],
    state: Publication,
) -> list[ConnectorError]:
    """Refuse a publication that does not tell of tables as it is asked to.

    Args:
        session: of the database.
        options: which tables are asked for, and which of them by name.
        lacking: those that it does not tell of.
        found: all of them.
        state: the publication.

    Returns:
        Why tables that the file does not name are left out.

    Raises:
        ConnectorError: it leaves out a table that the file names, or tells the parts of one.
    """
    name = options.publication_name
    parted = [] if state.via_root else _told_by_parts(session, name, found)
    if parted:
        raise ConnectorError(
            f"publication {name!r} tells changes of {', '.join(parted)} as those of the parts",
            where=session.server.where,
            todo=f"Run `ALTER PUBLICATION {shown(name)} SET (publish_via_partition_root = true)`.",
        )
    named = [table.label for table in lacking if table.names in options.named_tables]
    if named:
        raise _untold(session, name, ", ".join(named))
    return [_untold(session, name, table.label) for table in lacking]


def _told_by_parts(
    session: Session, name: str, found: Mapping[tuple[str, str], Found]
) -> list[str]:
    labels = {
        each.table.relation.id: each.table.label
        for each in found.values()
        if each.table.is_partitioned and each.table.mode == "incremental" and not each.is_part
    }
    return [labels[root] for (root,) in session.rows(TOLD_BY_PARTS, [list(labels), name])]


def _untold(session: Session, name: str, tables: str) -> ConnectorError:
    return ConnectorError(
        f"publication {name!r} does not tell of {tables}",
        where=session.server.where,
        todo=f"Run `ALTER PUBLICATION {shown(name)} ADD TABLE {tables}`.",
    )


_log = logging.getLogger(__name__)

MARK = "made by icestream"
ALL_ACTIONS = "insert, update, delete, truncate"
NEW_ROWS = "insert, truncate"
WITH_COLUMN_LISTS = 150_000
ONLY_GROWS = "has no key that the log tells: new rows are followed, updates and deletes are not"
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
# A table that leaves the publication and comes back gets another row in `pg_publication_rel`. The
# publication's own row is replaced when its options change, which its `xmin` tells.
MEMBERS_QUERY = """
SELECT told.schemaname::text, told.tablename::text, {shown},
       pg_catalog.concat_ws(':', p.oid, p.xmin,
           (SELECT pg_catalog.string_agg(r.oid::text, ',' ORDER BY r.oid)
            FROM pg_catalog.pg_publication_rel AS r
            WHERE r.prpubid = p.oid AND (r.prrelid = c.oid OR r.prrelid IN
                  (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))),
           {by_schema})
FROM pg_catalog.pg_publication_tables AS told
JOIN pg_catalog.pg_publication AS p ON p.pubname = told.pubname
JOIN pg_catalog.pg_namespace AS n ON n.nspname = told.schemaname
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = told.tablename
WHERE told.pubname = ANY(%s) ORDER BY told.pubname
"""
BY_SCHEMA = """
(SELECT pg_catalog.string_agg(s.oid::text, ',' ORDER BY s.oid)
 FROM pg_catalog.pg_publication_namespace AS s WHERE s.pnpubid = p.oid AND s.pnnspid IN
      (SELECT c.relnamespace UNION SELECT root.relnamespace FROM pg_catalog.pg_class AS root
       JOIN pg_catalog.pg_partition_ancestors(c.oid) AS a ON a.relid = root.oid))
"""


@dataclass(frozen=True)
class Publication:
    """A publication that is there.

    Attributes:
        is_ours: whether it was made by us, and so may be changed.
        tells_all: whether it tells every kind of change.
        via_root: whether changes of a part of a table are told as changes of the table.
    """

    is_ours: bool
    tells_all: bool
    via_root: bool


@dataclass(frozen=True)
class Member:
    """How a table is published.

    Attributes:
        columns: which columns; None for all of them.
        row_filter: which rows; None for all of them.
        version: changes when the table leaves the publication and comes back, and when the
            publication or how it publishes the table is altered.
    """

    columns: tuple[str, ...] | None
    row_filter: str | None
    version: str


def names(options: PostgresCdcOptions) -> tuple[str, str]:
    """Return the names of the publication and of the one for tables without a key."""
    return options.publication_name, f"{options.publication_name}_appends"


def look(session: Session, name: str) -> Publication | None:
    """Return a publication, None if it is not there."""
    rows = session.rows(STATE_QUERY, [MARK, name])
    return Publication(*rows[0]) if rows else None


def told_by(session: Session, options: PostgresCdcOptions) -> list[str]:
    """Return the publications that the slot is asked for: ours are two, somebody else's is one."""
    whole, appends = names(options)
    return [whole] if look(session, appends) is None else [whole, appends]


def members(session: Session, options: PostgresCdcOptions) -> dict[tuple[str, str], Member]:
    """Return how each table that is published is."""
    lists = session.version >= WITH_COLUMN_LISTS
    shown = "told.attnames::text[], told.rowfilter" if lists else "NULL::text[], NULL::text"
    query = MEMBERS_QUERY.format(shown=shown, by_schema=BY_SCHEMA if lists else "NULL")
    return {
        (schema, name): Member(
            None if columns is None else tuple(columns), row_filter, f"{crc32(rows.encode()):x}"
        )
        for schema, name, columns, row_filter, rows in session.rows(query, [list(names(options))])
    }


def followed(
    found: Mapping[tuple[str, str], Found], published: Mapping[tuple[str, str], Member]
) -> list[Table]:
    """Return the tables that the log tells of, as the publication shows them."""
    return [
        narrowed(found[name].table, member.columns, member.row_filter, member.version)
        for name, member in sorted(published.items())
        if name in found
    ]


def refuse_unfit(session: Session, options: PostgresCdcOptions) -> Publication | None:
    """Return the publication, None if it is still to be made.

    Raises:
        ConnectorError: it is there, and does not tell every change.
    """
    name = options.publication_name
    state = look(session, name)
    if state is not None and not state.tells_all:
        raise ConnectorError(
            f"publication {name!r} does not tell every change",
            where=session.server.where,
            todo=f"Run `ALTER PUBLICATION {shown(name)} SET (publish = '{ALL_ACTIONS}')`.",
        )
    return state


def make_ready(
    session: Session, options: PostgresCdcOptions, found: Mapping[tuple[str, str], Found]
) -> list[IcestreamError]:
    """Make the publication if it is not there, and add the tables that it lacks if it is ours.

    Returns:
        Why tables that the file does not name are left out, one of each.

    Raises:
        RefusedError: the user may not make it, or add a table that the file names.
        ConnectorError: it is somebody else's, and does not tell what is asked for.
    """
    state = refuse_unfit(session, options)
    lacking = unpublished(session, options, found)
    whole, appends = names(options)
    keyed = [table for table in lacking if not table.only_grows]
    grown = [table for table in lacking if table.only_grows]
    left_out: list[IcestreamError] = []
    if state is None:
        # Both before the slot: it can't read log that is older than a publication it is asked for.
        _create(session, whole, ALL_ACTIONS, keyed)
        if look(session, appends) is None:
            _create(session, appends, NEW_ROWS, grown)
    elif not state.is_ours:
        left_out += refuse_untold(session, options, lacking, found, state)
    else:
        if look(session, appends) is None:  # a start that was cut off did not come so far
            _create(session, appends, NEW_ROWS, ())
        added = [_add(session, options, whole, table) for table in keyed]
        added += [_add(session, options, appends, table) for table in grown]
        left_out += [refused for refused in added if refused is not None]
        _move(session, whole, appends, found)
    return left_out


def unpublished(
    session: Session, options: PostgresCdcOptions, found: Mapping[tuple[str, str], Found]
) -> list[Table]:
    """Return the tables that are to be followed and not published yet."""
    published = members(session, options)
    return [
        each.table
        for name, each in found.items()
        if each.table.mode == "incremental" and name not in published and not each.is_part
    ]


def refuse_unmakeable(
    session: Session, options: PostgresCdcOptions, found: Mapping[tuple[str, str], Found]
) -> None:
    """Refuse a user who could not make the publication.

    Raises:
        RefusedError: a right is missing.
    """
    lacking = unpublished(session, options, found)
    (may_create,) = session.row(MAY_CREATE)
    others = session.rows(NOT_OWNED, [[table.relation.id for table in lacking]])
    if may_create and not others:
        return
    why = (
        f"must be owner of table {others[0][0]}"
        if may_create
        else f"permission denied for database {options.database}"
    )
    command = creating(options.publication_name, ALL_ACTIONS, lacking)
    raise refusal(session, options.publication_name, command, CANT_MAKE, why)


def _create(session: Session, name: str, actions: str, tables: Sequence[Table]) -> None:
    comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(name), sql.Literal(MARK)
    )
    with session.connection.transaction():
        run(session, name, creating(name, actions, tables), CANT_MAKE)
        run(session, name, comment, CANT_CHANGE)
    _log.info("made publication %s", name)
    _warn_of_growing(tables)


def _add(
    session: Session, options: PostgresCdcOptions, name: str, table: Table
) -> RefusedError | None:
    """Add a table, by itself, so that one of somebody else does not keep the others out."""
    command = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(
        sql.Identifier(name), listed([table])
    )
    try:
        run(session, name, command, CANT_CHANGE)
    except RefusedError as exc:
        if table.names in options.named_tables:
            raise
        return exc
    _warn_of_growing([table])
    return None


def _warn_of_growing(tables: Sequence[Table]) -> None:
    for table in tables:
        if table.only_grows:
            _log.warning("%s %s", table.label, ONLY_GROWS)


def _move(
    session: Session, whole: str, appends: str, found: Mapping[tuple[str, str], Found]
) -> None:
    """Put tables that got a key, or lost theirs, into the other publication."""
    members = set(session.rows(PAIRS_QUERY, [[whole, appends]]))
    for (schema, name), each in found.items():
        here, there = (appends, whole) if each.table.only_grows else (whole, appends)
        if (there, schema, name) in members and (here, schema, name) not in members:
            table = listed([each.table])
            with session.connection.transaction():
                for publication, word in ((here, "ADD"), (there, "DROP")):
                    command = sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
                        sql.Identifier(publication), sql.SQL(word), table
                    )
                    run(session, publication, command, CANT_CHANGE)
