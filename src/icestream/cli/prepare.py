"""`icestream prepare`: gets ahead what starts of Spark wait for."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from icestream.cli import render
from icestream.cli.screen import Screen, with_config
from icestream.errors import DependencyError

COMMAND = (sys.executable, "-c", "from icestream.cli.main import main; main(['run', '--once'])")
PATIENCE_SECS = 300
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


@click.command("prepare", short_help="Get ahead what starts of Spark wait for.")
@with_config
def command(screen: Screen, path: Path) -> int:
    """Download jars, and keep Spark's classes as Java has them in memory.

    Every later start of Spark on this machine takes some seconds less. Run it once after an
    installation or an upgrade, or when an image is built. The jars are those of the embedded
    lake, and those of the configuration file if there is one.
    """
    from icestream.engine.class_archive import archived_jars, is_archivable
    from icestream.engine.jars import resolve
    from icestream.engine.java import require_java

    require_java()
    jars = resolve(tuple(dict.fromkeys((*archived_jars(), *_jars_of(path)))))
    screen.say(f"{render.count(len(jars), 'jar')} in {jars[0].parent}")
    if not is_archivable():
        raise DependencyError(
            "Java can't keep classes while settings of another Spark or of Hadoop are on its "
            "class path",
            where="classes of Spark",
            todo="Everything runs without; starts take some seconds more. To keep classes, unset "
            "SPARK_HOME, SPARK_CONF_DIR, HADOOP_CONF_DIR and YARN_CONF_DIR here and where "
            "pipelines run.",
        )
    began = time.monotonic()
    archive = _write()
    secs, size = time.monotonic() - began, archive.stat().st_size
    screen.show(
        {"jars": [str(jar) for jar in jars], "class_archive": str(archive), "bytes": size},
        f"Spark's classes, {render.size(size)}, in {archive}: {secs:.0f} s",
    )
    return 0


def _jars_of(path: Path) -> tuple[str, ...]:
    """Return the coordinates of the jars of a file, if it was named or is there."""
    from icestream.config import load
    from icestream.plan.planner import build

    source = click.get_current_context().get_parameter_source("path")
    if source is click.core.ParameterSource.DEFAULT and not path.exists():
        return ()
    return build(load(path)).jars


def _write() -> Path:
    """Run pipelines over made-up rows, at whose end Java writes the classes that it loaded."""
    from icestream.engine.class_archive import archives_folder, keep_archive

    with tempfile.TemporaryDirectory(prefix="new-", dir=archives_folder()) as scratch:
        written = Path(scratch, "archive")
        options = f"-XX:ArchiveClassesAtExit={written} -Xlog:disable"
        spark = {"master": "local[2]", "conf": {"spark.driver.extraJavaOptions": options}}
        file = Path(scratch, "icestream.yaml")
        file.write_text(f"{FILE}spark: {json.dumps(spark)}\n", encoding="utf-8")
        # Java outlives our command while it writes, and holds the pipe open for so long.
        try:
            done = subprocess.run(  # noqa: S603 - ourselves
                COMMAND,
                cwd=scratch,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_SECS,
            )
        except subprocess.TimeoutExpired:
            raise _not_written(f"a run over made-up rows took over {PATIENCE_SECS} s") from None
        if done.returncode:
            raise _not_written(f"a run over made-up rows ended with {done.returncode}", done.stderr)
        archive = keep_archive(written)
    if archive is None:
        raise _not_written("Java wrote none, or not all of it: is the disk full?")
    return archive


def _not_written(what: str, said: str = "") -> DependencyError:
    return DependencyError(
        f"{what}{': ' + said.strip()[-2000:] if said.strip() else ''}",
        where="classes of Spark",
        todo="Everything runs without; starts take some seconds more.",
    )
