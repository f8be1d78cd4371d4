"""Words and tables for people."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

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
