"""Offsets of the `files` source: a place in the log of files, and in one of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.errors import SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.offset import Offset
    from icestream.sources.files.folder import FileEntry

CHANGED_FILE_REMEDY = (
    "Put it back as it was. Files must not change once they are in the folder: write them "
    "elsewhere,\nmove them in under a new name, and remove them only when their rows are in the "
    "table."
)
CHANGED_AFTER_REMEDY = (
    "If it is another file, rename it: it is read as a whole under a name that was not used "
    "before.\nIf rows were added to a file that was read, put it back as it was and deliver the "
    "new rows in a file of their own.\nA name may be used again only after a running pipeline has "
    "listed the folder without it."
)


@dataclass(frozen=True)
class FilesOffset:
    """An offset, taken apart.

    Attributes:
        log: id of the log of files.
        files: how many files of the log were read to their end.
        checksum: sum of their fingerprints. It proves which files they are if the log is lost.
        at: where to continue in the next file: a byte, or a row group of a Parquet file.
        line: how many lines of that file come before it.
        path: the file that was read last.
    """

    log: str
    files: int = 0
    checksum: int = 0
    at: int = 0
    line: int = 0
    path: str = ""

    @classmethod
    def from_json(cls, stored: Offset) -> FilesOffset:
        """Take an offset apart.

        Raises:
            SourceChangedError: an older version wrote it.
        """
        known: dict[str, Any] = {**stored, "checksum": int(stored.get("checksum", "0"), 16)}
        if "arrived_ns" in known or "log" not in known:
            raise SourceChangedError(
                "the offset was written by an older version, which told files apart by their "
                f"times: {stored}",
                todo="Start over with `icestream run --start-over`, with the files that were read "
                "already moved out of the folder.",
            )
        return cls(**known)

    def to_json(self) -> Offset:
        """Put the offset together again."""
        return {
            "log": self.log,
            "files": self.files,
            "checksum": f"{self.checksum:016x}",
            "at": self.at,
            "line": self.line,
            "path": self.path,
        }

    @property
    def files_started(self) -> int:
        """How many files of the log were read at least in part."""
        return self.files + (1 if self.at else 0)

    def files_read(self, listed: Sequence[FileEntry]) -> list[FileEntry] | None:
        """Find the files that were read, in part or as a whole, in a listing of the folder.

        For a log that is lost. They are known if they are the first ones by arrival, or by age
        where a change of mode or owner made some look newly arrived; the checksum proves it.
        None if they are not, e.g. since some were removed.
        """
        partial = [entry for entry in listed if self.at and entry.path == self.path]
        others = [entry for entry in listed if not self.at or entry.path != self.path]
        if len(others) < self.files or len(partial) != self.files_started - self.files:
            return None
        for order in (_by_arrival, _by_age):
            found = sorted(others, key=order)[: self.files]
            if sum(entry.fingerprint for entry in found) % (1 << 64) == self.checksum:
                return [*found, *partial]
        return None


def changed_file_error(
    name: str, fault: str, remedy: str = CHANGED_FILE_REMEDY
) -> SourceChangedError:
    """Return the error for one file that is not what it was."""
    return SourceChangedError(f"file {name!r} {fault}", todo=remedy)


def _by_arrival(entry: FileEntry) -> tuple[int, str]:
    return entry.arrival


def _by_age(entry: FileEntry) -> tuple[int, str]:
    return (entry.mtime_ns, entry.path)
