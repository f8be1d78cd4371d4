"""The state file of a fan-out: its tables, and how the pipeline last restarted."""

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
class FanOutState:
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


class FanOutStateFile:
    """A file that is replaced as a whole.

    Lost, it costs time: the tables are found by their marks. So it is written before a table is
    first written to, and a table that it lacks is never taken for a new one.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.exists = self._path.exists()
        self.state = self._read()

    def replayed_batch(self) -> BatchMark | None:
        return None if self.state.again is None else BatchMark.from_json(self.state.again)

    def recover(self, tables: frozenset[Identifier]) -> None:
        """Take up tables that were found by their marks; written with what is written next."""
        self.state = replace(self.state, tables=self.state.tables | tables)

    def add(self, tables: frozenset[Identifier]) -> None:
        """Remember tables, on disk when this returns."""
        if not tables <= self.state.tables or not self.exists:
            self._write(replace(self.state, tables=self.state.tables | tables))

    def add_written(self, tables: frozenset[Identifier], place: str) -> None:
        """Remember tables that hold rows, on disk when this returns.

        A crash before that does no harm: their first batch is replayed.
        """
        written = self.state.written | tables
        self._update(written=written, place=place, given_up=self.state.given_up - tables)

    def record_given_up(
        self, written: frozenset[Identifier], place: str, given_up: frozenset[Identifier]
    ) -> None:
        """Remember that only `written` hold rows, on disk when this returns."""
        self._update(written=written, place=place, given_up=given_up)

    def _update(self, **changes: Any) -> None:
        state = replace(self.state, **changes)
        if state != self.state:
            self._write(state)

    def record_restart(self, generation: int, again: BatchMark | None) -> None:
        """Remember how the pipeline begins anew."""
        text = None if again is None else again.to_json()
        self._write(replace(self.state, generation=generation, again=text))

    def _read(self) -> FanOutState:
        if not self.exists:
            return FanOutState()
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            tables = frozenset(tuple(name) for name in found["tables"])
            written = frozenset(tuple(name) for name in found.get("written", ()))
            place = str(found.get("place", ""))
            given_up = frozenset(tuple(name) for name in found.get("given_up", ()))
            generation, again = int(found["generation"]), found["again"]
            return FanOutState(tables, generation, again, written, place, given_up)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CorruptStateError(
                f"the file {self._path} can't be read: {exc}",
                todo="Remove it: the tables are then found by their marks.",
            ) from exc

    def _write(self, state: FanOutState) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(f"{FILE}.{os.getpid()}.new")
        with fresh.open("w", encoding="utf-8") as file:
            sets = {
                name: sorted(getattr(state, name)) for name in ("tables", "written", "given_up")
            }
            json.dump({**asdict(state), **sets}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self.state = state
        self.exists = True
