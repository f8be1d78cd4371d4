"""The state file of a fan-out: its tables, and how the pipeline last restarted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icestream.contracts.offset import BatchMark
from icestream.errors import CorruptStateError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.catalog import Identifier


FILE = "fan-out.json"


@dataclass(frozen=True)
class FanOutState:
    """The contents of the file.

    Attributes:
        tables: every table that the pipeline may have written to.
        generation: how often the pipeline has started with a new checkpoint.
        replayed: the batch to read again under the new checkpoint, as JSON.
        written: the tables that hold rows of the pipeline.
        destination: the namespace and table for rows that name none themselves.
        given_up: tables without their rows that the user chose to continue with.
    """

    tables: frozenset[Identifier] = frozenset()
    generation: int = 0
    replayed: str | None = None
    written: frozenset[Identifier] = frozenset()
    destination: str = ""
    given_up: frozenset[Identifier] = frozenset()


class FanOutStateFile:
    """A file that is always replaced as a whole.

    Losing it only costs time: the tables are then found by their marks. A table is added before
    its first rows are written, so a table that is missing from the file is never mistaken for a
    new one.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.exists = self._path.exists()
        self.state = self._read()

    def replayed_batch(self) -> BatchMark | None:
        return None if self.state.replayed is None else BatchMark.from_json(self.state.replayed)

    def recover(self, tables: frozenset[Identifier]) -> None:
        """Add tables that were found by their marks; the next write saves them."""
        self.state = replace(self.state, tables=self.state.tables | tables)

    def add(self, tables: frozenset[Identifier]) -> None:
        """Remember tables, on disk when this returns."""
        if not tables <= self.state.tables or not self.exists:
            self._write(replace(self.state, tables=self.state.tables | tables))

    def add_written(self, tables: frozenset[Identifier], destination: str) -> None:
        """Remember tables that hold rows, on disk when this returns.

        A crash before that does no harm: their first batch is replayed.
        """
        written = self.state.written | tables
        self._update(
            written=written, destination=destination, given_up=self.state.given_up - tables
        )

    def record_given_up(
        self, written: frozenset[Identifier], destination: str, given_up: frozenset[Identifier]
    ) -> None:
        """Remember that only `written` hold rows, on disk when this returns."""
        self._update(written=written, destination=destination, given_up=given_up)

    def _update(self, **changes: Any) -> None:
        state = replace(self.state, **changes)
        if state != self.state:
            self._write(state)

    def record_restart(self, generation: int, replayed: BatchMark | None) -> None:
        """Remember how the pipeline restarts."""
        text = None if replayed is None else replayed.to_json()
        self._write(replace(self.state, generation=generation, replayed=text))

    def _read(self) -> FanOutState:
        if not self.exists:
            return FanOutState()
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            tables = frozenset(tuple(name) for name in stored["tables"])
            written = frozenset(tuple(name) for name in stored.get("written", ()))
            destination = str(stored.get("place", ""))
            given_up = frozenset(tuple(name) for name in stored.get("given_up", ()))
            generation, replayed = int(stored["generation"]), stored["again"]
            return FanOutState(tables, generation, replayed, written, destination, given_up)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CorruptStateError(
                f"the file {self._path} can't be read: {exc}",
                todo="Remove it: the tables are then found by their marks.",
            ) from exc

    def _write(self, state: FanOutState) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(f"{FILE}.{os.getpid()}.new")
        with fresh.open("w", encoding="utf-8") as file:
            stored = {
                "tables": sorted(state.tables),
                "generation": state.generation,
                "again": state.replayed,
                "written": sorted(state.written),
                "place": state.destination,
                "given_up": sorted(state.given_up),
            }
            json.dump(stored, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self.state = state
        self.exists = True
