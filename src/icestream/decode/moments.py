"""Dates and times in text: their shapes, and what they mean."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone

TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d(?::\d\d){0,2})(?:\.(\d{1,9}))?(Z|[+-]\d\d(?::?\d\d)?)?)?"
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"(\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?")
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
        moment = datetime.fromisoformat(f"{day}T{clock or '00'}+00:00") - _offset(zone)
    except OverflowError as exc:
        raise ValueError(text) from exc
    whole = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    return whole + int((fraction or "").ljust(9, "0"))


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
    return time.fromisoformat(found[1]).replace(microsecond=_micros(found[2]))


def _micros(fraction: str | None) -> int:
    return int((fraction or "").ljust(6, "0")[:6])


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone == "Z":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -size if zone[0] == "-" else size
