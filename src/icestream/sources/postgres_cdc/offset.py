"""Offsets of the PostgreSQL source: an LSN, and the state of each table's snapshot.

A table is stored under its qualified name, such as `public.orders`, quoted as in SQL where needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icestream.sources.postgres_cdc.timeline import Anchor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.offset import Offset


NAME_PART = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def parse_qualified_name(qualified_name: str) -> tuple[str, str]:
    """Split a qualified name into schema and name."""
    schema, name = (
        quoted.replace('""', '"') if quoted else plain
        for quoted, plain in NAME_PART.findall(qualified_name)
    )
    return schema, name


@dataclass(frozen=True)
class PgTableState:
    """What an offset stores about a replicated table.

    Attributes:
        identity: the table and its key, see `PgTable.identity`.
        last_column: the highest column number that was read.
        snapshot: the snapshot its rows were read from; None once the log is past it.
        snapshot_lsn: the LSN of that snapshot.
        publication: the version of its publication, see `Member.version`; empty in offsets
            written by older versions.
    """

    identity: str
    last_column: int = 0
    snapshot: str | None = None
    snapshot_lsn: int = 0
    publication: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the form that an offset stores."""
        stored: dict[str, Any] = {"id": self.identity, "columns": self.last_column}
        if self.publication:
            stored["publication"] = self.publication
        return (
            stored
            if self.snapshot is None
            else {**stored, "s": self.snapshot, "l": self.snapshot_lsn}
        )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PgTableState:
        """Read the form that an offset stores."""
        return cls(
            stored["id"],
            stored["columns"],
            stored.get("s"),
            stored.get("l", 0),
            stored.get("publication", ""),
        )

    def advance_to(self, lsn: int) -> PgTableState:
        """Return the state once the log has been read up to `lsn`."""
        return replace(self, snapshot=None, snapshot_lsn=0) if lsn >= self.snapshot_lsn else self


@dataclass(frozen=True)
class SnapshotCursor:
    """How far the snapshot of one table has been read.

    Attributes:
        table: its qualified name.
        last_key: the last key that was read, as text.
        state: the table's state once the snapshot is complete.
        reading_order: the key columns and their types, which order the snapshot.
    """

    table: str
    last_key: tuple[str, ...]
    state: PgTableState
    reading_order: str = ""


@dataclass(frozen=True)
class PgOffset:
    """An offset of the source.

    Attributes:
        system: the server's system identifier.
        lsn: changes before it are done.
        tables: the tables whose changes are being read.
        pending: the tables queued for a snapshot, in order.
        cursor: how far the snapshot of the first of them is.
        unconfirmed: tables without a key that were read in full, from a snapshot that is not
            recorded yet.
        refresh: id of the process start for which `full_refresh` tables were last read.
        timeline: the server's timeline; 0 in offsets written by older versions.
        confirmed: an LSN of the slot that a checkpoint has saved, so no crash can undo it.
    """

    system: str
    lsn: int
    tables: Mapping[str, PgTableState] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    cursor: SnapshotCursor | None = None
    unconfirmed: Mapping[str, PgTableState] = field(default_factory=dict)
    refresh: str = ""
    timeline: int = 0
    confirmed: int = 0

    @property
    def anchor(self) -> Anchor:
        """What a server must have to continue from this offset."""
        states = [*self.tables.values(), *self.unconfirmed.values()]
        states += [] if self.cursor is None else [self.cursor.state]
        snapshot_lsn = max((state.snapshot_lsn for state in states), default=0)
        return Anchor(self.system, self.timeline, self.lsn, snapshot_lsn, self.confirmed)

    def to_json(self) -> Offset:
        """Return the offset as Spark logs it."""
        stored: Offset = {
            "system": self.system,
            "lsn": self.lsn,
            "tables": {name: state.to_json() for name, state in sorted(self.tables.items())},
        }
        if self.pending:
            stored["pending"] = list(self.pending)
        if self.cursor is not None:
            stored["part"] = {
                "table": self.cursor.table,
                "after": list(self.cursor.last_key),
                "order": self.cursor.reading_order,
                **self.cursor.state.to_json(),
            }
        if self.unconfirmed:
            stored["unsure"] = {
                name: state.to_json() for name, state in sorted(self.unconfirmed.items())
            }
        if self.refresh:
            stored["refresh"] = self.refresh
        if self.timeline:
            stored["timeline"] = self.timeline
        if self.confirmed:
            stored["confirmed"] = self.confirmed
        return stored

    @classmethod
    def from_json(cls, stored: Offset) -> PgOffset:
        """Read an offset from Spark's log."""
        cursor = stored.get("part")
        return cls(
            system=stored["system"],
            lsn=stored["lsn"],
            tables={
                name: PgTableState.from_json(state) for name, state in stored["tables"].items()
            },
            pending=tuple(stored.get("pending", ())),
            cursor=cursor
            and SnapshotCursor(
                cursor["table"],
                tuple(cursor["after"]),
                PgTableState.from_json(cursor),
                cursor.get("order", ""),
            ),
            unconfirmed={
                name: PgTableState.from_json(state)
                for name, state in stored.get("unsure", {}).items()
            },
            refresh=stored.get("refresh", ""),
            timeline=stored.get("timeline", 0),
            confirmed=stored.get("confirmed", 0),
        )

    def advance_to(self, lsn: int) -> PgOffset:
        """Return the offset at a later LSN, without snapshots that the log is then past."""
        return replace(
            self,
            lsn=lsn,
            tables={name: state.advance_to(lsn) for name, state in self.tables.items()},
        )
