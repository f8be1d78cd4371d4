"""What a fan-out remembers beside its tables: which they are, and how it last began anew."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import BatchMark
from icestream.errors import CorruptStateError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.catalog import Identifier


FILE = "fan-out.json"


@dataclass(frozen=True)
class Remembered:
    """The content of the file.

    Attributes:
        tables: every table that the pipeline may have written to.
        generation: how often the pipeline began under a new checkpoint.
        again: the batch that is read once more under the new one, as JSON.
        written: the tables that are known to hold rows of the pipeline.
        place: where the file told rows to go that do not say it themselves: namespace and table.
        given_up: tables without rows that a person chose to continue with.
    """

    tables: frozenset[Identifier] = frozenset()
    generation: int = 0
    again: str | None = None
    written: frozenset[Identifier] = frozenset()
    place: str = ""
    given_up: frozenset[Identifier] = frozenset()


class Memory:
    """A file that is replaced as a whole.

    Lost, it costs time: the tables are found by their marks. So it is written before a table is
    first written to, and a table that it lacks is never taken for a new one.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.is_there = self._path.exists()
        self.kept = self._read()

    def batch_again(self) -> BatchMark | None:
        return None if self.kept.again is None else BatchMark.from_json(self.kept.again)

    def recover(self, tables: frozenset[Identifier]) -> None:
        """Take up tables that were found by their marks; written with what is written next."""
        self.kept = replace(self.kept, tables=self.kept.tables | tables)

    def add(self, tables: frozenset[Identifier]) -> None:
        """Remember tables, on disk when this returns."""
        if not tables <= self.kept.tables or not self.is_there:
            self._write(replace(self.kept, tables=self.kept.tables | tables))

    def add_written(self, tables: frozenset[Identifier], place: str) -> None:
        """Remember tables that hold rows, on disk when this returns.

        A crash before that does no harm: their first batch is replayed.
        """
        written = self.kept.written | tables
        self._update(written=written, place=place, given_up=self.kept.given_up - tables)

    def give_up(
        self, written: frozenset[Identifier], place: str, given_up: frozenset[Identifier]
    ) -> None:
        """Remember that only `written` hold rows, on disk when this returns."""
        self._update(written=written, place=place, given_up=given_up)

    def _update(self, **changes: Any) -> None:
        kept = replace(self.kept, **changes)
        if kept != self.kept:
            self._write(kept)

    def begin(self, generation: int, again: BatchMark | None) -> None:
        """Remember how the pipeline begins anew."""
        text = None if again is None else again.to_json()
        self._write(replace(self.kept, generation=generation, again=text))

    def _read(self) -> Remembered:
        if not self.is_there:
            return Remembered()
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            tables = frozenset(tuple(name) for name in found["tables"])
            written = frozenset(tuple(name) for name in found.get("written", ()))
            place = str(found.get("place", ""))
            given_up = frozenset(tuple(name) for name in found.get("given_up", ()))
            generation, again = int(found["generation"]), found["again"]
            return Remembered(tables, generation, again, written, place, given_up)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CorruptStateError(
                f"the file {self._path} can't be read: {exc}",
                todo="Remove it: the tables are then found by their marks.",
            ) from exc

    def _write(self, kept: Remembered) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(f"{FILE}.{os.getpid()}.new")
        with fresh.open("w", encoding="utf-8") as file:
            sets = {name: sorted(getattr(kept, name)) for name in ("tables", "written", "given_up")}
            json.dump({**asdict(kept), **sets}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self.kept = kept
        self.is_there = True
