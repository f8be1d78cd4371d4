"""Finds the new files of a folder, listing after listing."""

from __future__ import annotations

import logging
import math
import os
import re
import stat
import time
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icestream.errors import ConnectorError, RefusedError, UnavailableError
from icestream.sources.files.offset import CHANGED_AFTER_REMEDY, changed_file_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from icestream.sources.files.log import FileLog


UNFINISHED_SUFFIXES = (".tmp", "._COPYING_")


class FileEntry(NamedTuple):
    """A file in a listing.

    Attributes:
        path: its path below the folder, with `/`.
        mtime_ns: its modification time.
        size: its size in bytes.
        rows: its number of rows, possibly estimated; 0 if not counted yet.
        ctime_ns: when it was last moved, written, or had its owner or mode changed. It only
            determines the order in which the new files of one listing are read.
    """

    path: str
    mtime_ns: int
    size: int
    rows: int = 0
    ctime_ns: int = 0

    @property
    def arrival(self) -> tuple[int, str]:
        """Return the sort key for the files of one listing."""
        return (self.ctime_ns, self.path)

    @property
    def name_hash(self) -> int:
        """Return a 64-bit hash of the path."""
        return _hash(self.path)

    @property
    def content_hash(self) -> int:
        """Return a 64-bit hash of the modification time and the size."""
        return _hash(f"{self.mtime_ns} {self.size}")

    @property
    def fingerprint(self) -> int:
        """Return a 64-bit hash of the path with this content."""
        return _hash(f"{self.path}\0{self.mtime_ns}\0{self.size}")


def list_paths(folder: str, glob: str) -> list[str]:
    """Return the matching paths in a folder, unordered; some may not be files.

    Files that are created, renamed or removed during the listing may be missing from it.

    Raises:
        ConnectorError: the folder does not exist.
        RefusedError: there is no read permission.
    """
    matches = _glob_regex(glob)
    depth = None if "**" in glob else glob.count("/")
    try:
        return [path for path in _walk(folder, "", depth) if matches.fullmatch(path)]
    except FileNotFoundError as exc:
        raise ConnectorError(
            f"folder {exc.filename!r} does not exist",
            todo="Create it, or set `path` to the folder that files arrive in.",
        ) from exc
    except NotADirectoryError as exc:
        raise ConnectorError(
            f"{exc.filename!r} is not a folder",
            todo="Set `path` to the folder that files arrive in, and `glob` to the files' names.",
        ) from exc
    except PermissionError as exc:
        raise RefusedError(
            f"permission denied for folder {exc.filename!r}",
            todo="Give the user that runs the pipeline read permission.",
        ) from exc


def stat_file(folder: str, path: str) -> FileEntry | None:
    """Return a file of the folder; None if it does not exist or is not a file."""
    try:
        status = os.stat(f"{folder}/{path}")  # noqa: PTH116 - once for each file of a folder
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileEntry(path, status.st_mtime_ns, status.st_size, 0, status.st_ctime_ns)


def name_hashes(paths: list[str]) -> list[int]:
    """Return the hash of each path, see `FileEntry.name_hash`."""
    return [_hash(path) for path in paths]


def _hash(text: str) -> int:
    # File names are bytes; one that is not UTF-8 is hashed as it is.
    digest = blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _walk(folder: str, below: str, depth: int | None) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            if item.name.startswith((".", "_")) or item.name.endswith(UNFINISHED_SUFFIXES):
                continue
            if not item.is_dir(follow_symlinks=False):
                yield f"{below}{item.name}"
            elif depth != 0:
                deeper = None if depth is None else depth - 1
                try:
                    yield from _walk(item.path, f"{below}{item.name}/", deeper)
                except FileNotFoundError:
                    continue  # removed since its parent was listed


@lru_cache
def _glob_regex(glob: str) -> re.Pattern[str]:
    """Translate a glob: `*` and `?` stay within a name, `**/` matches any folders."""
    parts = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", glob)
    return re.compile("".join(parts.get(piece) or _glob_literal(piece) for piece in pieces))


def _glob_literal(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]"):
        body = piece[1:-1].replace("\\", r"\\")
        return f"[^{body[1:]}]" if body.startswith("!") else f"[{body}]"
    return re.escape(piece)


logger = logging.getLogger(__name__)

# A folder that takes longer to list is not listed at every call.
SLOW_LISTING_SECS = 0.05
# How often the files that were read are checked for changes, which is slower than listing names.
CHECK_SECS = 60.0
# A listing may miss files, so a file counts as removed only if it was missing for this long.
ABSENT_SECS = 3600.0


