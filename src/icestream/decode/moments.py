"""Dates and times in text: their shapes, and what they mean."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone

TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ]((?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.(\d{1,9}))?)?)?)"
    r"(Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.(\d{1,9}))?)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def nanos_since_epoch(text: str) -> int:
    """Return the nanoseconds from 1970 to a timestamp; one without a zone is taken for UTC.

    Raises:
        ValueError: the text is not a timestamp.
    """
    found = TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day, clock, fraction, zone = found.groups()
    try:
        seconds = (clock or "00").partition(".")[0]
        moment = datetime.fromisoformat(f"{day}T{seconds}+00:00") - _offset(zone)
    except OverflowError as exc:
        raise ValueError(text) from exc
    whole = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    return whole + int((fraction or "").ljust(9, "0"))


def micros_since_epoch(text: str) -> int:
    """Return the microseconds from 1970 to a timestamp; one without a zone is taken for UTC.

    Raises:
        ValueError: the text is not a timestamp, or has a fraction of a microsecond.
    """
    micros, left = divmod(nanos_since_epoch(text), 1000)
    if left:
        raise ValueError(text)
    return micros


def parse_date(text: str) -> date:
    """Return the day that `YYYY-MM-DD` names, else raise ValueError."""
    if _DATE.fullmatch(text) is None:
        raise ValueError(text)
    return date.fromisoformat(text)


def parse_time(text: str) -> time:
    """Return the time of day that `HH:MM[:SS[.ffffff]]` names, else raise ValueError."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(text)
    micros, left = divmod(int((found[2] or "").ljust(9, "0")), 1000)
    if left:
        raise ValueError(text)
    return time.fromisoformat(text.partition(".")[0]).replace(microsecond=micros)


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone == "Z":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -size if zone[0] == "-" else size
