"""What lies in a folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from icestream.errors import ConnectorError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNFINISHED_SUFFIXES = (".tmp", "._COPYING_")


@dataclass(frozen=True)
class FileEntry:
    """A file as a listing shows it.

    Attributes:
        path: its path below the folder, with `/`.
        mtime_ns: when its content was last written.
        size: its length in bytes.
        arrived_ns: when it came into the folder. The system tells when anything about a file
            changed last (ctime), which moving it in is; see `Folder` for later changes.
    """

    path: str
    mtime_ns: int
    size: int
    arrived_ns: int

    @property
    def arrival(self) -> tuple[int, str]:
        """Return what files are ordered by."""
        return (self.arrived_ns, self.path)

    def holds_the_same_as(self, other: FileEntry) -> bool:
        """Tell whether the content of two entries of one path is the same."""
        return (self.mtime_ns, self.size) == (other.mtime_ns, other.size)

    @cached_property
    def fingerprint(self) -> int:
        """Return a 64-bit number that stands for this path with this content."""
        text = f"{self.path}\0{self.mtime_ns}\0{self.size}"
        # Names are bytes to the system: one that is not UTF-8 is kept as it is.
        digest = blake2b(text.encode(errors="surrogateescape"), digest_size=8)
        return int.from_bytes(digest.digest(), "big")


def list_files(folder: str, glob: str) -> list[FileEntry]:
    """Return the finished files of a folder that match, in no order.

    Raises:
        ConnectorError: there is no such folder.
        RefusedError: it may not be read.
    """
    matches = _pattern(glob)
    depth = None if "**" in glob else glob.count("/")
    try:
        return [entry for entry in _walk(folder, "", depth) if matches.fullmatch(entry.path)]
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


def _walk(folder: str, below: str, depth: int | None) -> Iterator[FileEntry]:
    with os.scandir(folder) as items:
        for item in items:
            if item.name.startswith((".", "_")) or item.name.endswith(UNFINISHED_SUFFIXES):
                continue
            if item.is_dir(follow_symlinks=False):
                if depth != 0:
                    deeper = None if depth is None else depth - 1
                    yield from _walk(item.path, f"{below}{item.name}/", deeper)
                continue
            try:
                found = item.stat()
            except FileNotFoundError:
                # Gone since the folder was listed, or a link to nothing: there is no file.
                continue
            if item.is_file():
                path = f"{below}{item.name}"
                yield FileEntry(path, found.st_mtime_ns, found.st_size, found.st_ctime_ns)


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
