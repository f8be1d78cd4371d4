"""The log of a folder's files: each file once, in the order of discovery.

An offset is a position in this log. A listing may miss files, and clocks may jump. So a file that
is not in the log is new, whatever its timestamps, and a replayed batch reads the files that the log
names, whatever has been listed since.

The log is a folder of immutable segments. A segment is on disk before an offset refers to it.
Segments whose rows are all committed are folded into a set of hashes, 16 bytes per file, which is
enough to recognise a file that was read.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import uuid
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icestream.errors import CorruptStateError, SupersededError
from icestream.sources.files.folder import FileEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SEGMENT_FILES = 10_000
# Folding rewrites the set of hashes, so it waits for several segments.
FOLD_SEGMENTS = 100
# Names of removed files are forgotten only if there are more than this: the files of a folder that
# was unmounted for a while must not count as new.
REMEMBERED_FILES = 1_000_000
CACHED_SEGMENTS = 4
CHECKSUM_MODULUS = 1 << 64


@dataclass(frozen=True)
class _LogSegment:
    """A segment of the log: `count` files, starting with number `first`.

    Attributes:
        checksum: sum of the fingerprints of all files before it.
        rows: estimated rows of its files.
    """

    path: Path
    first: int
    count: int
    checksum: int
    rows: int


class FileLog:
    """A log that is open for reading and appending.

    One thread of one process calls `append` and `forget`; others may read and fold concurrently.

    Args:
        folder: the folder of its segments; created by the first `append`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = SeenFiles()
        self.count = 0
        self.checksum = 0
        self._segments: list[_LogSegment] = []
        self._cached: dict[int, list[FileEntry]] = {}
        self._guard = threading.RLock()
        self._load()

    @property
    def id(self) -> str:
        return self.folder.name

    def append(self, entries: Sequence[FileEntry]) -> None:
        """Append new files durably.

        Raises:
            SupersededError: another process appends to this log.
        """
        for low in range(0, len(entries), SEGMENT_FILES):
            part = list(entries[low : low + SEGMENT_FILES])
            path = self.folder / f"{self.count:012}.jsonl"
            head = {"first": self.count, "checksum": f"{self.checksum:016x}"}
            lines = [json.dumps(head), *(json.dumps(entry[:4]) for entry in part)]
            self._create(path, ("\n".join(lines) + "\n").encode())
            self._add_segment(path, part)

    def files(self, start: int, end: int) -> list[FileEntry]:
        """Return the files with the numbers from `start` up to, but not including, `end`.

        Raises:
            CorruptStateError: the log no longer has them.
        """
        files: list[FileEntry] = []
        while start < end:
            segment = self._segment_of(start)
            entries = self._entries(segment)[start - segment.first : end - segment.first]
            files += entries
            start += len(entries)
        return files

    def rows(self, start: int, end: int) -> int:
        """Estimate the rows of the files from `start` up to `end`."""
        total = 0
        while start < end:
            segment = self._segment_of(start)
            segment_end = segment.first + segment.count
            if start == segment.first and segment_end <= end:
                total += segment.rows
            else:
                total += sum(entry.rows for entry in self.files(start, min(end, segment_end)))
            start = segment_end
        return total

    def checksum_before(self, number: int) -> int:
        """Return the sum of the fingerprints of all files before `number`."""
        if number == self.count:
            return self.checksum
        segment = self._segment_of(number)
        return (
            segment.checksum + _sum_fingerprints(self.files(segment.first, number))
        ) % CHECKSUM_MODULUS

    def forget(self, removed: NDArray[np.uint64]) -> None:
        """Forget files that were removed from the folder, if the log has too many names.

        Args:
            removed: hashes of their names. Those that are still in a segment are kept.
        """
        if len(self.seen) <= REMEMBERED_FILES or 2 * len(removed) < len(self.seen):
            return
        with self._guard:
            entries = self.files(self._segments[0].first, self.count)
            names = np.array([entry.name_hash for entry in entries], np.uint64)
            self.seen.forget(np.setdiff1d(removed, names))

    def fold(self, committed: int) -> None:
        """Fold segments that no replay needs into the set of hashes.

        Args:
            committed: the number of files whose rows are committed.
        """
        # The newest segment stays, since it holds the count and the checksum.
        folded = [s for s in self._segments[:-1] if s.first + s.count <= committed]
        if len(folded) < FOLD_SEGMENTS and sum(s.count for s in folded) < SEGMENT_FILES:
            return
        end = folded[-1].first + folded[-1].count
        old = sorted(self.folder.glob("*.seen"))
        with self._guard:
            seen = self.seen.to_bytes()
        self._create(self.folder / f"{end:012}.seen", seen)
        with self._guard:
            self._segments = self._segments[len(folded) :]
        for path in [*(segment.path for segment in folded), *old]:
            path.unlink(missing_ok=True)

    def _load(self) -> None:
        folded = 0
        for path in sorted(self.folder.glob("*.seen"))[-1:]:
            self.seen = SeenFiles.from_bytes(self._content(path))
            self.count = folded = int(path.stem)
        for path in sorted(self.folder.glob("*.jsonl")):
            first = int(path.stem)
            if first < folded:
                continue  # already folded by a process that died before removing the segment
            if first != self.count:
                raise self._corrupt(path, f"its files {self.count} to {first - 1} are missing")
            checksum, entries = self._read(path)
            self.checksum = checksum
            self._add_segment(path, entries)

    def _add_segment(self, path: Path, entries: list[FileEntry]) -> None:
        rows = sum(entry.rows for entry in entries)
        with self._guard:  # `fold` may run in another thread
            self._segments.append(_LogSegment(path, self.count, len(entries), self.checksum, rows))
            self._cache(self.count, entries)
            self.count += len(entries)
            self.checksum = (self.checksum + _sum_fingerprints(entries)) % CHECKSUM_MODULUS
            self.seen.add(entries)

    def _cache(self, first: int, entries: list[FileEntry]) -> None:
        with self._guard:
            self._cached[first] = entries
            if len(self._cached) > CACHED_SEGMENTS:
                del self._cached[next(iter(self._cached))]

    def _segment_of(self, number: int) -> _LogSegment:
        segments = self._segments  # `fold` replaces the list, perhaps in another thread
        index = bisect_right(segments, number, key=lambda segment: segment.first) - 1
        if index < 0 or number >= self.count:
            raise self._corrupt(self.folder, f"it does not hold file number {number}")
        return segments[index]

    def _entries(self, segment: _LogSegment) -> list[FileEntry]:
        with self._guard:
            if segment.first not in self._cached:
                self._cache(segment.first, self._read(segment.path)[1])
            return self._cached[segment.first]

    def _read(self, path: Path) -> tuple[int, list[FileEntry]]:
        try:
            head, *lines = self._content(path).decode("ascii").splitlines()
            entries = [FileEntry(*json.loads(line)) for line in lines]
            return int(json.loads(head)["checksum"], 16), entries
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise self._corrupt(path, str(exc)) from exc

    def _content(self, path: Path) -> bytes:
        content = path.read_bytes()
        if not content:
            raise CorruptStateError(
                f"the file log has an empty file {path}: the process that created it was "
                "killed, or is still writing it",
                todo="Make sure that no other instance of the pipeline is running, then delete the "
                "file. Nothing refers to it yet.",
            )
        return content

    def _create(self, path: Path, content: bytes) -> None:
        """Write an immutable file atomically."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Processes in different containers may have the same id.
        fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            _move_to_new_name(fresh, path)
        except FileExistsError as exc:
            raise SupersededError(
                f"another process has written {path.name} of the file log {self.folder}",
                todo="Run one instance of a pipeline at a time.",
            ) from exc
        finally:
            fresh.unlink(missing_ok=True)
        _sync_folder(self.folder)

    def _corrupt(self, path: Path, why: str) -> CorruptStateError:
        return CorruptStateError(
            f"the file log {path} cannot be read: {why}",
            todo="Restore it from a backup, or delete the folder: the log is rebuilt if all files "
            "that were read\nare still in place.",
        )


class SeenFiles:
    """Hashes of the names and contents of a log's files, 16 bytes per file.

    If two names had the same hash, one would look like a changed file, which stops the pipeline
    but loses nothing.
    """

    def __init__(self) -> None:
        self._names = np.empty(0, np.uint64)
        self._contents = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, entries: Iterable[FileEntry]) -> None:
        """Add files, replacing those with the same names."""
        new = {entry.name_hash: entry.content_hash for entry in entries}
        names = np.fromiter(new.keys(), np.uint64, len(new))
        kept = ~np.isin(self._names, names)
        self._set(
            np.concatenate([self._names[kept], names]),
            np.concatenate([self._contents[kept], np.fromiter(new.values(), np.uint64, len(new))]),
        )

    def has(self, names: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which names are in the set."""
        return np.isin(names, self._names)

    def except_names(self, names: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the names in the set that are not among these."""
        return self._names[~np.isin(self._names, names)]

    def content_of(self, name: int) -> int | None:
        """Return the content hash of a name; None if the name is not in the set."""
        index = int(np.searchsorted(self._names, np.uint64(name)))
        if index == len(self._names) or int(self._names[index]) != name:
            return None
        return int(self._contents[index])

    def forget(self, names: NDArray[np.uint64]) -> None:
        """Remove these names."""
        kept = ~np.isin(self._names, names)
        self._set(self._names[kept], self._contents[kept])

    def to_bytes(self) -> bytes:
        """Return the set as bytes that `from_bytes` reads."""
        return self._names.astype(">u8").tobytes() + self._contents.astype(">u8").tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> SeenFiles:
        """Read what `to_bytes` returned."""
        both = np.frombuffer(content, ">u8").astype(np.uint64)
        seen = cls()
        seen._set(both[: len(both) // 2], both[len(both) // 2 :])
        return seen

    def _set(self, names: NDArray[np.uint64], contents: NDArray[np.uint64]) -> None:
        order = np.argsort(names)
        self._names, self._contents = names[order], contents[order]


def _move_to_new_name(fresh: Path, path: Path) -> None:
    """Rename a file; raise `FileExistsError` if the name exists, even by another process."""
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError:
        # SMB, exFAT and some FUSE file systems have no hard links. There, an empty file claims the
        # name first. A crash before the rename leaves it behind, and the next start reports it:
        # deleting it automatically could let two processes write the same segment.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            fresh.replace(path)
        except OSError:
            path.unlink()
            raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as exc:
        # Some network file systems cannot sync folders, but write names immediately.
        if exc.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
            raise
    finally:
        os.close(handle)


def _sum_fingerprints(entries: Iterable[FileEntry]) -> int:
    return sum(entry.fingerprint for entry in entries) % CHECKSUM_MODULUS
