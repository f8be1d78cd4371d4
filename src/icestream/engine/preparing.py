"""Writes the archive of classes: Java does, at the end of a run over made-up rows."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from icestream.engine.class_archive import archives_place, keep_archive
from icestream.engine.java import require_java
from icestream.errors import DependencyError, IcestreamError

COMMAND = (sys.executable, "-c", "from icestream.cli.main import main; main(['run', '--once'])")
PATIENCE_SECS = 300
SHOWN_CHARACTERS = 2000
# Each puts something before the jars on the class path; Java keeps no classes beside folders.
IN_THE_WAY = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
)
# Rows as they are and through Spark, appended and by key, so that all of it is loaded.
FILE = """\
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
    """Write the archive for this installation, in place of an older one, and return it.

    Raises:
        DependencyError: Java is missing, or would keep no classes here.
        IcestreamError: it could not be written.
    """
    require_java()
    _refuse_foreign_settings()
    place = archives_place()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(place)
    # Java may still be writing there when we give up.
    with tempfile.TemporaryDirectory(
        prefix="new-", dir=place, ignore_cleanup_errors=True
    ) as scratch:
        written = Path(scratch, "archive")
        _run(Path(scratch), written)
        kept = keep_archive(written)
        if kept is None:
            raise _not_written("Java wrote none, or not all of it", _log_of(Path(scratch)))
    return kept


def _refuse_foreign_settings() -> None:
    for name in IN_THE_WAY:
        if os.environ.get(name):
            raise DependencyError(
                f"Java keeps none while {name} is set, here to {os.environ[name]!r}",
                where="classes of Spark",
                todo="Everything runs without; starts take some seconds more. To keep classes, "
                "unset it here and where pipelines run.",
            )


def _sweep(place: Path) -> None:
    """Remove what was left behind by one that was killed."""
    for left in place.glob("new-*"):
        if time.time() - left.stat().st_mtime > PATIENCE_SECS:
            shutil.rmtree(left, ignore_errors=True)


def _run(folder: Path, archive: Path) -> None:
    options = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable"]
    conf = {"spark.driver.extraJavaOptions": shlex.join(options)}
    spark = json.dumps({"master": "local[2]", "conf": conf})
    (folder / "icestream.yaml").write_text(f"{FILE}spark: {spark}\n", encoding="utf-8")
    try:
        # Java outlives our command while it writes, and holds the pipe open for so long.
        done = subprocess.run(  # noqa: S603 - ourselves
            COMMAND,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECS,
        )
    except subprocess.TimeoutExpired:
        raise _not_written(f"a run over made-up rows took over {PATIENCE_SECS} s") from None
    if done.returncode:
        raise _not_written(f"a run over made-up rows ended with {done.returncode}", done.stderr)


def _log_of(folder: Path) -> str:
    log = folder / ".icestream" / "spark.log"
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def _not_written(what: str, said: str = "") -> IcestreamError:
    told = said.strip()[-SHOWN_CHARACTERS:]
    return IcestreamError(
        f"{what}: {told}" if told else what,
        where="classes of Spark",
        todo="Everything runs without; starts take some seconds more.",
    )
