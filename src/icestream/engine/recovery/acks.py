"""Acknowledges committed batches to the source, once Spark can no longer replay them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from icestream.engine.recovery.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Source


class Acknowledgements:
    """Committed batches that are not yet acknowledged to the source.

    Spark may replay a batch until its commit log lists it. A source may delete what has been
    acknowledged, so batches are acknowledged only then, not right after the table's commit.
    """

    def __init__(self, source: Source[Any], checkpoint: Path) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._written: tuple[int, Offset, int] | None = None
        self._lock = threading.Lock()

    def record(self, epoch: int, end: Offset, rows: int) -> None:
        """Record a batch that was committed to the table."""
        with self._lock:
            unsent_rows = self._written[2] if self._written is not None else 0
            self._written = (epoch, end, unsent_rows + rows)

    def send(self) -> None:
        """Acknowledge the recorded batches, once Spark has logged the last of them as done."""
        written = self._written
        if written is None or read_checkpoint(self._checkpoint).done < written[0]:
            return
        with self._lock:
            if self._written is written:
                self._written = None
        self._source.committed(written[1], written[2])
