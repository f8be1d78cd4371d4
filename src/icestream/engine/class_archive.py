"""Classes of Spark and Iceberg as Java keeps them in memory, so that a start need not read them.

Most of a start of Spark is the reading of some twenty thousand classes. Java can write them into an
archive once (`icestream prepare`) and map that from then on. Java itself refuses an archive of
other jars or of another Java, and starts without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING

from icestream.contracts.jars import SQLITE
from icestream.engine.jars import cache_place, file_name, iceberg_runtime
from icestream.engine.java import java_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

HEAD_BYTES = 8


def archived_jars() -> tuple[str, ...]:
    """Return the coordinates of the jars whose classes are archived: those of the default lake."""
    return (iceberg_runtime(), SQLITE)


def with_archived(coordinates: Sequence[str]) -> tuple[str, ...]:
    """Return the jars of a plan, with those that an archive, if there is one, needs beside them."""
    folder = cache_place("jars")
    are_here = all((folder / file_name(each)).exists() for each in archived_jars())
    archived = archived_jars() if are_here and find_archive() else ()
    return tuple(dict.fromkeys((*coordinates, *archived)))


def class_path(jars: Iterable[Path]) -> list[Path]:
    """Return jars as the archive knows them: the archived ones first, then others if any."""
    names = [file_name(each) for each in archived_jars()]
    return sorted(jars, key=lambda jar: names.index(jar.name) if jar.name in names else len(names))


def find_archive() -> Path | None:
    """Return the archive for the Java and the Spark of this installation, if one was written."""
    try:
        for path in archives_place().glob(f"{_installation()}-*.jsa"):
            # One that was cut short would end Java at once; its name says how long it has to be.
            if path.stem.endswith(f"-{path.stat().st_size}"):
                return path
    except OSError:  # it can't be read, or was replaced at this moment: one start without it
        return None
    return None


def keep_archive(written: Path) -> Path | None:
    """Put an archive that Java wrote where the next start finds it; None if it is not whole."""
    if not written.exists() or not _is_whole(written):
        return None
    with written.open("rb") as file:
        os.fsync(file.fileno())
    this = _installation()
    kept = archives_place() / f"{this}-{written.stat().st_size}.jsa"
    older = [path for path in archives_place().glob(f"{this}-*.jsa") if path != kept]
    written.replace(kept)
    for path in older:
        path.unlink(missing_ok=True)
    return kept


def archives_place() -> Path:
    """Return where archives are, or would be."""
    return cache_place("classes")


def _installation() -> str:
    """Return a name for this Java and this Spark, by where they are: an upgrade there replaces."""
    spec = find_spec("pyspark")  # without importing it, which takes a second
    parts = (java_command().resolve(), spec and spec.origin)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _is_whole(archive: Path) -> bool:
    """Tell whether an archive ends where it should: one that was cut short crashes Java."""
    with archive.open("rb") as file:
        # Java writes the head last of all, and starts without an archive that has none.
        if not any(file.read(HEAD_BYTES)):
            return False
    options = (f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", "-Xlog:disable")
    started = subprocess.run(  # noqa: S603 - the Java that Spark itself will start
        [str(java_command()), *options, f"-XX:ErrorFile={os.devnull}", "-version"],
        cwd=archive.parent,
        capture_output=True,
        check=False,
    )
    return started.returncode == 0
