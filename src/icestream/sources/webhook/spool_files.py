"""What a spool's folder holds beside its segments: a lock, its name, how far it was answered."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import uuid
import zlib
from typing import TYPE_CHECKING

from icestream.errors import ConnectorError
from icestream.sources.webhook.segments import corrupt, paths_in

if TYPE_CHECKING:
    from pathlib import Path

_ANSWERED = struct.Struct("<QQI")


def make_folder(folder: Path) -> None:
    """Make the folder for our eyes only, those above it too where they are missing."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def take_lock(folder: Path) -> int:
    """Hold the spool for this process, and return the handle that does.

    Raises:
        ConnectorError: another holds it.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 20, 0).decode("ascii", "replace")
        os.close(handle)
        raise ConnectorError(
            f"the spool {folder} is in use by process {owner}",
            todo="A webhook source feeds one pipeline: fill several tables with `route_by`, or "
            "give each pipeline a source with a port and a `spool` of its own.",
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def holder(folder: Path) -> str | None:
    """Return the process that holds the spool now, if one does."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 20, 0).decode("ascii", "replace")
    else:
        return None
    finally:
        os.close(handle)


def spool_id(folder: Path) -> uuid.UUID:
    """Return the id of a spool, which is made with it and stays the same."""
    path = folder / "spool.json"
    try:
        return uuid.UUID(json.loads(path.read_text("ascii"))["id"])
    except FileNotFoundError:
        if paths_in(folder):
            raise corrupt(path, "it is not there, and segments are") from None
    except (ValueError, KeyError, TypeError) as exc:
        raise corrupt(path, f"{exc}") from exc
    made = uuid.uuid4()
    write_whole(path, json.dumps({"id": str(made)}).encode())
    return made


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all, whatever happens."""
    fresh = path.with_name(path.name + ".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Answered:
    """How far the spool was when senders were last told that their events are safe.

    Written without waiting for the disk: a killed process leaves what it last wrote, and after a
    power cut an older place is there, which is as true. A record before that place was answered
    and must be whole; one behind it was not and may be torn.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "answered"
        if not self._path.exists():
            write_whole(self._path, _packed(0, 0))
        self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def read(self) -> tuple[int, int]:
        """Return the first event of a segment, and an offset in it."""
        content = os.pread(self._handle, 2 * _ANSWERED.size, 0)
        if len(content) == _ANSWERED.size:
            segment, offset, _ = _ANSWERED.unpack(content)
            if content == _packed(segment, offset):
                return segment, offset
        raise corrupt(self._path, "the checksum does not match")

    def write(self, segment: int, offset: int) -> None:
        os.pwrite(self._handle, _packed(segment, offset), 0)

    def close(self) -> None:
        os.close(self._handle)


def _packed(segment: int, offset: int) -> bytes:
    both = struct.pack("<QQ", segment, offset)
    return both + struct.pack("<I", zlib.crc32(both))
