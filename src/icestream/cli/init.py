"""`icestream init`: a starting file that runs as it is."""

from __future__ import annotations

import json
from pathlib import Path

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
@click.argument("path", type=click.Path(path_type=Path), default="icestream.yaml")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@with_screen
def command(screen: Screen, path: Path, *, force: bool) -> int:
    """Write a starting file to PATH (icestream.yaml), and its JSON Schema for editors beside it.

    PATH may be a folder. The file runs as it is: made-up events into an embedded Iceberg lake.
    """
    if path.is_dir():
        path = path / "icestream.yaml"
    schema = path.with_name(SCHEMA_NAME)
    if not force:
        _refuse_existing(path)
    _write(path, STARTING_FILE)
    _write(schema, _schema_text())
    named = "" if path == Path("icestream.yaml") else f" --config {path}"
    screen.show(
        {"file": str(path), "json_schema": str(schema)},
        f"Wrote {path}, and {schema} for your editor.\n"
        f"Next: icestream check{named}, then icestream run{named}",
    )
    return 0


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
