"""`icestream init`: a starting file that runs as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from icestream.cli.screen import Screen, with_screen
from icestream.errors import PlanError

SCHEMA_NAME = "icestream.schema.json"
STARTING_FILE = f"""\
# yaml-language-server: $schema={SCHEMA_NAME}
# $schema: {SCHEMA_NAME}
#
# icestream check   is everything in here right, and within reach?
# icestream plan    what would a run create and change?
# icestream run     let it flow; Ctrl-C stops it after the batch in hand
version: "1.0"

sources:
  shop:
    connector: datagen            # made-up events of a web shop: needs nothing else
    config:
      rows_per_second: 100

  # The same pipeline from Kafka: name this source below, in `pipelines`.
  # orders:
  #   connector: kafka
  #   config:
  #     brokers: [localhost:9092]
  #     topics: [orders]
  #     format: json
  #     starting: earliest

sinks:
  lake:
    connector: iceberg            # no catalog is named: the embedded one, in ./lake
    config:
      namespace: demo
      table: shop_events          # made when missing, with the columns of the stream
      partitioning: ["days(event_time)"]
      batch_size: 10000           # commit when this many rows wait,
      flush_interval_secs: 10     # or when the oldest has waited this long

pipelines:
  shop:
    source: shop
    sink: lake
    # transforms:
    #   - filter: "event_type = 'purchase'"
"""


@click.command("init", short_help="Write a starting file.")
@click.argument("what", metavar="[PATH | postgres://USER@HOST/DB]", default="icestream.yaml")
@click.argument("path", metavar="[PATH]", type=click.Path(path_type=Path), required=False)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@with_screen
def command(screen: Screen, what: str, path: Path | None, *, force: bool) -> int:
    """Write a starting file to PATH (icestream.yaml), and its JSON Schema for editors beside it.

    PATH may be a folder. The file runs as it is: made-up events into an embedded Iceberg lake.

    With the address of a PostgreSQL database it mirrors that one: `icestream init
    postgres://user@host:5432/shop`. If the server answers, its tables and their keys are noted in
    the file. A password is never written.
    """
    from icestream.cli import init_postgres

    if init_postgres.is_address(what):
        return _mirror(screen, what, path or Path("icestream.yaml"), force=force)
    if path is not None:
        raise click.UsageError(f"{what!r} is no address of a database, and {str(path)!r} is left")
    path = _write_both(Path(what), STARTING_FILE, force=force)
    screen.show(_document(path), _written(path))
    return 0


def _mirror(screen: Screen, address: str, path: Path, *, force: bool) -> int:
    from icestream.cli.init_postgres import VARIABLE, look_into, read_address, starting_file

    database = read_address(address)
    if not force:
        _refuse_existing(_file_of(path))
    look = look_into(database)
    path = _write_both(path, starting_file(database, look, SCHEMA_NAME), force=force)
    tables = None if look.taken is None else [table.full_name for table in look.taken]
    text = _written(path)
    if look.needs_password:
        text += f"\nFirst: export {VARIABLE}=...; the password is not in the file."
    told = {"tables": tables, "other_schemas": look.other_schemas}
    screen.show({**_document(path), **told}, text)
    if look.tables is None:
        screen.note(f"The tables of {database.name!r} are not noted in it: {look.reason}")
    return 0


def _file_of(path: Path) -> Path:
    return path / "icestream.yaml" if path.is_dir() else path


def _write_both(path: Path, text: str, *, force: bool) -> Path:
    """Write a file and its schema; return where the file is."""
    path = _file_of(path)
    if not force:
        _refuse_existing(path)
    _write(path, text)
    _write(path.with_name(SCHEMA_NAME), _schema_text())
    return path


def _document(path: Path) -> dict[str, Any]:
    return {"file": str(path), "json_schema": str(path.with_name(SCHEMA_NAME))}


def _written(path: Path) -> str:
    named = "" if path == Path("icestream.yaml") else f" --config {path}"
    return (
        f"Wrote {path}, and {path.with_name(SCHEMA_NAME)} for your editor.\n"
        f"Next: icestream check{named}, then icestream run{named}"
    )


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise PlanError(
            "the file exists already",
            where=str(path),
            todo="Name another one, or overwrite it with `--force`.",
        )


def _schema_text() -> str:
    from icestream.config.json_schema import json_schema

    return json.dumps(json_schema(lenient=True), indent=2) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PlanError(
            f"the file can't be written: {exc.strerror}",
            where=str(path),
            todo="Look at the folder's permissions, or name another one.",
        ) from exc
