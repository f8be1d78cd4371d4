"""Recognise the faults of other libraries and systems, and turn them into errors of ours."""

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
    """One check of an outside system.

    `run` returns a short detail to show beside the tick, or raises an `IcestreamError`. After a
    failed step, the remaining steps of the same component are skipped.
    """

    name: str
    run: Callable[[], str]


MAX_CAUSES = 12


def exception_text(fault: BaseException) -> str:
    """Return the classes and messages of an exception and its causes, one per line.

    Java exceptions are included.
    """
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
    """A fault that a pattern recognises, and the error to raise for it."""

    pattern: str
    kind: type[IcestreamError]
    what: str
    todo: str

    def to_error(self, where: str, detail: str = "") -> IcestreamError:
        """Return the error, with a detail after its sentence."""
        return self.kind(f"{self.what}{detail}", where=where, todo=self.todo)


def mentions(text: str, pattern: str, endpoint: str | None = None) -> bool:
    """Tell whether an exception's text comes from a certain service.

    Args:
        text: the text of the exception and its causes.
        pattern: words that only clients of that service use.
        endpoint: the service's address, if the configuration names one.
    """
    address = urlsplit(endpoint or "").netloc
    return bool(re.search(pattern, text)) or (":" in address and address in text)


def first_match(faults: Iterable[Fault], text: str, where: str) -> IcestreamError | None:
    """Return the error of the first fault whose pattern matches; None if none does."""
    for fault in faults:
        if re.search(fault.pattern, text):
            return fault.to_error(where)
    return None


# The words of Python's, Java's and C's clients for what can happen to any connection.
NAME_NOT_RESOLVED = (
    r"UnknownHost|UnresolvedAddress|NameResolution|DnsNameResolver|[Nn]ame or service not known"
    r"|[Ff]ailed to resolve|resolve host|translate host name|getaddrinfo|nodename nor servname"
    r"|Temporary failure in name resolution|Name has no usable address"
)
TLS_FAILED = r"CERTIFICATE_VERIFY_FAILED|SSLError|SSLHandshake|SSLException|PKIX"
CONNECTION_REFUSED = r"[Cc]onnection ?[Rr]efused|Connection to .{1,120} refused"
TIMED_OUT = r"[Tt]imed ?out|TimeoutE"


def transport_faults(
    service: str, keys: str, *, no_answer: str = TIMED_OUT, tls: bool = False
) -> tuple[Fault, ...]:
    """Return the faults of the connection to a service, the same for every connector.

    Args:
        service: what is connected to, for the messages: `the catalog's database`.
        keys: the keys of the file that hold its address, for the messages.
        no_answer: what its clients say when the service does not answer.
        tls: whether to recognise faults of TLS; a service has them if it is reached by HTTP.
    """
    faults = [
        Fault(
            NAME_NOT_RESOLVED,
            UnreachableError,
            f"cannot resolve the host name of {service}",
            f"Check the spelling of {keys}, and that this machine's DNS resolves the name.",
        ),
        Fault(
            CONNECTION_REFUSED,
            UnreachableError,
            f"connection to {service} refused",
            f"Is the server running? Check {keys}.",
        ),
        Fault(
            no_answer,
            UnreachableError,
            f"no answer from {service}",
            f"Is the server running? Check {keys}. Is a firewall, a VPN or a proxy in between?",
        ),
    ]
    if tls:
        untrusted = Fault(
            TLS_FAILED,
            ConnectorError,
            f"TLS connection to {service} failed",
            f"Is it http or https in {keys}? Python (REQUESTS_CA_BUNDLE) and Java "
            "(javax.net.ssl.trustStore) must trust the server's certificate.",
        )
        faults.insert(1, untrusted)
    return tuple(faults)


CONNECT_TIMEOUT_SECS = 5.0
DEFAULT_PORTS = {"http": 80, "https": 443, "thrift": 9083}


def has_proxy() -> bool:
    """Tell whether clients use a proxy, so that a direct connection need not be possible."""
    return bool(os.getenv("HTTPS_PROXY") or os.getenv("https_proxy"))


def check_connection(
    address: str, where: str, keys: str, *, timeout_secs: float = CONNECT_TIMEOUT_SECS
) -> str:
    """Open and close a connection to an address; return it as `host:port`.

    Args:
        address: a URL, or `host:port`.
        where: what is being checked, for the message.
        keys: the keys of the file that hold the address, for the message.
        timeout_secs: how long to wait for an answer.

    Raises:
        UnreachableError: the name does not resolve, the connection is refused, or no answer comes.
        ConnectorError: the address is invalid.
    """
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 443)
        host.encode("idna")  # as the socket will; a label may have 63 letters
    except ValueError:
        raise ConnectorError(
            f"invalid host or port in {keys}",
            where=where,
            todo=f"Check the spelling of {keys}; a port is a number up to 65535.",
        ) from None
    endpoint = f"{host}:{port}"
    unresolved, refused, unanswered = transport_faults(endpoint, keys)
    try:
        socket.create_connection((host, port), timeout=timeout_secs).close()
    except socket.gaierror:
        fault, detail = unresolved, ""
    except ConnectionRefusedError:
        fault, detail = refused, ""
    except TimeoutError:
        fault, detail = unanswered, f" within {timeout_secs:g} s"
    except OSError as exc:
        fault, detail = unanswered, f" ({exc.strerror or exc})"
    else:
        return endpoint
    raise fault.to_error(where, detail)
