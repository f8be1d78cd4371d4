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
from icestream.engine.jars import cache_folder, file_name, iceberg_runtime
from icestream.engine.java import java_command

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

HEAD_BYTES = 8
CONFIGURATION = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


def archived_jars() -> tuple[str, ...]:
    """Return the coordinates of the jars whose classes are archived: those of the default lake."""
    return (iceberg_runtime(), SQLITE)


def class_path(jars: Iterable[Path]) -> list[Path]:
    """Return jars as the archive knows them: the archived ones first, then others if any."""
    names = [file_name(coordinates) for coordinates in archived_jars()]
    return sorted(jars, key=lambda jar: names.index(jar.name) if jar.name in names else len(names))


def find_archive() -> Path | None:
    """Return the archive for the Java and the Spark of this installation, if one was written."""
    for path in archives_folder().glob(f"{_place()}-*.jsa"):
        # One that was cut short would end Java at once; its name says how long it has to be.
        if path.stem.endswith(f"-{path.stat().st_size}"):
            return path
    return None


def keep_archive(written: Path) -> Path | None:
    """Put an archive that Java wrote where the next start finds it; None if it is not whole."""
    if not written.exists() or not _is_whole(written):
        return None
    with written.open("rb") as file:
        os.fsync(file.fileno())
    place = _place()
    kept = archives_folder() / f"{place}-{written.stat().st_size}.jsa"
    older = [path for path in archives_folder().glob(f"{place}-*.jsa") if path != kept]
    written.replace(kept)
    for path in older:
        path.unlink(missing_ok=True)
    return kept


def is_archivable() -> bool:
    """Tell whether Java can archive: not where folders of settings are on its class path."""
    return not any(os.environ.get(name) for name in (*CONFIGURATION, "SPARK_HOME"))


def archives_folder() -> Path:
    """Return the folder of archives."""
    return cache_folder("classes")


def _place() -> str:
    """Return a name for this Java and this Spark, by where they are: an upgrade replaces."""
    spec = find_spec("pyspark")  # without importing it, which takes a second
    parts = (java_command().resolve(), spec and spec.origin)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _is_whole(archive: Path) -> bool:
    """Let Java read all of it: an archive that was cut short, by a full disk say, crashes it."""
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
