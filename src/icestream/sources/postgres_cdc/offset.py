"""Names of tables as positions write them: `public.orders`, quoted as SQL does where needed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icestream.sources.postgres_cdc.timeline import Anchor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icestream.contracts.offset import Offset


PIECE = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def names_of(label: str) -> tuple[str, str]:
    """Return schema and name of a label."""
    schema, name = (
        quoted.replace('""', '"') if quoted else plain for quoted, plain in PIECE.findall(label)
    )
    return schema, name


@dataclass(frozen=True)
class Note:
    """What is known of a table that is followed.

    Attributes:
        table: which table it is, and by what its rows are told apart: see `Table.identity`.
        columns: the highest number of a column that was read.
        seen: the snapshot that its rows were read under; None once that does not matter.
        until: where in the log that snapshot was taken.
        publication: the version of its publication, see `Member.version`; empty in offsets of
            older versions.
    """

    table: str
    columns: int = 0
    seen: str | None = None
    until: int = 0
    publication: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as a part of a position."""
        told: dict[str, Any] = {"id": self.table, "columns": self.columns}
        if self.publication:
            told["publication"] = self.publication
        return told if self.seen is None else {**told, "s": self.seen, "l": self.until}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Note:
        """Read it from a position."""
        return cls(
            told["id"],
            told["columns"],
            told.get("s"),
            told.get("l", 0),
            told.get("publication", ""),
        )

    def at(self, lsn: int) -> Note:
        """Return it as it is once the log is read up to a place."""
        return replace(self, seen=None, until=0) if lsn >= self.until else self


@dataclass(frozen=True)
class Part:
    """The table that is being read whole, and how far.

    Attributes:
        table: its label.
        after: the last key that was read, as text.
        note: what is noted of it once it is read.
        order: the columns of the key with their types, by which it is read.
    """

    table: str
    after: tuple[str, ...]
    note: Note
    order: str = ""


@dataclass(frozen=True)
class Place:
    """A position, read.

    Attributes:
        system: which server it is of.
        lsn: changes before it are done.
        tables: the tables that are followed.
        pending: the tables that are still to be read whole, in order.
        part: how far the first of them is.
        unsure: tables without a key that were read whole, under a snapshot still to be noted.
        refresh: the start of the process for which tables of `full_refresh` were read last.
        timeline: which timeline of the server's log it is on; 0 in offsets of older versions.
        confirmed: a place where the slot stood that no crash of the server can undo.
    """

    system: str
    lsn: int
    tables: Mapping[str, Note] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    part: Part | None = None
    unsure: Mapping[str, Note] = field(default_factory=dict)
    refresh: str = ""
    timeline: int = 0
    confirmed: int = 0

    @property
    def anchor(self) -> Anchor:
        """What a server must have for this place to be continued there."""
        notes = [*self.tables.values(), *self.unsure.values()]
        notes += [] if self.part is None else [self.part.note]
        snapshot_lsn = max((note.until for note in notes), default=0)
        return Anchor(self.system, self.timeline, self.lsn, snapshot_lsn, self.confirmed)

    def to_json(self) -> Offset:
        """Return it as Spark logs it."""
        told: Offset = {
            "system": self.system,
            "lsn": self.lsn,
            "tables": {name: note.to_json() for name, note in sorted(self.tables.items())},
        }
        if self.pending:
            told["pending"] = list(self.pending)
        if self.part is not None:
            told["part"] = {
                "table": self.part.table,
                "after": list(self.part.after),
                "order": self.part.order,
                **self.part.note.to_json(),
            }
        if self.unsure:
            told["unsure"] = {name: note.to_json() for name, note in sorted(self.unsure.items())}
        if self.refresh:
            told["refresh"] = self.refresh
        if self.timeline:
            told["timeline"] = self.timeline
        if self.confirmed:
            told["confirmed"] = self.confirmed
        return told

    @classmethod
    def from_json(cls, told: Offset) -> Place:
        """Read a position."""
        part = told.get("part")
        return cls(
            system=told["system"],
            lsn=told["lsn"],
            tables={name: Note.from_json(note) for name, note in told["tables"].items()},
            pending=tuple(told.get("pending", ())),
            part=part
            and Part(
                part["table"], tuple(part["after"]), Note.from_json(part), part.get("order", "")
            ),
            unsure={name: Note.from_json(note) for name, note in told.get("unsure", {}).items()},
            refresh=told.get("refresh", ""),
            timeline=told.get("timeline", 0),
            confirmed=told.get("confirmed", 0),
        )

    def at(self, lsn: int) -> Place:
        """Return the place further on in the log, without the notes that do not matter there."""
        return replace(
            self, lsn=lsn, tables={name: note.at(lsn) for name, note in self.tables.items()}
        )
