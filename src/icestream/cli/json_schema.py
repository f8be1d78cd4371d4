"""`icestream json-schema`: the file's format, for editors and checks."""

from __future__ import annotations

import json

import click

from icestream.cli.output import Screen, with_screen


@click.command("json-schema", short_help="Print the JSON Schema of the configuration file.")
@click.option(
    "--lenient",
    is_flag=True,
    help="Draft 07, for editors: `${NAME}` may stand anywhere. Else 2020-12, strict.",
)
@with_screen
def command(screen: Screen, *, lenient: bool) -> int:
    """Print the JSON Schema of the configuration file.

    Without `--lenient` it is a strict one of draft 2020-12, for checks; with it one of draft 07
    that editors complete from. `icestream init` writes the latter beside its file.
    """
    from icestream.config.json_schema import json_schema

    schema = json_schema(lenient=lenient)
    screen.show({"json_schema": schema}, json.dumps(schema, indent=2))
    return 0
