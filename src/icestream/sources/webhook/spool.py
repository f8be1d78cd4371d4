"""The spool: events that were answered with success and are not in the table yet."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import struct
import threading
import uuid
import zlib
from typing import TYPE_CHECKING

from icestream.errors import ConnectorError
from icestream.sources.webhook.ids import SeenIds
from icestream.sources.webhook.segments import (
    MAGIC,
    NO_KEY,
    SEGMENT,
    Segment,
    corrupt_error,
    load_segment,
    refuse_foreign_file,
    segment_name,
    segment_paths,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from icestream.sources.webhook.segments import Arrival


_MARK = struct.Struct("<QQI")


def create_folder(folder: Path) -> None:
    """Make the folder for our eyes only, those above it too where they are missing."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def acquire_lock(folder: Path) -> int:
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


def lock_holder(folder: Path) -> str | None:
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
        if segment_paths(folder):
            raise corrupt_error(path, "it is not there, and segments are") from None
    except (ValueError, KeyError, TypeError) as exc:
        raise corrupt_error(path, f"{exc}") from exc
    made = uuid.uuid4()
    write_atomically(path, json.dumps({"id": str(made)}).encode())
    return made


def write_atomically(path: Path, content: bytes) -> None:
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


class AcknowledgedMark:
    """How far the spool was when senders were last told that their events are safe.

    Written without waiting for the disk: a killed process leaves what it last wrote, and after a
    power cut an older place is there, which is as true. A record before that place was answered
    and must be whole; one behind it was not and may be torn.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "answered"
        if not self._path.exists():
            write_atomically(self._path, _pack(0, 0))
        self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def read(self) -> tuple[int, int]:
        """Return the first event of a segment, and an offset in it."""
        content = os.pread(self._handle, 2 * _MARK.size, 0)
        if len(content) == _MARK.size:
            segment, offset, _ = _MARK.unpack(content)
            if content == _pack(segment, offset):
                return segment, offset
        raise corrupt_error(self._path, "the checksum does not match")

    def write(self, segment: int, offset: int) -> None:
        os.pwrite(self._handle, _pack(segment, offset), 0)

    def close(self) -> None:
        os.close(self._handle)


def _pack(segment: int, offset: int) -> bytes:
    both = struct.pack("<QQ", segment, offset)
    return both + struct.pack("<I", zlib.crc32(both))


logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
# Without room for ids no segment could be let go of, and a full disk would stay full.
FREE_BYTES = 64 << 20


class SpoolFullError(Exception):
    """The spool has as many bytes as it may have."""


class Spool:
    """Segments of records on disk, and which ids they and those before them had.

    Opening it takes the lock, cuts off a tail that a crash left behind and that nobody was
    answered for, and reads everything else, so that nothing broken is met later. `append` is
    called by one thread and `release` by another.

    Args:
        folder: made if it is not there.
        remember_days: how long ids are remembered.
        max_bytes: how large it may become.
        durable: False to measure what durability costs, and for nothing else.
    """

    def __init__(
        self,
        folder: Path,
        *,
        remember_days: int = 4,
        max_bytes: int = 10 << 30,
        durable: bool = True,
    ) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        # A segment is the least that can be given back, so several of them must fit.
        self.segment_bytes = min(SEGMENT_BYTES, max_bytes // 4)
        self._durable = durable
        self._guard = threading.Lock()
        self._file = -1
        self.fault: OSError | None = None
        """Why it can't be written any more, if so; what is in it stays readable."""
        create_folder(folder)
        self._lock = acquire_lock(folder)
        try:
            self.id = spool_id(folder)
            self._answered = AcknowledgedMark(folder)
            self._ids = SeenIds(folder / "ids.db", remember_days)
            self.segments = self._load()
            self._file = os.open(self._last.path, os.O_WRONLY | os.O_CLOEXEC)
            self._cut_tail()
        except BaseException:
            os.close(self._lock)
            raise
        self.first = self.segments[0].first
        self.end = self._last.end
        """The number after the last event that is safe."""

    @property
    def _last(self) -> Segment:
        return self.segments[-1]

    def append(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """Make arrivals durable together, and tell for each whether it is new.

        One whose id was taken before, or stands earlier in the same list, is not written again;
        also that one is on disk when this returns.

        Raises:
            SpoolFullError: there is no room; nothing was written.
            OSError: the disk did not take it; nothing counts as written.
        """
        with self._guard:
            if self.fault is not None:
                raise self.fault
            taken = self._ids.find_seen({each.key for each in arrivals} - {NO_KEY})
            news, fresh = [], []
            for each in arrivals:
                is_new = each.key == NO_KEY or each.key not in taken
                news.append(is_new)
                if is_new:
                    taken.add(each.key)
                    fresh.append(each)
            if fresh:
                self._write(fresh)
            return news

    def _write(self, fresh: list[Arrival]) -> None:
        number, records = self.end, []
        for each in fresh:
            records.append(each.pack(number))
            number += len(each.events)
        content = b"".join(records)
        if sum(each.size for each in self.segments) + len(content) > self._max_bytes:
            raise SpoolFullError
        disk = os.fstatvfs(self._file)
        if disk.f_bavail * disk.f_frsize < len(content) + FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._is_segment_full():
            self._roll()
        last = self._last
        try:
            _write_all(self._file, content, last.size)
            self._sync()
        except OSError:
            # What is there of it was not answered, so it goes at once.
            os.ftruncate(self._file, last.size)
            raise
        for each, record in zip(fresh, records, strict=True):
            last.add(len(each.events), len(record))
            if each.key != NO_KEY:
                self._ids.add(each.key)
        self.end = number
        try:
            self._answered.write(last.first, last.size)
        except OSError as exc:
            # The events are safe, and an older note is as true.
            logger.warning("how far events were answered can't be noted: %s", exc)
        if self._ids.is_full():
            self._flush_ids()

    def _flush_ids(self) -> bool:
        try:
            self._ids.flush(self.end)
        except OSError as exc:
            # The events are safe, and so are their ids as long as their segments stay.
            logger.warning("ids of events can't be written down yet: %s", exc)
            return False
        return True

    def _sync(self) -> None:
        if not self._durable:
            return
        try:
            os.fdatasync(self._file)
        except OSError as exc:
            # The kernel may have dropped what it could not write: nothing here is sure any more.
            self.fault = exc
            raise

    def _is_segment_full(self) -> bool:
        return self._last.size > SEGMENT.size and self._last.size >= self.segment_bytes

    def _roll(self) -> None:
        segment = self._create_segment(self.end)
        # Opened first: where no file can be opened, the one before stays in use.
        fresh = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
        os.close(self._file)
        self._file = fresh
        self.segments.append(segment)

    def _create_segment(self, first: int) -> Segment:
        path = self.folder / segment_name(first)
        write_atomically(path, SEGMENT.pack(MAGIC, self.id.bytes, first))
        return Segment(path, first, first)

    def release(self, number: int) -> None:
        """Remove what lies wholly before an event; its ids stay remembered.

        What can't be removed now stays until the next time.
        """
        with self._guard:
            if self.fault is not None:
                return
            try:
                self._release(number)
            except OSError as exc:
                logger.warning("events of the table can't be removed from the spool yet: %s", exc)

    def _release(self, number: int) -> None:
        if self._last.end <= number and self._is_segment_full():
            # Else a spool that one write has filled would stay full.
            self._roll()
        done = [each for each in self.segments[:-1] if each.end <= number]
        if not done:
            return
        if self._ids.flushed_up_to < done[-1].end and not self._flush_ids():
            return
        self.segments = self.segments[len(done) :]
        self.first = self.segments[0].first
        for each in done:
            each.path.unlink(missing_ok=True)
        sync_folder(self.folder)

    def close(self) -> None:
        """Let go of the folder. May be called more than once."""
        with self._guard:
            if self._lock < 0:
                return
            self._answered.close()
            self._ids.close()
            os.close(self._file)
            os.close(self._lock)
            self._lock = -1
            self.fault = OSError("the spool is closed")

    def _load(self) -> list[Segment]:
        paths = segment_paths(self.folder)
        if not paths:
            answered, _ = self._answered.read()
            if answered:
                raise corrupt_error(self.folder / segment_name(answered), "it is not there")
            return [self._create_segment(0)]
        segments: list[Segment] = []
        for path in paths:
            refuse_foreign_file(path, self.id.bytes)
            segment, fault = load_segment(path, self._remember)
            if fault is not None and path != paths[-1]:
                raise corrupt_error(path, f"at byte {fault.offset}: {fault.reason}")
            if segments and segment.first != segments[-1].end:
                raise corrupt_error(path, f"the segment before it ends at event {segments[-1].end}")
            segments.append(segment)
        self._refuse_missing_events(segments[-1])
        return segments

    def _remember(self, number: int, arrival: Arrival) -> None:
        if arrival.key != NO_KEY and number >= self._ids.flushed_up_to:
            self._ids.add(arrival.key)

    def _refuse_missing_events(self, last: Segment) -> None:
        """Refuse a spool that lacks a part which was answered with success."""
        first, offset = self._answered.read()
        if first > last.first:
            raise corrupt_error(self.folder / segment_name(first), "it is not there")
        if first == last.first and last.size < offset:
            raise corrupt_error(
                last.path,
                f"it is whole up to byte {last.size}, and events up to byte {offset} were answered "
                "with success",
            )

    def _cut_tail(self) -> None:
        """Cut off what a crash left of requests that were never answered."""
        if os.fstat(self._file).st_size > self._last.size:
            os.ftruncate(self._file, self._last.size)
        # What was written before the crash and not synced is kept, so it must be safe from now on.
        os.fsync(self._file)
        self._answered.write(self._last.first, self._last.size)


def _write_all(handle: int, content: bytes, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(handle, left, offset)
        left, offset = left[written:], offset + written
