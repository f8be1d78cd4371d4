"""`icestream json-schema`: the JSON Schema of the configuration file."""

from __future__ import annotations

import json

import click

from icestream.cli.output import Printer, with_output_options


@click.command("json-schema", short_help="Print the JSON Schema of the configuration file.")
@click.option(
    "--lenient",
    is_flag=True,
    help="Draft 07, for editors: allows `${NAME}` anywhere. Default: strict 2020-12.",
)
@with_output_options
def command(printer: Printer, *, lenient: bool) -> int:
    """Print the JSON Schema of the configuration file.

    The default is a strict draft 2020-12 schema, for validation. `--lenient` gives a draft 07
    schema for editor completion, as `icestream init` writes it.
    """
    from icestream.config.json_schema import json_schema

    schema = json_schema(lenient=lenient)
    printer.print_result({"json_schema": schema}, json.dumps(schema, indent=2))
    return 0
