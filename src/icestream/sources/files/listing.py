"""Lists a folder."""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from icestream.errors import ConnectorError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNFINISHED_SUFFIXES = (".tmp", "._COPYING_")


class FileEntry(NamedTuple):
    """A file as a listing shows it.

    Attributes:
        path: its path below the folder, with `/`.
        mtime_ns: when its content was last written.
        size: its length in bytes.
        rows: how many rows it holds, or an estimate; 0 while nobody has looked.
        ctime_ns: when it was moved in, written, or its owner or mode was changed, whichever came
            last. Files that one listing finds are read in this order; nothing else depends on it.
    """

    path: str
    mtime_ns: int
    size: int
    rows: int = 0
    ctime_ns: int = 0

    @property
    def arrival(self) -> tuple[int, str]:
        """Return what the files of one listing are ordered by."""
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
    """Return the paths of a folder's files that match, in no order; some may be no files.

    Files that are created, renamed or removed meanwhile may be among them or not.

    Raises:
        ConnectorError: there is no such folder.
        RefusedError: it may not be read.
    """
    matches = _pattern(glob)
    depth = None if "**" in glob else glob.count("/")
    try:
        return [path for path in _walk(folder, "", depth) if matches.fullmatch(path)]
    except FileNotFoundError as exc:
        raise ConnectorError(
            f"no folder is called {exc.filename!r}",
            todo="Create it, or set `path` to the folder that files arrive in.",
        ) from exc
    except NotADirectoryError as exc:
        raise ConnectorError(
            f"{exc.filename!r} is not a folder",
            todo="Set `path` to the folder that files arrive in, and `glob` to the files' names.",
        ) from exc
    except PermissionError as exc:
        raise RefusedError(
            f"folder {exc.filename!r} may not be read",
            todo="Give the account that runs the pipeline the right to read it.",
        ) from exc


def look_at(folder: str, path: str) -> FileEntry | None:
    """Return a file of the folder; None if it is gone, or is not a file."""
    try:
        found = os.stat(f"{folder}/{path}")  # noqa: PTH116 - once for each file of a folder
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return FileEntry(path, found.st_mtime_ns, found.st_size, 0, found.st_ctime_ns)


def name_hashes(paths: list[str]) -> list[int]:
    """Return the hash of each path, see `FileEntry.name_hash`."""
    return [_hash(path) for path in paths]


def _hash(text: str) -> int:
    # Names are bytes to the system: one that is not UTF-8 is kept as it is.
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
def _pattern(glob: str) -> re.Pattern[str]:
    """Translate a glob: `*` and `?` stay within a name, `**/` stands for any folders."""
    parts = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", glob)
    return re.compile("".join(parts.get(piece) or _literal(piece) for piece in pieces))


def _literal(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]"):
        body = piece[1:-1].replace("\\", r"\\")
        return f"[^{body[1:]}]" if body.startswith("!") else f"[{body}]"
    return re.escape(piece)
