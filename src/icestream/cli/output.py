"""Words and tables for people."""

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


def tick(*, good: bool | None) -> str:
    """Return the sign of a step: done, not done, or not asked (None)."""
    if good is None:
        return click.style(DASH, dim=True)
    return click.style(TICK, fg="green") if good else click.style(CROSS, fg="red", bold=True)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows in columns, as wide as they need; numbers stand to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    rights = [
        bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(head))
    ]
    lines = [click.style(_line(head, widths, rights), bold=True)]
    lines += [_line(row, widths, rights) for row in cells]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, rights, strict=True)
    ]
    return "  ".join(parts).rstrip()


def _is_number(value: Any) -> bool:
    from decimal import Decimal

    return value is None or (isinstance(value, int | float | Decimal) and value is not True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    # A line break or an escape sequence in the data must not reach the terminal as such.
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def count(number: int, noun: str) -> str:
    """Return `1 row`, `12,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Return a number of bytes in words."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """Return a span of time in words: `0.8 s`, `12 s`, `5 min`, `3 h`, `2 days`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago something was, or `never`."""
    if moment is None:
        return "never"
    now = now or datetime.now(tz=timezone.utc)
    return f"{duration((now - moment).total_seconds())} ago"


def moment_of(timestamp_ms: int) -> datetime:
    """Return milliseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)


def iso(moment: datetime | None) -> str | None:
    """Return a time as JSON shows it."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")


FORMAT_VERSION = 1
SEE_MORE = "Run it again with --verbose to see where it comes from."
CommandT = TypeVar("CommandT", bound="Callable[..., Any]")


@dataclass(frozen=True)
class Screen:
    """Shows the result of a command on stdout, as text or as JSON.

    Attributes:
        output: `text` or `json`.
        color: `auto`, `always` or `never`.
        verbose: whether details and tracebacks are wanted.
    """

    output: str = "text"
    color: str = "auto"
    verbose: bool = False

    @classmethod
    def guess(cls, arguments: Sequence[str]) -> Screen:
        """Read the options from arguments that may hold errors, to report those rightly."""
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

    def colors(self, stream: TextIO) -> bool:
        """Tell whether colours are wanted on a stream."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, document: Mapping[str, Any], text: str) -> None:
        """Show a result; the document is what `--output json` prints."""
        if self.is_json:
            self._json(document)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Show a part of a result that is text only."""
        if text and not self.is_json:
            click.echo(text, color=self.colors(sys.stdout))

    def note(self, text: str) -> None:
        """Tell something that is not the result."""
        click.echo(text, err=True, color=self.colors(sys.stderr))

    def fail(self, error: Mapping[str, Any], text: str) -> None:
        """Show an error that ends the command."""
        if self.is_json:
            self._json({"error": error})
        else:
            self.note(click.style("error: ", fg="red", bold=True) + text)

    def _json(self, document: Mapping[str, Any]) -> None:
        whole = {"format_version": FORMAT_VERSION, **document}
        click.echo(json.dumps(whole, indent=2, default=str, ensure_ascii=False))


def error_document(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON shows it."""
    if not isinstance(error, IcestreamError):
        return {
            "type": type(error).__name__,
            "where": "",
            "message": unexpected(error),
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


def unexpected(error: BaseException) -> str:
    """Return an error that nobody foresaw in one line."""
    lines = str(error).strip().splitlines() or [""]
    # An error of the JVM says what was called in the first line, and what happened in the second.
    told = lines[1][2:] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
    return f"unexpected {type(error).__name__}: {told}".rstrip(": ")


def with_screen(function: CommandT) -> CommandT:
    """Add `--output`, `--color` and `--verbose`; the function gets them as `screen`."""

    @click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How the result is printed.",
    )
    @click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Colours; auto: on a terminal, unless NO_COLOR is set.",
    )
    @click.option("-v", "--verbose", is_flag=True, help="Log details, and tracebacks of errors.")
    @wraps(function)
    def command(output: str, color: str, *args: Any, verbose: bool, **kwargs: Any) -> Any:
        return function(Screen(output, color, verbose), *args, **kwargs)

    return command  # type: ignore[return-value]


def with_config(function: CommandT) -> CommandT:
    """Add `--config` and the options of `with_screen`."""
    option = click.option(
        "-c",
        "--config",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        default="icestream.yaml",
        show_default=True,
        help="The configuration file.",
    )
    return option(with_screen(function))
