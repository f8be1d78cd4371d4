"""The further properties of a REST catalog's block: which are refused, and which are shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from icestream.contracts.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

# Java's names; a value in the file counts for both clients.
CONNECT_TIMEOUT = "rest.client.connection-timeout-ms"
ANSWER_TIMEOUT = "rest.client.socket-timeout-ms"
# Values of properties such as `token-refresh-enabled`, which hide nothing.
SWITCH = re.compile(r"|true|false|\d*", re.IGNORECASE)
BLOCKS = {
    "ssl": "let Python (REQUESTS_CA_BUNDLE) and Java (javax.net.ssl.trustStore) trust the server's "
    "authority",
    "auth": "give `credential` or `token`",
}


def check(properties: Mapping[str, str]) -> None:
    """Refuse properties that a client would break at.

    Raises:
        ValueError: with the reason.
    """
    for name in (CONNECT_TIMEOUT, ANSWER_TIMEOUT):
        value = properties.get(name, "1")
        if not re.fullmatch(r"[0-9]{1,9}", value) or not int(value):
            raise ValueError(f"`{name}` is {value!r}, and not a number of milliseconds")
    for name, instead in BLOCKS.items():
        if name in properties:
            raise ValueError(f"`{name}` is a block that only PyIceberg knows; {instead}")


def hides(name: str, value: str) -> bool:
    """Tell whether a property's value must not be shown."""
    return is_secret(name, value) and not SWITCH.fullmatch(value)


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with their secrets put out of sight."""
    return {name: HIDDEN if hides(name, value) else value for name, value in properties.items()}
