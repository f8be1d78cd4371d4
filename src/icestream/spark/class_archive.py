"""A CDS archive of the classes of Spark and Iceberg, for a faster start-up.

Spark spends most of its start-up loading some twenty thousand classes. Java can write them to an
archive once (`icestream prepare`) and memory-map it from then on. Java ignores an archive that was
written for other jars or another Java version.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.contracts.jars import SQLITE
from icestream.errors import DependencyError, IcestreamError
from icestream.spark.jars import cache_path, iceberg_runtime, jar_name
from icestream.spark.java import java_command, require_java

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


HEADER_BYTES = 8


def archived_jars() -> tuple[str, ...]:
    """Return the coordinates of the jars whose classes are archived: those of the default sink."""
    return (iceberg_runtime(), SQLITE)


def add_archived_jars(coordinates: Sequence[str]) -> tuple[str, ...]:
    """Return the jars of a plan, and those that the archive needs if there is one."""
    folder = cache_path("jars")
    has_jars = all((folder / jar_name(coordinate)).exists() for coordinate in archived_jars())
    archived = archived_jars() if has_jars and find_archive() else ()
    return tuple(dict.fromkeys((*coordinates, *archived)))


def class_path(jars: Iterable[Path]) -> list[Path]:
    """Return jars in the order that the archive requires: the archived ones first."""
    names = [jar_name(coordinate) for coordinate in archived_jars()]
    return sorted(jars, key=lambda jar: names.index(jar.name) if jar.name in names else len(names))


def find_archive() -> Path | None:
    """Return the archive for the Java and the Spark of this installation, if one was written."""
    try:
        for path in archive_folder().glob(f"{_installation_id()}-*.jsa"):
            # A truncated archive crashes Java; the file name holds the expected size.
            if path.stem.endswith(f"-{path.stat().st_size}"):
                return path
    except OSError:  # unreadable, or just being replaced: this start goes without it
        return None
    return None


def store_archive(written: Path) -> Path | None:
    """Move an archive that Java wrote to where the next start finds it; None if incomplete."""
    if not written.exists() or not _is_complete(written):
        return None
    with written.open("rb") as file:
        os.fsync(file.fileno())
    installation = _installation_id()
    target = archive_folder() / f"{installation}-{written.stat().st_size}.jsa"
    older = [path for path in archive_folder().glob(f"{installation}-*.jsa") if path != target]
    written.replace(target)
    for path in older:
        path.unlink(missing_ok=True)
    return target


def archive_folder() -> Path:
    """Return the folder of archives; it may not exist yet."""
    return cache_path("classes")


def _installation_id() -> str:
    """Return an id of this Java and Spark, from their paths: an upgrade in place keeps it."""
    spec = find_spec("pyspark")  # without importing it, which takes a second
    parts = (java_command().resolve(), spec and spec.origin)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _is_complete(archive: Path) -> bool:
    """Tell whether an archive is complete: a truncated one crashes Java."""
    with archive.open("rb") as file:
        # Java writes the header last, and ignores an archive without one.
        if not any(file.read(HEADER_BYTES)):
            return False
    options = (f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", "-Xlog:disable")
    started = subprocess.run(  # noqa: S603 - the Java that Spark itself will start
        [str(java_command()), *options, f"-XX:ErrorFile={os.devnull}", "-version"],
        cwd=archive.parent,
        capture_output=True,
        check=False,
    )
    return started.returncode == 0


RUN_COMMAND = (sys.executable, "-c", "from icestream.cli.main import main; main(['run', '--once'])")
RUN_TIMEOUT_SECS = 300
MAX_LOG_CHARACTERS = 2000
# Each puts folders on the class path, and Java archives no classes then.
CONFLICTING_VARIABLES = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
)
# Uses rows with and without Spark's transforms, appends and upserts, so that all classes load.
TRAINING_CONFIG = """\
sources:
  events: {connector: datagen, config: {rows: 2000}}
  orders: {connector: datagen, config: {rows: 2000}}
sinks:
  events:
    connector: iceberg
    config: {namespace: shop, table: events, batch_size: 500, max_batch_rows: 1000}
  orders:
    connector: iceberg
    config:
      {namespace: shop, table: orders, commit_mode: upsert, key_fields: [event_id],
       batch_size: 500, max_batch_rows: 1000}
pipelines:
  events: {source: events, sink: events, transforms: [{filter: "quantity > 0"}]}
  orders: {source: orders, sink: orders}
metrics: {port: 0}
"""


def write_archive() -> Path:
    """Write the archive for this installation, replacing an older one, and return its path.

    Raises:
        DependencyError: Java is missing, or an environment variable prevents an archive.
        IcestreamError: it could not be written.
    """
    require_java()
    _refuse_conflicting_variables()
    folder = archive_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_leftovers(folder)
    # After a timeout, Java may still be writing there.
    with tempfile.TemporaryDirectory(
        prefix="new-", dir=folder, ignore_cleanup_errors=True
    ) as scratch:
        written = Path(scratch, "archive")
        _run_training(Path(scratch), written)
        stored = store_archive(written)
        if stored is None:
            raise _archive_error("Java wrote no complete archive", _read_log(Path(scratch)))
    return stored


def _refuse_conflicting_variables() -> None:
    for name in CONFLICTING_VARIABLES:
        if os.environ.get(name):
            raise DependencyError(
                f"Java writes no archive while {name} is set, here to {os.environ[name]!r}",
                where="class archive",
                todo="Pipelines run without the archive, but start some seconds slower. To use "
                "one, unset the variable here and where pipelines run.",
            )


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders of killed processes."""
    for leftover in folder.glob("new-*"):
        if time.time() - leftover.stat().st_mtime > RUN_TIMEOUT_SECS:
            shutil.rmtree(leftover, ignore_errors=True)


def _run_training(folder: Path, archive: Path) -> None:
    options = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable"]
    conf = {"spark.driver.extraJavaOptions": shlex.join(options)}
    spark = json.dumps({"master": "local[2]", "conf": conf})
    (folder / "icestream.yaml").write_text(f"{TRAINING_CONFIG}spark: {spark}\n", encoding="utf-8")
    try:
        # Java outlives the command while it writes the archive, and keeps the pipe open.
        process = subprocess.run(  # noqa: S603 - our own command
            RUN_COMMAND,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_SECS,
        )
    except subprocess.TimeoutExpired:
        raise _archive_error(f"the training run took over {RUN_TIMEOUT_SECS} s") from None
    if process.returncode:
        raise _archive_error(
            f"the training run ended with exit code {process.returncode}", process.stderr
        )


def _read_log(folder: Path) -> str:
    log = folder / ".icestream" / "spark.log"
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _archive_error(what: str, log: str = "") -> IcestreamError:
    output = log.strip()[-MAX_LOG_CHARACTERS:]
    return IcestreamError(
        f"{what}: {output}" if output else what,
        where="class archive",
        todo="Pipelines run without the archive, but start some seconds slower.",
    )
