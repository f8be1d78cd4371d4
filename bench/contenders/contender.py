"""What the harness asks of a contender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from bench.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.stream import Stream


@dataclass(frozen=True)
class Command:
    """A process to start. Its output goes into the file `log` of its folder."""

    arguments: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


class Contender(ABC):
    """A program that moves a stream into the table of a lake, run as a process of its own.

    For each run the harness calls `prepare` with an empty folder, starts the command there, waits
    until it ends by itself or, for one that never does, until every row is committed, and asks
    `started_at`.
    """

    name: str
    ends_itself: ClassVar[bool] = True

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the versions of what runs."""

    @abstractmethod
    def prepare(self, stream: Stream, folder: Path) -> Command:
        """Write settings into the folder, install what is missing; nothing of it is measured."""

    @abstractmethod
    def started_at(self, folder: Path) -> float:
        """Return when it began to stream, in seconds since 1970, by its own account."""

    def lake(self, folder: Path) -> Lake:
        return Lake(folder)
