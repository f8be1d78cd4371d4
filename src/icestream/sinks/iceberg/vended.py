"""Credentials that a catalog hands out with a table, for that table's files and for a while."""

from __future__ import annotations

from typing import Any

# By what PyIceberg and Iceberg's Java both call them, or begin them with.
HANDED_OUT = (
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "gcs.oauth2.token",
    "adls.sas-token",
)
ENDS = (
    "s3.session-token-expires-at-ms",
    "gcs.oauth2.token-expires-at",
    "adls.sas-token-expires-at",
)


def vended_properties(table: Any) -> dict[str, str]:
    """Return what PyIceberg needs for the files of a table of the Java API.

    A server hands credentials out as properties of the table, or as credentials of a place each:
    then those of the longest place that the table lies below count.
    """
    location, io = str(table.location()), table.io()
    found = _credentials(io.properties())
    places = [
        (str(each.prefix()), each.config())
        for each in _stored(io)
        if location.startswith(str(each.prefix()))
    ]
    if places:
        found |= _credentials(max(places, key=lambda place: len(place[0]))[1])
    return found


def end_ms(properties: dict[str, str]) -> int | None:
    """Return when handed-out credentials run out, in milliseconds since 1970; None if unknown."""
    ends = [int(value) for key, value in properties.items() if key.startswith(ENDS)]
    return min(ends, default=None)


def _credentials(properties: Any) -> dict[str, str]:
    return {
        str(key): str(properties.get(key))
        for key in properties
        if str(key).startswith((*HANDED_OUT, *ENDS))
    }


def _stored(io: Any) -> list[Any]:
    from py4j.protocol import Py4JError

    try:
        return list(io.credentials())
    except Py4JError:  # a FileIO that has no such method
        return []
