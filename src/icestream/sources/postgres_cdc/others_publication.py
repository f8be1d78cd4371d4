"""A publication that somebody else made: it is never changed, only asked what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.errors import ConnectorError
from icestream.sources.postgres_cdc.publication_commands import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.sources.postgres_cdc.options import PostgresCdcOptions
    from icestream.sources.postgres_cdc.publication import Publication
    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.tables import Found, Table

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
