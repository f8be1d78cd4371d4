"""A step of `icestream check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class CheckStep:
    """One question to an outside system.

    `run` returns a short detail to show beside the tick, or raises an `IcestreamError`. The steps
    after a failed one of the same part are not asked.
    """

    name: str
    run: Callable[[], str]
