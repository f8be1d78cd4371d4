"""Places in PostgreSQL's log, as numbers and as the server writes them."""

from __future__ import annotations


def as_lsn(place: int) -> str:
    """Return a place as the server writes it: `16/B374D848`."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def from_lsn(text: str) -> int:
    """Read a place as the server writes it."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
