"""The folder as the driver sees it, listing after listing."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.errors import UnavailableError
from icestream.sources.files.listing import FileEntry, list_files
from icestream.sources.files.progress import Progress, are_all, changed_file

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

# A folder that takes this long to list is not listed anew at every question.
_SLOW_SECS = 0.05
_LONGEST_SHARE = 10


class Folder:
    """Lists a folder and remembers when each file was first seen.

    A file arrives when it is moved in or written, and the system's time of last change (ctime)
    tells when, whatever the file's own age. But it also moves when someone changes the file's
    owner or mode. So the first time seen is kept, for as long as the content stays the same. After
    a restart there is nothing to remember; then the position's checksum proves, while no file that
    was read has been removed, which files it speaks of. Failing that, a file that is no newer than
    those read counts as read, and the log says so.

    Args:
        path: the folder.
        glob: which of its files to list.
        settle_secs: how long a file must have been left alone to count as finished.
    """

    def __init__(self, path: str, glob: str, settle_secs: float) -> None:
        self._path = path
        self._glob = glob
        self._settle_ns = int(settle_secs * 1e9)
        self._seen: dict[str, FileEntry] = {}
        self._has_doubts = True
        self._listed_at = 0.0
        self._took = 0.0

    def look(self) -> list[FileEntry]:
        """List the folder."""
        found = list_files(local_path(self._path), self._glob)
        return [_first_seen(entry, self._seen.get(entry.path)) for entry in found]

    def last_look(self) -> list[FileEntry]:
        """Return what `unread` saw last."""
        return list(self._seen.values())

    def unread(self, progress: Progress) -> list[FileEntry]:
        """Return the finished files that have not been read, in the order of their arrival.

        Raises:
            SourceChangedError: a file changed after it was read.
        """
        if not self._is_recent():
            began = time.monotonic()
            entries = self.look()
            self._listed_at = time.monotonic()
            self._took = self._listed_at - began
            if self._has_doubts:
                entries = self._settle_doubts(progress, entries)
                self._has_doubts = False
            else:
                self._notice_changes(progress, entries)
            self._seen = {entry.path: entry for entry in entries}
        finished_by = time.time_ns() - self._settle_ns
        new = [
            entry
            for entry in self._seen.values()
            if entry.arrived_ns <= finished_by and not progress.has_read(entry)
        ]
        return sorted(new, key=lambda entry: entry.arrival)

    def _is_recent(self) -> bool:
        age = time.monotonic() - self._listed_at
        return self._took > _SLOW_SECS and age < self._took * _LONGEST_SHARE

    def _settle_doubts(self, progress: Progress, entries: list[FileEntry]) -> list[FileEntry]:
        """Tell files that are new from files that were read and look new since a restart."""
        if not progress.files:
            return entries
        read = [entry for entry in entries if progress.has_read(entry)]
        if are_all(read, Progress(), progress):
            return entries
        doubtful = {
            entry.path
            for entry in entries
            if not progress.has_read(entry) and entry.mtime_ns <= progress.mtime_ns
        }
        for path in sorted(doubtful):
            self._warn(path, "was read before, or is new but no newer than the files read")
        return [replace(e, arrived_ns=0) if e.path in doubtful else e for e in entries]

    def _notice_changes(self, progress: Progress, entries: Iterable[FileEntry]) -> None:
        for entry in entries:
            known = self._seen.get(entry.path)
            if known is None:
                if progress.has_read(entry):
                    self._warn(entry.path, "arrived at a time that has passed")
            elif progress.has_read(known) and not known.holds_the_same_as(entry):
                raise changed_file(str(Path(self._path, entry.path)), "changed after it was read")

    def _warn(self, path: str, why: str) -> None:
        name = str(Path(self._path, path))
        log.warning("file %r %s, and is not read; to have it read, touch it", name, why)


def local_path(path: str) -> str:
    """Return a path of this machine.

    Raises:
        UnavailableError: it is an object store's.
    """
    scheme, mark, rest = path.partition("://")
    if not mark:
        return path
    if scheme == "file":
        return rest
    raise UnavailableError(
        f"source 'files' cannot read {path!r} yet: object stores are not available in this version",
        todo="Give a folder of this machine, or one that is mounted.",
    )


def _first_seen(entry: FileEntry, known: FileEntry | None) -> FileEntry:
    return known if known is not None and known.holds_the_same_as(entry) else entry
