"""Reads Spark's checkpoint: the query it belongs to, and the batches planned and completed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from icestream.errors import CorruptStateError

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.contracts.offset import Offset


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder as it was when read.

    Attributes:
        query_id: id of the query, None if there is no checkpoint.
        planned: number of the newest batch whose end offset Spark logged, -1 if none.
        done: number of the newest batch that Spark logged as completed, -1 if none.
    """

    folder: Path
    query_id: str | None
    planned: int
    done: int

    @property
    def exists(self) -> bool:
        return self.query_id is not None

    def end_of(self, batch: int) -> Offset:
        """Return the end offset of a planned batch."""
        path = self.folder / "offsets" / str(batch)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            offset: Offset = json.loads(lines[2])
        except (OSError, ValueError, IndexError) as exc:
            raise _corrupt(path, exc) from exc
        return offset


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint; a missing folder gives an empty one."""
    metadata = folder / "metadata"
    query_id = None
    if metadata.exists():
        try:
            query_id = str(json.loads(metadata.read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise _corrupt(metadata, exc) from exc
    return Checkpoint(folder, query_id, _newest(folder / "offsets"), _newest(folder / "commits"))


def await_done(folder: Path, secs: float = 30) -> None:
    """Wait until Spark logs the current batch as completed, so the next start replays nothing."""
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline:
        checkpoint = read_checkpoint(folder)
        if checkpoint.done >= checkpoint.planned:
            return
        time.sleep(0.02)


def _newest(folder: Path) -> int:
    if not folder.is_dir():
        return -1
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)


def _corrupt(path: Path, exc: Exception) -> CorruptStateError:
    return CorruptStateError(
        f"the checkpoint file {path} can't be read: {exc}",
        todo="Restore it from a backup, or delete the pipeline's checkpoint folder and start "
        "`icestream run`, which offers to resume from the table's mark.",
    )
