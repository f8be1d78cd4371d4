"""The state folder of a pipeline: icestream's own files, and the checkpoint that Spark keeps.

Our files are replaced as a whole, never written in place. The checkpoint is only read.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from icestream.errors import CorruptStateError, SupersededError
from icestream.plan.plan import SINK_CACHE, pipeline_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icestream.contracts.offset import Offset


LOCK_TRIES = 10
LOCK_AGAIN_SECS = 0.5
OWN_NAMES = {"pipelines", "checkpoints", "spark.log"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PipelineState:
    """The state folder of one pipeline.

    Attributes:
        root: the folder of `state.path`.
        pipeline: the pipeline's name.
        instance: id of the running process, for files between it and its own Spark.
    """

    root: Path
    pipeline: str
    instance: str = ""

    @property
    def start_file(self) -> Path:
        """The file with the offset that the pipeline started from."""
        return self.folder / "start.json"

    @property
    def next_file(self) -> Path:
        """Where this instance publishes the end of the next batch; no other instance writes it."""
        return self.folder / f"next-{self.instance}.json"

    @property
    def folder(self) -> Path:
        return pipeline_folder(self.root, self.pipeline)

    @property
    def sink_cache(self) -> Path:
        return self.folder / SINK_CACHE

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoints" / self.pipeline

    def make(self) -> None:
        """Create the folders, readable by their owner only, and restrict existing ones to them."""
        for folder in (self.root, self.folder.parent, self.folder, self.checkpoint.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.folder.parent, self.folder, self.checkpoint.parent, self.checkpoint):
            _close_to_others(folder)
        # The root may also hold other things, such as a warehouse that others read.
        if {entry.name for entry in self.root.iterdir()} <= OWN_NAMES:
            _close_to_others(self.root)

    def start(self) -> Offset | None:
        """Return the offset that the pipeline started from, if it ever did."""
        return self._read(self.start_file.name)

    def remember_start(self, offset: Offset) -> None:
        self._write(self.start_file.name, offset)

    def publish(self, offset: Offset) -> None:
        """Publish the end of the next batch to Spark."""
        self._write(self.next_file.name, offset)

    def schema(self) -> dict[str, Any] | None:
        """Return the inferred columns, if there are any."""
        return self._read("schema.json")

    def remember_schema(self, columns: dict[str, Any]) -> None:
        self._write("schema.json", columns)

    def accepted(self) -> str | None:
        """Return the table's mark at the last start without a checkpoint; that mark is no conflict.

        None if there was no such start, or no mark.
        """
        saved = self._read("accepted.json")
        return None if saved is None else saved.get("mark")

    def accept(self, mark: str | None) -> None:
        self._write("accepted.json", {"mark": mark})

    def dead_letters_end(self) -> Offset | None:
        """Return the end of the first batch if its dead letters were written before."""
        return (self._read("letters.json") or {}).get("end")

    def ignored_dead_letters(self) -> str | None:
        """Return the mark of dead letters that the user chose to ignore, if one ever did."""
        return (self._read("letters.json") or {}).get("ignored")

    def remember_dead_letters(self, end: Offset | None, ignored: str | None) -> None:
        self._write("letters.json", {"end": end, "ignored": ignored})

    def load(self) -> dict[str, Any] | None:
        """Return the last bounded load, `id` and whether it has `ended`, if there was one."""
        return self._read("load.json")

    def remember_load(self, load: str, *, ended: bool) -> None:
        self._write("load.json", {"id": load, "ended": ended})

    def status(self) -> dict[str, Any] | None:
        """Return the last status of the pipeline."""
        return self._read("status.json")

    def write_status(self, status: dict[str, Any]) -> None:
        self._write("status.json", status)

    def forget_commit(self) -> None:
        """Forget which batch was committed last: the user chose to continue without it."""
        status = self.status()
        if status is not None and status.get("committed") is not None:
            self.write_status({**status, "committed": None})

    def forget(self) -> None:
        """Delete the checkpoint and the start offset, so that the pipeline starts from scratch."""
        import shutil

        if self.checkpoint.exists():
            shutil.rmtree(self.checkpoint)
        self.start_file.unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Remove the published offsets of earlier instances."""
        for path in self.folder.glob("next-*.json"):
            if path != self.next_file:
                path.unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Return whether a process holds the pipeline's lock."""
        path = self.folder / "lock"
        if not path.exists():
            return False
        with path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    @contextmanager
    def locked(self, *, take_over: bool = False) -> Iterator[None]:
        """Lock the pipeline for this process; the lock ends with the process.

        Args:
            take_over: continue although another process holds the lock, e.g. because it hangs. The
                fence in the table's commit prevents duplicate writes. The lock is taken once
                the other process has ended.
        """
        path = self.folder / "lock"
        with ExitStack() as resources:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            resources.callback(os.close, handle)
            if not _lock(handle, LOCK_TRIES):
                if not take_over:
                    raise self._already_running(path)
                resources.enter_context(closing(_LockLater(handle)))
            yield

    def _already_running(self, path: Path) -> SupersededError:
        owner, _, host = path.read_text(encoding="utf-8").partition(" ")
        return SupersededError(
            f"the pipeline is already running as process {owner} on {host}",
            where=f"pipeline {self.pipeline!r}",
            todo="Stop that process first. If it hangs and can't be stopped, "
            "`icestream run --take-over` replaces it.",
        )

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError("not a JSON object")
        except FileNotFoundError:
            return None
        except ValueError as exc:
            raise CorruptStateError(
                f"the file {path} can't be read: {exc}",
                where=f"pipeline {self.pipeline!r}",
                todo="Restore it from a backup, or remove the pipeline's state and start over "
                "with `icestream run --start-over`.",
            ) from exc
        return content

    def _write(self, name: str, content: dict[str, Any]) -> None:
        path = self.folder / name
        fresh = path.with_name(f"{name}.{os.getpid()}.new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


class _LockLater:
    """Takes the lock once it is free, so that a third process is refused again."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._ended = Event()
        self._thread = Thread(target=self._wait, name="icestream-lock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop waiting, and release the lock with the handle."""
        self._ended.set()
        self._thread.join()

    def _wait(self) -> None:
        while not self._ended.wait(LOCK_AGAIN_SECS) and not _lock(self._handle, 1):
            pass


def _lock(handle: int, tries: int) -> bool:
    """Take the lock, retrying because `icestream status` holds it for a moment."""
    for attempt in range(tries):
        if attempt:
            time.sleep(0.05)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
        return True
    return False


def _close_to_others(folder: Path) -> None:
    """Restrict a folder to its owner, as far as we are permitted to."""
    if not folder.exists() or not folder.stat().st_mode & 0o077:
        return
    try:
        folder.chmod(0o700)
    except PermissionError:
        logger.warning("%s is accessible to other users, and belongs to another user", folder)


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
