"""Finds the new files of a folder, listing after listing."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icestream.errors import UnavailableError
from icestream.sources.files.listing import FileEntry, list_paths, look_at, name_hashes
from icestream.sources.files.offset import CHANGED_AFTER_REMEDY, changed_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from icestream.sources.files.log import FileLog

logger = logging.getLogger(__name__)

# A folder that takes this long to list is not listed again at every call.
SLOW_LISTING_SECS = 0.05
# Looking at every file that was read, for a change, takes longer than listing their names.
CHECK_SECS = 60.0
# A listing may miss files, so a file counts as removed for good only if none showed it this long.
ABSENT_SECS = 3600.0


class Folder:
    """Lists a folder and appends its new files to the log, once they are finished.

    A file is new if its name is not in the log. It is finished when two looks, `settle_secs` apart
    by the monotonic clock, show the same size and modification time. So neither the clock of this
    machine nor that of a file server decides whether a file is read, and a file that one listing
    misses is found by the next.

    Args:
        path: the folder.
        glob: which of its files to list.
        settle_secs: how long a file must stay unchanged to count as finished.
        listing_pause: how much longer than a slow listing the pause after it is.
        count_rows: returns how many rows a file holds, None if it is gone.
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
        self._gone = np.empty(0, np.uint64)
        self._absent = np.empty(0, np.uint64)
        self._absent_since = -math.inf
        self._listed_at = 0.0
        self._took = 0.0
        self._checked_at: float | None = None

    def entries(self) -> list[FileEntry]:
        """Return the files that are in the folder now, finished or not."""
        folder = local_path(self._path)
        found = (look_at(folder, path) for path in list_paths(folder, self._glob))
        return [entry for entry in found if entry is not None]

    def discover(self, log: FileLog) -> None:
        """Append the files that are finished and not in the log, in the order of their arrival.

        The first call waits for files that are in the folder already, so that `run --once` does
        not leave them out.

        Raises:
            SourceChangedError: a file changed after it was read.
        """
        is_first = self._checked_at is None
        if self._is_recent():
            return
        self._list(log)
        if is_first and self._waiting:
            time.sleep(self._settle_secs)
            self._list(log)

    def _is_recent(self) -> bool:
        age = time.monotonic() - self._listed_at
        return self._took > SLOW_LISTING_SECS and age < self._took * self._listing_pause

    def _list(self, log: FileLog) -> None:
        began = time.monotonic()
        folder = local_path(self._path)
        paths = list_paths(folder, self._glob)
        names = np.array(name_hashes(paths), np.uint64)
        is_known = log.seen.has(names)
        returned = np.isin(names, self._gone)
        checks = self._checked_at is None or began - self._checked_at >= CHECK_SECS
        for index in np.flatnonzero(is_known if checks else is_known & returned):
            if self._is_replaced(log, folder, paths[index], int(names[index]), returned[index]):
                is_known[index] = False
        self._checked_at = began if checks else self._checked_at
        taken = self._take(
            [paths[index] for index in np.flatnonzero(~is_known)], folder, log, began
        )
        # A new file under an old name is replaced only once it is appended; until then, e.g. while
        # it settles, the next listing has to know that the old file was gone.
        replaced = np.setdiff1d(names[returned & ~is_known], taken)
        self._gone = np.append(log.seen.others(names), replaced)
        self._forget(log, names, names[returned], began)
        self._listed_at = time.monotonic()
        self._took = self._listed_at - began

    def _forget(
        self,
        log: FileLog,
        names: NDArray[np.uint64],
        returned: NDArray[np.uint64],
        began: float,
    ) -> None:
        """Let the log forget the files that no listing has shown for an hour.

        A folder that looks empty is more likely not mounted: then the hour begins again.
        """
        if len(returned):
            self._absent = np.setdiff1d(self._absent, returned)
        if len(names) and began - self._absent_since < ABSENT_SECS:
            return
        if len(names):
            log.forget(self._absent)
        self._absent = log.seen.others(names)
        self._absent_since = began

    def _is_replaced(
        self, log: FileLog, folder: str, path: str, name: int, has_returned: bool
    ) -> bool:
        """Tell whether a name that was read is another file now.

        It is if the old one was seen to be gone. Otherwise rows may have been added to a file that
        was read: reading it again would double the others, leaving it out would lose them.
        """
        entry = look_at(folder, path)
        if entry is not None and log.seen.content_of(name) == entry.content_hash:
            return False
        if has_returned or entry is None:
            return has_returned
        raise changed_file(
            str(Path(self._path, path)), "changed after it was read", CHANGED_AFTER_REMEDY
        )

    def _take(
        self, paths: list[str], folder: str, log: FileLog, began: float
    ) -> NDArray[np.uint64]:
        """Append those of the new files that are finished; look again later at the others.

        Returns:
            The hashes of the names that were appended.
        """
        waiting: dict[str, tuple[FileEntry, float]] = {}
        finished = []
        for path in paths:
            entry = look_at(folder, path)
            if entry is None:
                continue
            before, since = self._waiting.get(path, (None, 0.0))
            if before is None or (before.mtime_ns, before.size) != (entry.mtime_ns, entry.size):
                since = time.monotonic()
            if self._settle_secs <= 0 or began - since >= self._settle_secs:
                finished.append(entry)
            else:
                waiting[path] = (entry, since)
        self._waiting = waiting
        counted = []
        for entry in sorted(finished, key=lambda entry: entry.arrival):
            rows = self._count_rows(entry)
            if rows is not None:
                counted.append(entry._replace(rows=rows))
        log.append(counted)
        return np.array([entry.name_hash for entry in counted], np.uint64)


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
