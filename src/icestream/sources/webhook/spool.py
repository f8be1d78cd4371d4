"""The spool: events that were acknowledged and are not in the table yet."""

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
    """Create the folder and missing parents, accessible by this user only."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def acquire_lock(folder: Path) -> int:
    """Lock the spool for this process, and return the file descriptor of the lock.

    Raises:
        ConnectorError: another process holds it.
    """
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 20, 0).decode("ascii", "replace")
        os.close(handle)
        raise ConnectorError(
            f"the spool {folder} is in use by process {owner}",
            todo="A webhook source feeds one pipeline: write several tables with `route_by`, or "
            "give each pipeline a source with its own port and `spool`.",
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def lock_holder(folder: Path) -> str | None:
    """Return the pid of the process that holds the spool; None if it is free."""
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
    """Return the id of a spool, created with it and never changed."""
    path = folder / "spool.json"
    try:
        return uuid.UUID(json.loads(path.read_text("ascii"))["id"])
    except FileNotFoundError:
        if segment_paths(folder):
            raise corrupt_error(path, "it does not exist, but segments do") from None
    except (ValueError, KeyError, TypeError) as exc:
        raise corrupt_error(path, f"{exc}") from exc
    new_id = uuid.uuid4()
    write_atomically(path, json.dumps({"id": str(new_id)}).encode())
    return new_id


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    temporary = path.with_name(path.name + ".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class AcknowledgedMark:
    """The end of the spool when events were last acknowledged.

    Written without fsync: a killed process leaves its last write, and a power cut may leave an
    older mark, which is still true. A record before the mark was acknowledged and must be complete;
    one after it was not, and may be torn.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "answered"
        if not self._path.exists():
            write_atomically(self._path, _pack(0, 0))
        self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def read(self) -> tuple[int, int]:
        """Return the first event of a segment, and a byte offset in it."""
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
# Without space for ids, no segment could be removed, and a full disk would stay full.
FREE_BYTES = 64 << 20


class SpoolFullError(Exception):
    """The spool has reached its maximum size."""


