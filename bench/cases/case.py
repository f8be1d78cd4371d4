"""What a case is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from bench.results import Result


class Named(Protocol):
    """Something that goes by a name, as contenders do."""

    @property
    def name(self) -> str: ...


AnyContender = TypeVar("AnyContender", bound=Named)


@dataclass(frozen=True)
class Choices:
    """What the person who runs a case chose.

    Attributes:
        rows: rows to move instead of the case's own number, to try it.
        rounds: runs of each contender instead of the case's own number.
        only: the contenders to run; all if empty.
        keeps_tables: leave what contenders wrote in the folder.
        baseline: the `icestream` command of another installation, to run beside this one in the
            cases that can.
    """

    rows: int | None = None
    rounds: int | None = None
    only: Collection[str] = ()
    keeps_tables: bool = False
    baseline: Path | None = None

    def chosen(self, contenders: Iterable[AnyContender]) -> list[AnyContender]:
        """Return the contenders that run."""
        return [each for each in contenders if not self.only or each.name in self.only]

    @property
    def is_trial(self) -> bool:
        """Return whether the results can't be compared with others and are only shown."""
        return bool(self.rows or self.rounds or self.only or self.baseline)


class Case(ABC):
    """One kind of work that contenders are timed at."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, choices: Choices, folder: Path) -> list[Result]:
        """Run every contender, in an empty folder that is removed afterwards."""
