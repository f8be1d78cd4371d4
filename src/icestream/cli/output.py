"""Output of commands: text and JSON, tables, counts, sizes and durations."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from icestream.errors import ConfigError, IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO


TICK, CROSS, DASH = "✓", "✗", "-"


def status_mark(*, passed: bool | None) -> str:
    """Return the mark of a step: passed, failed, or skipped (None)."""
    if passed is None:
        return click.style(DASH, dim=True)
    return click.style(TICK, fg="green") if passed else click.style(CROSS, fg="red", bold=True)


def format_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Align rows in columns; numbers are right-aligned."""
    cells = [[format_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    rights = [
        bool(rows) and all(is_number(row[index]) for row in rows) for index in range(len(head))
    ]
    lines = [click.style(_format_row(head, widths, rights), bold=True)]
    lines += [_format_row(row, widths, rights) for row in cells]
    return "\n".join(lines)


def _format_row(row: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, rights, strict=True)
    ]
    return "  ".join(parts).rstrip()


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, or none."""
    from decimal import Decimal

    return value is None or (isinstance(value, int | float | Decimal) and value is not True)


def format_cell(value: Any) -> str:
    """Return a value as one line of text; empty for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    # Escape line breaks and control sequences in the data; the terminal would interpret them.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def format_count(number: int, noun: str) -> str:
    """Return `1 row`, `12,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(number: int) -> str:
    """Return a number of bytes with its unit, e.g. `1.5 MB`."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_duration(seconds: float) -> str:
    """Return a duration with its unit: `0.8 s`, `12 s`, `5 min`, `3 h`, `2 days`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def format_age(time: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago a time was, e.g. `5 min ago`, or `never`."""
    if time is None:
        return "never"
    now = now or datetime.now(tz=timezone.utc)
    return f"{format_duration((now - time).total_seconds())} ago"


def utc_datetime(timestamp_ms: int) -> datetime:
    """Return epoch milliseconds as a UTC datetime."""
    return datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)


def iso_timestamp(time: datetime | None) -> str | None:
    """Return a time as an ISO 8601 string for JSON."""
    return None if time is None else time.isoformat(timespec="milliseconds")


FORMAT_VERSION = 1
VERBOSE_HINT = "Run again with --verbose for the traceback."
CommandT = TypeVar("CommandT", bound="Callable[..., Any]")


@dataclass(frozen=True)
class Printer:
    """Prints the result of a command to stdout, as text or as JSON.

    Attributes:
        output: `text` or `json`.
        color: `auto`, `always` or `never`.
        verbose: whether to log details and tracebacks.
    """

    output: str = "text"
    color: str = "auto"
    verbose: bool = False

    @classmethod
    def guess(cls, arguments: Sequence[str]) -> Printer:
        """Read the output options from unparsed arguments, to report usage errors in that form."""
        pairs = [*zip(arguments, [*arguments[1:], ""], strict=False)]
        wants_json = "--output=json" in arguments or ("--output", "json") in pairs
        color = next((b for a, b in pairs if a == "--color"), "auto")
        color = next((a.partition("=")[2] for a in arguments if a.startswith("--color=")), color)
        return cls(
            output="json" if wants_json else "text",
            color=color if color in ("always", "never") else "auto",
            verbose="--verbose" in arguments or "-v" in arguments,
        )

    @property
    def is_json(self) -> bool:
        return self.output == "json"

    def wants_color(self, stream: TextIO) -> bool:
        """Tell whether to use colour on a stream."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def print_result(self, document: Mapping[str, Any], text: str) -> None:
        """Print a result; the document is what `--output json` prints."""
        if self.is_json:
            self._json(document)
        else:
            self.print_text(text)

    def print_text(self, text: str) -> None:
        """Print part of a result, in text output only."""
        if text and not self.is_json:
            click.echo(text, color=self.wants_color(sys.stdout))

    def print_note(self, text: str) -> None:
        """Print a note to stderr: it is not part of the result."""
        click.echo(text, err=True, color=self.wants_color(sys.stderr))

    def print_error(self, error: Mapping[str, Any], text: str) -> None:
        """Print the error that ends the command."""
        if self.is_json:
            self._json({"error": error})
        else:
            self.print_note(click.style("error: ", fg="red", bold=True) + text)

    def _json(self, document: Mapping[str, Any]) -> None:
        versioned = {"format_version": FORMAT_VERSION, **document}
        click.echo(json.dumps(versioned, indent=2, default=str, ensure_ascii=False))


def error_document(error: BaseException) -> dict[str, Any]:
    """Return an error as a JSON document."""
    if not isinstance(error, IcestreamError):
        return {
            "type": type(error).__name__,
            "where": "",
            "message": unexpected_error_text(error),
            "todo": "",
            "exit_code": 1,
        }
    document: dict[str, Any] = {
        "type": type(error).__name__,
        "where": error.where,
        "message": error.what,
        "todo": error.todo,
        "exit_code": error.exit_code,
    }
    if isinstance(error, ConfigError):
        document["problems"] = [
            {"where": problem.where, "message": problem.what, "todo": problem.todo}
            for problem in error.problems
        ]
    return document


def unexpected_error_text(error: BaseException) -> str:
    """Return an unexpected error in one line."""
    lines = str(error).strip().splitlines() or [""]
    # A JVM error has the call in its first line and the exception in its second.
    message = lines[1][2:] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
    return f"unexpected {type(error).__name__}: {message}".rstrip(": ")


def with_output_options(function: CommandT) -> CommandT:
    """Add `--output`, `--color` and `--verbose`; the function receives them as a `Printer`."""

    @click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Output format.",
    )
    @click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="When to use colour; auto: on a terminal, unless NO_COLOR is set.",
    )
    @click.option("-v", "--verbose", is_flag=True, help="Log details and tracebacks.")
    @wraps(function)
    def command(output: str, color: str, *args: Any, verbose: bool, **kwargs: Any) -> Any:
        return function(Printer(output, color, verbose), *args, **kwargs)

    return command  # type: ignore[return-value]


def with_config_option(function: CommandT) -> CommandT:
    """Add `--config` and the options of `with_output_options`."""
    option = click.option(
        "-c",
        "--config",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        default="icestream.yaml",
        show_default=True,
        help="The configuration file.",
    )
    return option(with_output_options(function))
