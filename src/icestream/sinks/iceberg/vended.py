"""What a catalog hands out with a table: credentials for its files, and where their store is."""

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

ENDPOINT = "s3.endpoint"
PATH_STYLE = "s3.path-style-access"
# The name that is meant for PyIceberg counts before Java's own.
REGIONS = ("s3.region", "client.region")


def vended_properties(table: Any) -> dict[str, str]:
    """Return what PyIceberg needs for the files of a table of the Java API.

    A server hands credentials out as properties of the table, or as credentials of a place each:
    then those of the longest place that the table lies below count.
    """
    location, io = str(table.location()), table.io()
    found = _plain(io.properties())
    places = [
        (str(each.prefix()), each.config())
        for each in _stored(io)
        if location.startswith(str(each.prefix()))
    ]
    if places:
        found |= _plain(max(places, key=lambda place: len(place[0]))[1])
    return {**_store(found), **_credentials(found)}


def end_ms(properties: dict[str, str]) -> int | None:
    """Return when handed-out credentials run out, in milliseconds since 1970; None if unknown."""
    ends = [int(value) for key, value in properties.items() if key.startswith(ENDS)]
    return min(ends, default=None)


def _plain(properties: Any) -> dict[str, str]:
    return {str(key): str(properties.get(key)) for key in properties}


def _credentials(found: dict[str, str]) -> dict[str, str]:
    named = (*HANDED_OUT, *ENDS)
    return {key: value for key, value in found.items() if key.startswith(named)}


def _store(found: dict[str, str]) -> dict[str, str]:
    """Return where the store is, by PyIceberg's names and with the defaults that Java has."""
    told = {ENDPOINT: found[ENDPOINT]} if ENDPOINT in found else {}
    regions = [found[key] for key in REGIONS if key in found]
    if regions:
        told["s3.region"] = regions[0]
    if ENDPOINT in found or PATH_STYLE in found:
        is_in_path = found.get(PATH_STYLE, "").lower() == "true"
        told["s3.force-virtual-addressing"] = "false" if is_in_path else "true"
    return told


def _stored(io: Any) -> list[Any]:
    from py4j.protocol import Py4JError

    try:
        return list(io.credentials())
    except Py4JError:  # a FileIO that has no such method
        return []
