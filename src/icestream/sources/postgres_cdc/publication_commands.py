"""Commands that make and change a publication, and what is said when they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from icestream.errors import RefusedError
from icestream.sources.postgres_cdc.tables import ONLY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.sources.postgres_cdc.server import Session
    from icestream.sources.postgres_cdc.tables import Table

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