class Folder:
    """Lists a folder and appends new files to the log once they are complete.

    A file is new if its name is not in the log. It is complete if its size and modification time
    did not change for `settle_secs` of the monotonic clock. So neither this machine's clock nor a
    file server's decides whether a file is read, and the next listing finds a file that one missed.

    Args:
        path: the folder.
        glob: the files to list.
        settle_secs: how long a file must stay unchanged to count as complete.
        listing_pause: the pause after a slow listing, as a multiple of the listing's time.
        count_rows: returns the number of rows of a file; None if it is gone.
    """

    def __init__(
        self,
        path: str,
        glob: str,
        settle_secs: float,
        listing_pause: float,
        count_rows: Callable[[FileEntry], int | None],
    ) -> None:
        self._path = path
        self._glob = glob
        self._settle_secs = settle_secs
        self._listing_pause = listing_pause
        self._count_rows = count_rows
        self._waiting: dict[str, tuple[FileEntry, float]] = {}
        self._missing = np.empty(0, np.uint64)
        self._absent = np.empty(0, np.uint64)
        self._absent_since = -math.inf
        self._listed_at = 0.0
        self._listing_secs = 0.0
        self._checked_at: float | None = None

    def entries(self) -> list[FileEntry]:
        """Return all files that are in the folder now, complete or not."""
        folder = local_path(self._path)
        files = (stat_file(folder, path) for path in list_paths(folder, self._glob))
        return [entry for entry in files if entry is not None]

    def discover(self, log: FileLog) -> None:
        """Append complete files that are not in the log, in order of arrival.

        The first call waits for existing files to settle, so that `run --once` does not miss them.

        Raises:
            SourceChangedError: a file changed after it was read.
        """
        is_first = self._checked_at is None
        if self._is_recent():
            return
        self._list_folder(log)
        if is_first and self._waiting:
            time.sleep(self._settle_secs)
            self._list_folder(log)

    def _is_recent(self) -> bool:
        age = time.monotonic() - self._listed_at
        return (
            self._listing_secs > SLOW_LISTING_SECS
            and age < self._listing_secs * self._listing_pause
        )

    def _list_folder(self, log: FileLog) -> None:
        began = time.monotonic()
        folder = local_path(self._path)
        paths = list_paths(folder, self._glob)
        names = np.array(name_hashes(paths), np.uint64)
        is_logged = log.seen.has(names)
        returned = np.isin(names, self._missing)
        checks = self._checked_at is None or began - self._checked_at >= CHECK_SECS
        for index in np.flatnonzero(is_logged if checks else is_logged & returned):
            if self._is_replaced(log, folder, paths[index], int(names[index]), returned[index]):
                is_logged[index] = False
        self._checked_at = began if checks else self._checked_at
        appended = self._append_complete(
            [paths[index] for index in np.flatnonzero(~is_logged)], folder, log, began
        )
        # A new file under an old name replaces the old one only when it is appended. Until then,
        # e.g. while it settles, the next listing must know that the old file was removed.
        replaced = np.setdiff1d(names[returned & ~is_logged], appended)
        self._missing = np.append(log.seen.except_names(names), replaced)
        self._forget(log, names, names[returned], began)
        self._listed_at = time.monotonic()
        self._listing_secs = self._listed_at - began

    def _forget(
        self,
        log: FileLog,
        names: NDArray[np.uint64],
        returned: NDArray[np.uint64],
        began: float,
    ) -> None:
        """Make the log forget files that were missing from all listings for an hour.

        A folder that looks empty is probably not mounted, so the hour starts again.
        """
        if len(returned):
            self._absent = np.setdiff1d(self._absent, returned)
        if len(names) and began - self._absent_since < ABSENT_SECS:
            return
        if len(names):
            log.forget(self._absent)
        self._absent = log.seen.except_names(names)
        self._absent_since = began

    def _is_replaced(
        self, log: FileLog, folder: str, path: str, name: int, has_returned: bool
    ) -> bool:
        """Tell whether a new file has replaced one that was read.

        It has if a listing showed that the old one was gone. Otherwise, rows may have been appended
        to the old file: reading it again would duplicate rows, and skipping it would lose some.
        """
        entry = stat_file(folder, path)
        if entry is not None and log.seen.content_of(name) == entry.content_hash:
            return False
        if has_returned or entry is None:
            return has_returned
        raise changed_file_error(
            str(Path(self._path, path)), "changed after it was read", CHANGED_AFTER_REMEDY
        )

    def _append_complete(
        self, paths: list[str], folder: str, log: FileLog, began: float
    ) -> NDArray[np.uint64]:
        """Append the new files that are complete; the others are checked again later.

        Returns:
            The hashes of the names that were appended.
        """
        waiting: dict[str, tuple[FileEntry, float]] = {}
        complete = []
        for path in paths:
            entry = stat_file(folder, path)
            if entry is None:
                continue
            before, since = self._waiting.get(path, (None, 0.0))
            if before is None or (before.mtime_ns, before.size) != (entry.mtime_ns, entry.size):
                since = time.monotonic()
            if self._settle_secs <= 0 or began - since >= self._settle_secs:
                complete.append(entry)
            else:
                waiting[path] = (entry, since)
        self._waiting = waiting
        counted = []
        for entry in sorted(complete, key=lambda entry: entry.arrival):
            rows = self._count_rows(entry)
            if rows is not None:
                counted.append(entry._replace(rows=rows))
        log.append(counted)
        return np.array([entry.name_hash for entry in counted], np.uint64)


def local_path(path: str) -> str:
    """Return a local path.

    Raises:
        UnavailableError: it is in an object store.
    """
    scheme, mark, rest = path.partition("://")
    if not mark:
        return path
    if scheme == "file":
        return rest
    raise UnavailableError(
        f"source 'files' cannot read {path!r} yet: object stores are not available in this version",
        todo="Use a local or mounted folder.",
    )
