"""What the person who starts a run chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icestream.engine.reconcile import Choice


@dataclass(frozen=True)
class RunChoices:
    """What the person who starts a run chose.

    Attributes:
        once: go up to where the source ends now, then stop.
        take_over: go on although another process holds the pipeline.
        beginning: what to do when checkpoint and table disagree.
    """

    once: bool = False
    take_over: bool = False
    beginning: Choice = "ask"
