"""Tells a source what is in the table, once no replay can ask for it again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from icestream.engine.recovery.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.offset import Offset
    from icestream.contracts.source import Source


class Acknowledgements:
    """Batches that were written, and that the source does not know of yet.

    Spark may replay a batch until its own log says that it is done. So the source is told after
    that, and not after the commit: it may let go of what it is told of.
    """

    def __init__(self, source: Source[Any], checkpoint: Path) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._written: tuple[int, Offset, int] | None = None
        self._lock = threading.Lock()

    def record(self, epoch: int, end: Offset, rows: int) -> None:
        """Take note of a batch that is in the table."""
        with self._lock:
            before = self._written[2] if self._written is not None else 0
            self._written = (epoch, end, before + rows)

    def send(self) -> None:
        """Tell the source of what Spark knows to be done."""
        written = self._written
        if written is None or read_checkpoint(self._checkpoint).done < written[0]:
            return
        with self._lock:
            if self._written is written:
                self._written = None
        self._source.committed(written[1], written[2])
