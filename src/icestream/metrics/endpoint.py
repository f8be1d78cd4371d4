"""The HTTP endpoint that Prometheus scrapes."""

from __future__ import annotations

import errno
import hmac
import socket
from http import HTTPStatus
from ipaddress import ip_address
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from icestream.errors import ConnectorError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry

# How often the thread checks whether to stop, so how long closing may take.
_POLL_SECS = 0.05
_WELCOME = b"icestream: metrics for Prometheus are at /metrics\n"


class MetricsEndpoint:
    """A running metrics endpoint. `close` may be called more than once."""

    def __init__(self, server: _Server) -> None:
        self.port = int(server.server_address[1])
        self._server = server
        self._thread = Thread(
            target=server.serve_forever, args=(_POLL_SECS,), name="icestream-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve(
    registry: CollectorRegistry, host: str, port: int, *, token: str | None = None
) -> MetricsEndpoint:
    """Serve `GET /metrics` on its own thread until closed.

    Args:
        registry: the series to serve.
        host: the address to listen on.
        port: the port; 0 picks a free one, see `MetricsEndpoint.port`.
        token: what a client must send as `Authorization: Bearer TOKEN`; None lets everyone in.

    Raises:
        PlanError: `host` can be reached from outside, and there is no token.
        ConnectorError: cannot listen on the address.
    """
    if not token and not _is_loopback(host):
        raise PlanError(
            f"the metrics endpoint would be open to the network on {host!r} without a token",
            where="metrics.host",
            todo="Set `metrics: {token: ${NAME}}`, or listen on 127.0.0.1.",
        )
    try:
        server = _server_class(host)((host, port), _Handler)
    except OSError as exc:
        raise _bind_error(host, port, exc) from exc
    server.set_app(_Application(registry, token))
    return MetricsEndpoint(server)


class _Application:
    def __init__(self, registry: CollectorRegistry, token: str | None) -> None:
        self._metrics = make_wsgi_app(registry)
        self._expected = f"Bearer {token}".encode() if token else None

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        if not self._is_authorized(environ.get("HTTP_AUTHORIZATION", "")):
            return _respond(
                start_response, HTTPStatus.UNAUTHORIZED, headers=[("WWW-Authenticate", "Bearer")]
            )
        if environ["REQUEST_METHOD"] != "GET":
            return _respond(
                start_response, HTTPStatus.METHOD_NOT_ALLOWED, headers=[("Allow", "GET")]
            )
        if environ["PATH_INFO"] == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        if environ["PATH_INFO"] == "/":
            return _respond(start_response, HTTPStatus.OK, _WELCOME)
        return _respond(start_response, HTTPStatus.NOT_FOUND)

    def _is_authorized(self, authorization: str) -> bool:
        if self._expected is None:
            return True
        # WSGI passes headers as Latin-1.
        return hmac.compare_digest(authorization.encode("latin-1"), self._expected)


class _Handler(WSGIRequestHandler):
    # A client that sends one byte at a time must not hold a thread forever.
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # The base class asks DNS for the host's full name, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])
        self.setup_environ()


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _IPv6Server if ":" in host else _Server


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _respond(
    start_response: Callable[..., Any],
    status: HTTPStatus,
    body: bytes | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    body = f"{status.phrase}\n".encode() if body is None else body
    plain = ("Content-Type", "text/plain; charset=utf-8")
    start_response(
        f"{status.value} {status.phrase}",
        [plain, ("Content-Length", str(len(body))), *headers],
    )
    return [body]


def _bind_error(host: str, port: int, exc: OSError) -> ConnectorError:
    if exc.errno == errno.EADDRINUSE:
        return ConnectorError(
            f"port {port} on {host!r} is in use, so the metrics endpoint cannot listen there",
            where="metrics.port",
            todo="Set `metrics: {port: N}` to a free port, or to 0 to turn the endpoint off.",
        )
    return ConnectorError(
        f"the metrics endpoint cannot listen on {host!r}, port {port}: {exc.strerror or exc}",
        where="metrics",
        todo="Set `metrics: {host: 127.0.0.1, port: N}`, or `port: 0` to turn the endpoint off.",
    )
