"""Opens a file of a batch, and makes sure that it is still the file that was planned."""

from __future__ import annotations

import gzip
import os
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from icestream.errors import BadRecordError, RefusedError
from icestream.sources.files.offset import changed_file

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class FilePart:
    """A file to read, or a part of it.

    Attributes:
        path: its path below the folder.
        mtime_ns: its modification time when the batch was planned.
        size: its length then.
        start: where the part begins: a byte, or a row group of a Parquet file.
        end: where it ends; None for the end of the file.
        line: how many lines of the file come before it.
    """

    path: str
    mtime_ns: int
    size: int
    start: int = 0
    end: int | None = None
    line: int = 0


@contextmanager
def opened(folder: str, part: FilePart) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if its name ends in `.gz`.

    Raises:
        SourceChangedError: it is not the file that was planned, or changes while it is read.
        RefusedError: it may not be read.
        BadRecordError: it is not a gzip file, or a broken one.
    """
    name = str(Path(folder, part.path))
    try:
        raw = open(name, "rb")  # noqa: PTH123, SIM115 - closed below, after the last check
    except FileNotFoundError as exc:
        raise changed_file(name, "is gone before its rows were written") from exc
    except PermissionError as exc:
        raise RefusedError(
            f"file {name!r} may not be read",
            todo="Give the account that runs the pipeline the right to read it.",
        ) from exc
    with raw:
        _check(raw, part, name)
        try:
            if part.path.endswith(".gz"):
                with gzip.open(raw) as unpacked:
                    yield cast("IO[bytes]", unpacked)
            else:
                yield raw
        except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
            raise unreadable(name, "gzip", exc) from exc
        _check(raw, part, name)


def unreadable(name: str, kind: str, cause: Exception) -> BadRecordError:
    """Return the error for a file whose content is broken as a whole."""
    reason = " ".join(str(cause).split())
    return BadRecordError(
        f"file {name!r} cannot be read as {kind}: {reason}",
        todo="Mend the file, or move it out of the folder and start over from the mark.",
    )


def _check(raw: IO[bytes], part: FilePart, name: str) -> None:
    found = os.fstat(raw.fileno())
    if (found.st_mtime_ns, found.st_size) != (part.mtime_ns, part.size):
        raise changed_file(name, "changed before its rows were written")
