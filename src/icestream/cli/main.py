"""The `icestream` command: dispatches subcommands, sets up logging and reports errors.

Subcommands are loaded on demand, and each imports what it needs when it runs, so that help and
shell completion respond immediately.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from icestream.cli.deadline import exit_process
from icestream.cli.output import VERBOSE_HINT, Printer, error_document, unexpected_error_text
from icestream.errors import ConfigError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order in which a new user needs them.
COMMANDS = (
    "init",
    "demo",
    "prepare",
    "check",
    "plan",
    "preview",
    "test",
    "run",
    "status",
    "snapshots",
    "schema",
    "query",
    "verify",
    "dlq",
    "metrics",
    "json-schema",
)
INTERRUPTED = 130
GC_THRESHOLD = 100_000
logger = logging.getLogger(__name__)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - Click's
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"icestream.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise _unknown_command(ctx, args[0])
        return super().resolve_command(ctx, args)


def _unknown_command(ctx: click.Context, name: str) -> click.UsageError:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return click.UsageError(
        f"unknown command {name!r}\n  {hint}Commands: {', '.join(COMMANDS)}.", ctx
    )


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value:
        from importlib.metadata import version

        click.echo(f"icestream {version('icestream')}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def group() -> None:
    """Stream events into Apache Iceberg tables, declared in one YAML file, exactly once."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    # A command's libraries allocate half a million objects that live until it exits. At the default
    # threshold, garbage collection takes a fifth of a short command's time.
    gc.set_threshold(GC_THRESHOLD)
    exit_process(run_command(list(sys.argv[1:] if arguments is None else arguments)))


def run_command(arguments: list[str]) -> int:
    """Run a command and return its exit code; errors are printed, never raised."""
    printer = Printer.guess(arguments)
    _log_to_stderr(printer)
    try:
        code = group.main(arguments, prog_name="icestream", standalone_mode=False)
        # Flush here, so that a closed pipe fails now and not at interpreter exit.
        sys.stdout.flush()
        return int(code or 0)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe; without this, Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as exc:  # noqa: BLE001 - the last resort: report anything in one line
        return _report(printer, exc)


def _report(printer: Printer, exc: Exception) -> int:
    """Print the error and return the exit code."""
    if isinstance(exc, click.UsageError):
        return _report_usage_error(printer, exc)
    logger.debug("traceback of the error", exc_info=exc)
    if isinstance(exc, IcestreamError):
        text = str(exc)
        if isinstance(exc, ConfigError) and len(exc.problems) > 1:
            text += f"\n{len(exc.problems)} problems."
        printer.print_error(error_document(exc), text)
        return exc.exit_code
    return _report_unexpected(printer, exc)


def _report_usage_error(printer: Printer, exc: click.UsageError) -> int:
    message = exc.format_message()
    command = exc.ctx.command_path if exc.ctx else "icestream"
    todo = f"See `{command} --help`."
    document = {
        "type": "UsageError",
        "where": command,
        "message": message,
        "todo": todo,
        "exit_code": exc.exit_code,
    }
    printer.print_error(document, f"{command}: {message}\n  {todo}")
    return exc.exit_code


def _report_unexpected(printer: Printer, exc: Exception) -> int:
    """Report an error that is not one of ours."""
    todo = "" if printer.verbose else VERBOSE_HINT
    what = unexpected_error_text(exc)
    printer.print_error({**error_document(exc), "todo": todo}, f"{what}\n  {todo}".rstrip())
    return 1


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current stderr, which the live view replaces while it is shown."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _LogFormatter(logging.Formatter):
    converter = time.gmtime  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        if record.levelno < logging.WARNING:
            return line
        timestamp, _, message = line.partition(" ")
        return f"{timestamp} {record.levelname.lower()}: {message}"


def _log_to_stderr(printer: Printer) -> None:
    handler = _StderrHandler()
    handler.setFormatter(_LogFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    if not printer.verbose:
        logging.getLogger("py.warnings").setLevel(logging.ERROR)
    logging.getLogger("icestream").setLevel(logging.DEBUG if printer.verbose else logging.INFO)
    # py4j logs a traceback for each broken connection, and pyspark one for each query that Spark
    # refuses; our own error already reports it.
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


if __name__ == "__main__":
    main()
