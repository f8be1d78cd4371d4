"""`icestream prepare`: gets ahead what starts of Spark wait for."""

from __future__ import annotations

import time
from pathlib import Path

import click

from icestream.cli import output
from icestream.cli.output import Screen, with_screen


@click.command("prepare", short_help="Get ahead what starts of Spark wait for.")
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A configuration file whose jars are downloaded too.",
)
@with_screen
def command(screen: Screen, path: Path | None) -> int:
    """Download jars, and keep Spark's classes as Java has them in memory.

    Every later start of Spark on this machine takes some seconds less. Run it once after an
    installation or an upgrade. The jars are those of the embedded lake, and those of a
    configuration file if one is named.
    """
    from icestream.config import load
    from icestream.plan.planner import build
    from icestream.spark.class_archive import archived_jars, write_archive
    from icestream.spark.jars import resolve, resolve_packages, unlocked

    plan = build(load(path)) if path else None
    wanted = tuple(dict.fromkeys((*archived_jars(), *(plan.jars if plan else ()))))
    jars = resolve(wanted)
    screen.say(f"{output.count(len(jars), 'jar')} in {jars[0].parent}")
    if plan is not None and (packages := resolve_packages(unlocked(wanted), plan.state)):
        screen.say(f"{output.count(len(packages), 'jar')} of packages in {packages[0].parent}")
        jars += packages
    began = time.monotonic()
    archive = write_archive()
    secs, size = time.monotonic() - began, archive.stat().st_size
    screen.show(
        {"jars": [str(jar) for jar in jars], "class_archive": str(archive), "bytes": size},
        f"Spark's classes, {output.size(size)}, in {archive}: {secs:.0f} s",
    )
    return 0
