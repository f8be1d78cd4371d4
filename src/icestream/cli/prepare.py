"""`icestream prepare`: pre-downloads jars and warms Spark's start-up."""

from __future__ import annotations

import time
from pathlib import Path

import click

from icestream.cli import output
from icestream.cli.output import Printer, with_output_options


@click.command("prepare", short_help="Pre-download jars and warm Spark's start-up.")
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also download the jars that this configuration file needs.",
)
@with_output_options
def command(printer: Printer, path: Path | None) -> int:
    """Download jars and cache Spark's classes (CDS archive).

    Spark then starts several seconds faster on this machine. Run it once after installing or
    upgrading. It downloads the jars of the embedded lake and, with `--config`, those that the file
    needs.
    """
    from icestream.config import read
    from icestream.plan.planner import build
    from icestream.plan.stores import resolve_stores
    from icestream.spark.class_archive import archived_jars, write_archive
    from icestream.spark.jars import resolve, resolve_packages, user_packages

    plan = resolve_stores(build(read(path)).export_environment()) if path else None
    wanted = tuple(dict.fromkeys((*archived_jars(), *(plan.jars if plan else ()))))
    jars = resolve(wanted)
    printer.print_text(f"{output.format_count(len(jars), 'jar')} in {jars[0].parent}")
    if plan is not None and (packages := resolve_packages(user_packages(wanted), plan.state)):
        printer.print_text(
            f"{output.format_count(len(packages), 'package jar')} in {packages[0].parent}"
        )
        jars += packages
    began = time.monotonic()
    archive = write_archive()
    secs, size = time.monotonic() - began, archive.stat().st_size
    printer.print_result(
        {"jars": [str(jar) for jar in jars], "class_archive": str(archive), "bytes": size},
        f"class archive of {output.format_bytes(size)} in {archive}, written in {secs:.0f} s",
    )
    return 0
