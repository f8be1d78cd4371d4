"""Puts a fault of somebody else's library, and what caused it, into one text to look into."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from icestream.errors import ConnectorError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icestream.errors import IcestreamError


@dataclass(frozen=True)
class CheckStep:
    """One question to an outside system.

    `run` returns a short detail to show beside the tick, or raises an `IcestreamError`. The steps
    after a failed one of the same part are not asked.
    """

    name: str
    run: Callable[[], str]


MAX_CAUSES = 12


def exception_text(fault: BaseException) -> str:
    """Return the classes and messages of a fault and its causes, a line each, Java's included."""
    return "\n".join(dict.fromkeys(_lines(fault)))


def _lines(fault: BaseException | None) -> Iterator[str]:
    for _ in range(MAX_CAUSES):
        if fault is None:
            return
        java = getattr(fault, "java_exception", None) or getattr(fault, "_origin", None)
        if java is not None:
            yield from _java_lines(java)
        else:
            yield f"{type(fault).__name__}: {fault}"
        fault = fault.__cause__ or fault.__context__


def _java_lines(java: Any) -> Iterator[str]:
    for _ in range(MAX_CAUSES):
        if java is None:
            return
        yield f"{java.getClass().getName()}: {java.getMessage()}"
        java = java.getCause()


class Fault(NamedTuple):
    """How a fault is recognised, and what is said of it."""

    pattern: str
    kind: type[IcestreamError]
    what: str
    todo: str


def mentions(said: str, pattern: str, endpoint: str | None = None) -> bool:
    """Tell whether a text is of the one whose words, or whose address, a pattern describes.

    Args:
        said: what a library says.
        pattern: words that only the clients of that one use.
        endpoint: its address, where the file names one.
    """
    place = urlsplit(endpoint or "").netloc
    return bool(re.search(pattern, said)) or (":" in place and place in said)


def first_match(faults: Iterable[Fault], said: str, where: str) -> IcestreamError | None:
    """Return the error of the first fault that a text shows; None if it shows none of them."""
    for fault in faults:
        if re.search(fault.pattern, said):
            return fault.kind(fault.what, where=where, todo=fault.todo)
    return None


CONNECT_TIMEOUT_SECS = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443, "thrift": 9083}


def has_proxy() -> bool:
    """Tell whether clients go through a proxy, so that no way of our own needs to be there."""
    return bool(os.getenv("HTTPS_PROXY") or os.getenv("https_proxy"))


def check_connection(
    address: str, where: str, key: str, *, patience_secs: float = CONNECT_TIMEOUT_SECS
) -> str:
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
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 443)
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
