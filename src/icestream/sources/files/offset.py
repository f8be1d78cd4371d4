"""Offsets of the `files` source: positions in the file log and within a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.errors import SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.offset import Offset
    from icestream.sources.files.folder import FileEntry

CHANGED_FILE_REMEDY = (
    "Restore the original file. Files in the folder must not change: write them elsewhere,\nmove "
    "them in under a new name, and delete them only after their rows are in the table."
)
CHANGED_AFTER_REMEDY = (
    "If it is a new file, rename it: under an unused name, it is read as a whole.\nIf rows were "
    "added to a file that was read, restore the original and deliver the new rows in a new "
    "file.\nA name can be reused only after a running pipeline has listed the folder without it."
)


@dataclass(frozen=True)
class FilesOffset:
    """A parsed offset.

    Attributes:
        log: id of the file log.
        files: how many files of the log were read completely.
        checksum: sum of their fingerprints, which identifies them if the log is lost.
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
        """Parse a stored offset.

        Raises:
            SourceChangedError: an older version wrote it.
        """
        fields: dict[str, Any] = {**stored, "checksum": int(stored.get("checksum", "0"), 16)}
        if "arrived_ns" in fields or "log" not in fields:
            raise SourceChangedError(
                "the offset was written by an older version, which identified files by their "
                f"timestamps: {stored}",
                todo="Move the files that were read out of the folder, and start over with "
                "`icestream run --start-over`.",
            )
        return cls(**fields)

    def to_json(self) -> Offset:
        """Return the offset as it is stored."""
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
        """The number of files that were read at least in part."""
        return self.files + (1 if self.at else 0)

    def files_read(self, listed: Sequence[FileEntry]) -> list[FileEntry] | None:
        """Find the files that were read, in part or as a whole, in a listing of the folder.

        Used if the log is lost. The files are the first ones by arrival, or by modification time if
        a change of mode or owner made some look new; the checksum confirms it. None if neither
        matches, e.g. because files were removed.
        """
        partial = [entry for entry in listed if self.at and entry.path == self.path]
        others = [entry for entry in listed if not self.at or entry.path != self.path]
        if len(others) < self.files or len(partial) != self.files_started - self.files:
            return None
        for order in (_by_arrival, _by_age):
            files = sorted(others, key=order)[: self.files]
            if sum(entry.fingerprint for entry in files) % (1 << 64) == self.checksum:
                return [*files, *partial]
        return None


def changed_file_error(
    name: str, fault: str, remedy: str = CHANGED_FILE_REMEDY
) -> SourceChangedError:
    """Return the error for a file that has changed."""
    return SourceChangedError(f"file {name!r} {fault}", todo=remedy)


def _by_arrival(entry: FileEntry) -> tuple[int, str]:
    return entry.arrival


def _by_age(entry: FileEntry) -> tuple[int, str]:
    return (entry.mtime_ns, entry.path)
