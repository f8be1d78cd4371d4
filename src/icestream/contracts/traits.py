"""What the planner may rely on, declared by each connector instead of asked by `isinstance`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceTraits:
    """What a source promises.

    Attributes:
        replayable: a range of positions read twice gives the same rows.
        ordered: rows of one key arrive in the order in which they happened.
        changes: rows are changes (insert, update, delete), not plain events.
    """

    replayable: bool = True
    ordered: bool = False
    changes: bool = False