class Spool:
    """Segments of records on disk, and the ids of these and earlier records.

    Opening it takes the lock, truncates an unacknowledged tail that a crash left, and reads
    everything else, so that corruption is found at once. One thread calls `append`, another
    `release`.

    Args:
        folder: created if needed.
        remember_days: how long ids are remembered.
        max_bytes: maximum size.
        durable: False only to measure the cost of durability.
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
        # Space is freed by whole segments, so several must fit.
        self.segment_bytes = min(SEGMENT_BYTES, max_bytes // 4)
        self._durable = durable
        self._guard = threading.Lock()
        self._file = -1
        self.fault: OSError | None = None
        """Why it is no longer writable, if so; its content stays readable."""
        create_folder(folder)
        self._lock = acquire_lock(folder)
        try:
            self.id = spool_id(folder)
            self._acknowledged = AcknowledgedMark(folder)
            self._ids = SeenIds(folder / "ids.db", remember_days)
            self.segments = self._load()
            self._file = os.open(self._last.path, os.O_WRONLY | os.O_CLOEXEC)
            self._cut_tail()
        except BaseException:
            os.close(self._lock)
            raise
        self.first = self.segments[0].first
        self.end = self._last.end
        """The number after the last durable event."""

    @property
    def _last(self) -> Segment:
        return self.segments[-1]

    def append(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """Write arrivals durably, and return for each whether it is new.

        A duplicate of an earlier id, or of one earlier in the list, is not written again; its
        first copy is on disk when this returns.

        Raises:
            SpoolFullError: no space left; nothing was written.
            OSError: the write failed; nothing counts as written.
        """
        with self._guard:
            if self.fault is not None:
                raise self.fault
            seen = self._ids.find_seen({arrival.key for arrival in arrivals} - {NO_KEY})
            new_flags, new_arrivals = [], []
            for arrival in arrivals:
                is_new = arrival.key == NO_KEY or arrival.key not in seen
                new_flags.append(is_new)
                if is_new:
                    seen.add(arrival.key)
                    new_arrivals.append(arrival)
            if new_arrivals:
                self._write(new_arrivals)
            return new_flags

    def _write(self, arrivals: list[Arrival]) -> None:
        number, records = self.end, []
        for arrival in arrivals:
            records.append(arrival.pack(number))
            number += len(arrival.events)
        content = b"".join(records)
        if sum(segment.size for segment in self.segments) + len(content) > self._max_bytes:
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
            # Truncate the partial write: it was not acknowledged.
            os.ftruncate(self._file, last.size)
            raise
        for arrival, record in zip(arrivals, records, strict=True):
            last.add(len(arrival.events), len(record))
            if arrival.key != NO_KEY:
                self._ids.add(arrival.key)
        self.end = number
        try:
            self._acknowledged.write(last.first, last.size)
        except OSError as exc:
            # The events are durable, and an older mark is still true.
            logger.warning("cannot record how far events were acknowledged: %s", exc)
        if self._ids.is_full():
            self._flush_ids()

    def _flush_ids(self) -> bool:
        try:
            self._ids.flush(self.end)
        except OSError as exc:
            # The events are durable, and so are their ids while their segments exist.
            logger.warning("cannot store the ids of events yet: %s", exc)
            return False
        return True

    def _sync(self) -> None:
        if not self._durable:
            return
        try:
            os.fdatasync(self._file)
        except OSError as exc:
            # The kernel may have dropped dirty pages: nothing here can be trusted now.
            self.fault = exc
            raise

    def _is_segment_full(self) -> bool:
        return self._last.size > SEGMENT.size and self._last.size >= self.segment_bytes

    def _roll(self) -> None:
        segment = self._create_segment(self.end)
        # Open first: if that fails, the previous segment stays in use.
        handle = os.open(segment.path, os.O_WRONLY | os.O_CLOEXEC)
        os.close(self._file)
        self._file = handle
        self.segments.append(segment)

    def _create_segment(self, first: int) -> Segment:
        path = self.folder / segment_name(first)
        write_atomically(path, SEGMENT.pack(MAGIC, self.id.bytes, first))
        return Segment(path, first, first)

    def release(self, number: int) -> None:
        """Remove segments that end before an event; their ids stay remembered.

        What cannot be removed now stays until the next call.
        """
        with self._guard:
            if self.fault is not None:
                return
            try:
                self._release(number)
            except OSError as exc:
                logger.warning("cannot remove committed events from the spool yet: %s", exc)

    def _release(self, number: int) -> None:
        if self._last.end <= number and self._is_segment_full():
            # Otherwise, a spool that a single write has filled would stay full.
            self._roll()
        committed = [segment for segment in self.segments[:-1] if segment.end <= number]
        if not committed:
            return
        if self._ids.flushed_up_to < committed[-1].end and not self._flush_ids():
            return
        self.segments = self.segments[len(committed) :]
        self.first = self.segments[0].first
        for segment in committed:
            segment.path.unlink(missing_ok=True)
        sync_folder(self.folder)

    def close(self) -> None:
        """Release the folder. May be called more than once."""
        with self._guard:
            if self._lock < 0:
                return
            self._acknowledged.close()
            self._ids.close()
            os.close(self._file)
            os.close(self._lock)
            self._lock = -1
            self.fault = OSError("the spool is closed")

    def _load(self) -> list[Segment]:
        paths = segment_paths(self.folder)
        if not paths:
            acknowledged, _ = self._acknowledged.read()
            if acknowledged:
                raise corrupt_error(self.folder / segment_name(acknowledged), "it does not exist")
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
        """Refuse a spool that lacks acknowledged events."""
        first, offset = self._acknowledged.read()
        if first > last.first:
            raise corrupt_error(self.folder / segment_name(first), "it does not exist")
        if first == last.first and last.size < offset:
            raise corrupt_error(
                last.path,
                f"it is intact up to byte {last.size}, but events up to byte {offset} were "
                "acknowledged",
            )

    def _cut_tail(self) -> None:
        """Truncate what a crash left of requests that were never acknowledged."""
        if os.fstat(self._file).st_size > self._last.size:
            os.ftruncate(self._file, self._last.size)
        # What was written but not synced before the crash is kept, so make it durable now.
        os.fsync(self._file)
        self._acknowledged.write(self._last.first, self._last.size)


def _write_all(handle: int, content: bytes, offset: int) -> None:
    remaining = memoryview(content)
    while remaining:
        written = os.pwrite(handle, remaining, offset)
        remaining, offset = remaining[written:], offset + written
