"""Looks whether somebody answers at an address, before a client library tries for minutes."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from icestream.errors import ConnectorError, UnreachableError

PATIENCE_SECS = 5.0
PORTS = {"http": 80, "https": 443, "thrift": 9083}


def has_proxy() -> bool:
    """Tell whether clients go through a proxy, so that no way of our own needs to be there."""
    return bool(os.getenv("HTTPS_PROXY") or os.getenv("https_proxy"))


def reach(address: str, where: str, key: str, *, patience_secs: float = PATIENCE_SECS) -> str:
    """Open and close a connection to an address; return it as `host:port`.

    Args:
        address: a URL, or `host:port`.
        where: the place, for the message.
        key: the key of the file that holds the address.
        patience_secs: how long to wait for an answer.

    Raises:
        UnreachableError: the name is unknown, the connection is refused, or nobody answers.
        ConnectorError: it is no address.
    """
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 443)
        host.encode("idna")  # as the socket will; a label may have 63 letters
    except ValueError:
        raise ConnectorError(
            f"the address in `{key}` has a host or a port that cannot be",
            where=where,
            todo=f"Look at the spelling of `{key}`; a port is a number up to 65535.",
        ) from None
    shown = f"{host}:{port}"
    try:
        socket.create_connection((host, port), timeout=patience_secs).close()
    except socket.gaierror:
        raise UnreachableError(
            f"no machine is known by the name {host!r}",
            where=where,
            todo=f"Look at the spelling of `{key}`, and whether this machine's DNS knows the name.",
        ) from None
    except ConnectionRefusedError:
        raise UnreachableError(
            f"nothing listens at {shown}",
            where=where,
            todo=f"Is the server running? Is the port in `{key}` right?",
        ) from None
    except TimeoutError:
        raise UnreachableError(
            f"no answer from {shown} within {patience_secs:g} s",
            where=where,
            todo=f"Is the address in `{key}` right? Is a firewall or a VPN in between?",
        ) from None
    except OSError as exc:
        raise UnreachableError(
            f"no way to {shown} ({exc.strerror or exc})",
            where=where,
            todo=f"Look at `{key}`, and at this machine's network.",
        ) from None
    return shown
