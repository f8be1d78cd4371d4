"""Which files have been read, said in a position that stays small however many there are.

Files are ordered by when they arrived, and a position names the last one read. The number of files
read and a checksum over them are carried along, so that a batch that is read again after a crash
is known to be the same files, though they are found by listing the folder anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from icestream.errors import SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.position import Position
    from icestream.sources.files.listing import FileEntry

_WRAP = 1 << 64

_REMEDY = (
    "Put it back as it was. Files must not change once they are in the folder: write them "
    "elsewhere,\nmove them in under a new name, and remove them only when their rows are in the "
    "table."
)


@dataclass(frozen=True)
class Progress:
    """A position, taken apart.

    Attributes:
        arrival: when the last file read arrived, and its path.
        mtime_ns: the newest modification time of any file read.
        files: how many files were read in all.
        checksum: sum of their fingerprints.
    """

    arrival: tuple[int, str] = (0, "")
    mtime_ns: int = 0
    files: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, position: Position) -> Progress:
        """Take a position apart."""
        return cls(
            arrival=(position["arrived_ns"], position["path"]),
            mtime_ns=position["mtime_ns"],
            files=position["files"],
            checksum=int(position["checksum"], 16),
        )

    def position(self) -> Position:
        """Put the position together again."""
        return {
            "arrived_ns": self.arrival[0],
            "path": self.arrival[1],
            "mtime_ns": self.mtime_ns,
            "files": self.files,
            "checksum": f"{self.checksum:016x}",
        }

    def has_read(self, entry: FileEntry) -> bool:
        """Tell whether a file was read, going by when it arrived."""
        return entry.arrival <= self.arrival

    def after(self, entries: Sequence[FileEntry]) -> Progress:
        """Return the progress once `entries`, one or more of them, are read as well."""
        return Progress(
            arrival=max(entry.arrival for entry in entries),
            mtime_ns=max(self.mtime_ns, *(entry.mtime_ns for entry in entries)),
            files=self.files + len(entries),
            checksum=(self.checksum + _sum(entries)) % _WRAP,
        )


def are_all(entries: Sequence[FileEntry], start: Progress, end: Progress) -> bool:
    """Tell whether `entries` are exactly the files read between two positions."""
    expected = (end.files - start.files, (end.checksum - start.checksum) % _WRAP)
    return (len(entries), _sum(entries)) == expected


def files_between(start: Progress, end: Progress, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Return the files between two positions, out of a listing that may be newer than both.

    Raises:
        SourceChangedError: they are no longer there as they were.
    """
    found = [entry for entry in entries if end.has_read(entry) and not start.has_read(entry)]
    if not are_all(found, start, end):
        found = _run_with_the_checksum(start, end, entries)
    return sorted(found, key=lambda entry: entry.arrival)


def changed_file(name: str, fault: str) -> SourceChangedError:
    """Return the error for one file that is not what it was."""
    return SourceChangedError(f"file {name!r} {fault}", todo=_REMEDY)


def _run_with_the_checksum(
    start: Progress, end: Progress, entries: Sequence[FileEntry]
) -> list[FileEntry]:
    # A change of owner or mode makes files look as if they had arrived just now. Their content and
    # its time stay, so the batch is mostly a run of files in that order, known by its checksum.
    ordered = sorted(entries, key=lambda entry: (entry.mtime_ns, entry.path))
    sums = [0, *accumulate(entry.fingerprint for entry in ordered)]
    count = end.files - start.files
    wanted = (end.checksum - start.checksum) % _WRAP
    for low in range(len(ordered) - count + 1):
        if (sums[low + count] - sums[low]) % _WRAP == wanted:
            return ordered[low : low + count]
    raise _missing(start, end, entries)


def _missing(start: Progress, end: Progress, entries: Sequence[FileEntry]) -> SourceChangedError:
    here = sum(1 for entry in entries if end.has_read(entry) and not start.has_read(entry))
    last = end.arrival[1]
    if all(entry.path != last for entry in entries):
        return changed_file(last, "is gone before its rows were written")
    return SourceChangedError(
        f"of {end.files - start.files} files to read, up to {last!r}, some are gone or changed; "
        f"{here} are there",
        todo=_REMEDY,
    )


def _sum(entries: Sequence[FileEntry]) -> int:
    return sum(entry.fingerprint for entry in entries) % _WRAP
