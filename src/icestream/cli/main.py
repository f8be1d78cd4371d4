"""The `icestream` command: finds the subcommand, sets up the log, and tells how things ended.

Subcommands are loaded when they are asked for, and each imports what it needs when it runs, so
that help and completion answer at once.
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

from icestream.cli.deadline import end_process
from icestream.cli.output import SEE_MORE, Screen, error_document, unexpected
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order in which a person meets them.
COMMANDS = (
    "init",
    "demo",
    "prepare",
    "check",
    "plan",
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
GARBAGE_OBJECTS = 100_000
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
        f"no command is called {name!r}\n  {hint}There are: {', '.join(COMMANDS)}.", ctx
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
    # The libraries of a command make half a million objects that stay until its end; Python's
    # usual search for garbage among them takes a fifth of the time of a short command.
    gc.set_threshold(GARBAGE_OBJECTS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    end_process(run_command(given))


def run_command(arguments: list[str]) -> int:
    """Run a command and return its exit code; errors are told, never raised."""
    screen = Screen.guess(arguments)
    _log_to_stderr(screen)
    try:
        code = group.main(arguments, prog_name="icestream", standalone_mode=False)
        # Output that sits in the buffer meets a closed pipe here, not at interpreter exit.
        sys.stdout.flush()
        return int(code or 0)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as exc:  # noqa: BLE001 - the last resort: whatever it is, it is told in a line
        return _report(screen, exc)


def _report(screen: Screen, exc: Exception) -> int:
    """Tell what went wrong and return the exit code."""
    if isinstance(exc, click.UsageError):
        return _refuse_usage(screen, exc)
    logger.debug("the error comes from here", exc_info=exc)
    if isinstance(exc, IcestreamError):
        screen.fail(error_document(exc), str(exc))
        return exc.exit_code
    return _admit(screen, exc)


def _refuse_usage(screen: Screen, exc: click.UsageError) -> int:
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
    screen.fail(document, f"{command}: {message}\n  {todo}")
    return exc.exit_code


def _admit(screen: Screen, exc: Exception) -> int:
    """Report an error that nobody foresaw."""
    todo = "" if screen.verbose else SEE_MORE
    what = unexpected(exc)
    screen.fail({**error_document(exc), "todo": todo}, f"{what}\n  {todo}".rstrip())
    return 1


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is at the moment: the live view puts itself in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Line(logging.Formatter):
    converter = time.gmtime  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        if record.levelno < logging.WARNING:
            return line
        moment, _, message = line.partition(" ")
        return f"{moment} {record.levelname.lower()}: {message}"


def _log_to_stderr(screen: Screen) -> None:
    handler = _StderrHandler()
    handler.setFormatter(_Line())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    if not screen.verbose:
        logging.getLogger("py.warnings").setLevel(logging.ERROR)
    logging.getLogger("icestream").setLevel(logging.DEBUG if screen.verbose else logging.INFO)
    # py4j logs each broken connection with a traceback of its own; ours says what happened.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
