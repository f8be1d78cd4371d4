"""The HTTP server, in its own thread, and the spool that it fills."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import ssl
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from icestream.errors import ConnectorError, DependencyError, IcestreamError, TransientError
from icestream.sources.webhook.group_commit import GroupCommit
from icestream.sources.webhook.receiver import Receiver
from icestream.sources.webhook.spool import Spool

if TYPE_CHECKING:
    from icestream.sources.webhook.options import WebhookOptions


MAX_HEADER_BYTES = 64 << 10
MAX_CONNECTIONS = 1_000
BUSY_RETRY_SECS = 1


class TimedProtocol(HttpToolsProtocol):
    """One connection, with a deadline from its start or from the first byte of a request."""

    receive_secs: ClassVar[float]
    max_connections: ClassVar[int]

    _clock: asyncio.TimerHandle | None = None
    _write_clock: asyncio.TimerHandle | None = None
    _in_body: bool = False
    _head_bytes: int = 0
    _has_moved: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections", f"retry-after: {BUSY_RETRY_SECS}")
        else:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._stop_write_clock()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        # A sender that does not read its responses would hold the connection forever.
        self._stop_write_clock()
        self._write_clock = self.loop.call_later(self.receive_secs, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_write_clock()
        super().resume_writing()

    def _stop_write_clock(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._clock is None:
            self._start_clock()
        self._has_moved = False
        super().data_received(data)
        # Count only chunks after the one in which the headers began, since that one may contain a
        # whole earlier request. The receiver counts the body; what is not part of it, such as
        # trailing headers, counts here.
        self._head_bytes = 0 if self._has_moved else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._cut_off(431, f"the headers are larger than {MAX_HEADER_BYTES >> 10} KiB")

    def on_message_begin(self) -> None:
        self._has_moved = True
        if self._clock is None:
            self._start_clock()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Ignore trailing headers: they are not part of what was signed.
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_clock()
        self._in_body, self._has_moved = False, True
        super().on_message_complete()

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self.receive_secs, self._expire)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _expire(self) -> None:
        self._clock = None
        if self.transport.is_closing():
            return
        if self.pipeline or (not self._in_body and not _is_answered(self.cycle)):
            # The previous request is still being answered; do not cut off its response.
            self._start_clock()
            return
        self._cut_off(408, f"the request did not arrive within {self.receive_secs:g} s")

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        self._refuse(400, "malformed HTTP request")

    def _cut_off(self, status: int, reason: str) -> None:
        if self._in_body and self.cycle.response_started:
            self._stop_clock()
            self.transport.close()
        else:
            self._refuse(status, reason)

    def _refuse(self, status: int, reason: str, *more: str) -> None:
        self._stop_clock()
        body = json.dumps({"error": reason}).encode()
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *more,
        ]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.close()


class TimedServer(Server):
    """Listens on bound sockets, with a deadline for the TLS handshake too.

    The protocol sees a connection only after the handshake, so its own deadline does not apply.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        config = self.config
        deadline = config.http_protocol_class.receive_secs  # type: ignore[attr-defined]

        def make_protocol() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        self.servers = [
            await asyncio.get_running_loop().create_server(
                make_protocol,
                sock=bound,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=deadline if config.ssl is not None else None,
            )
            for bound in sockets or ()
        ]
        self.started = True


def _is_answered(cycle: Any) -> bool:
    return cycle is None or bool(cycle.response_complete)


def max_connections() -> int:
    """Return how many connections may be open, which leaves file descriptors for the pipeline.

    Anyone can open connections, and the pipeline runs in the same process.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files < 0 else min(MAX_CONNECTIONS, files // 2)


def timed_protocol(receive_secs: float) -> type[TimedProtocol]:
    """Return the protocol class with a deadline."""
    bounds = {"receive_secs": receive_secs, "max_connections": max_connections()}
    return type("Timed", (TimedProtocol,), bounds)


logger = logging.getLogger(__name__)

BACKLOG = 2_048
KEEP_ALIVE_SECS = 75
SHUTDOWN_SECS = 5
STARTUP_SECS = 30


def error_location(options: WebhookOptions) -> str:
    """Return the `where` of errors about the server."""
    return f"source webhook {options.host}:{options.port}"


def bind_socket(options: WebhookOptions) -> socket.socket:
    """Bind a socket to the configured address, without listening yet.

    Raises:
        ConnectorError: the address is not available.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, proto)
    except OSError as exc:
        raise _bind_error(options, exc) from exc
    try:
        # Otherwise the port stays in use for a minute after a process was killed.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as exc:
        bound.close()
        raise _bind_error(options, exc) from exc
    return bound


def _bind_error(options: WebhookOptions, exc: OSError) -> ConnectorError:
    reason = (exc.strerror or str(exc)).lower()
    return ConnectorError(
        f"cannot listen: {reason}",
        where=error_location(options),
        todo="Does another program, or another pipeline with this source, use the port? Check "
        "`host` and `port`; ports below 1024 need a privilege.",
    )


def tls_context(options: WebhookOptions) -> ssl.SSLContext | None:
    """Return the TLS context; None for HTTP.

    Raises:
        ConnectorError: the certificate or the key is invalid.
    """
    if options.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Otherwise OpenSSL would prompt for a password on the terminal, and wait forever.
        context.load_cert_chain(options.tls.cert, options.tls.key, password="")
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
        raise ConnectorError(
            f"cannot use the certificate {options.tls.cert!r} with the key {options.tls.key!r}: "
            f"{str(reason).lower().replace('_', ' ')}",
            where=error_location(options),
            todo="Both must be PEM files that belong together, the key without a password.",
        ) from exc
    return context


class WebhookServer:
    """Listens from construction until `close`.

    Args:
        options: of the source.
        durable: False only to measure the cost of durability.
    """

    def __init__(self, options: WebhookOptions, *, durable: bool = True) -> None:
        self._options = options
        context = tls_context(options)
        listening = bind_socket(options)
        try:
            self.spool = _open_spool(options, durable=durable)
        except BaseException:
            listening.close()
            raise
        self.port: int = listening.getsockname()[1]
        self._commit = GroupCommit(self.spool)
        self._server: Any = None
        self._thread: threading.Thread | None = None
        try:
            self._start(listening, context)
        except BaseException:
            listening.close()
            self.close()
            raise
        scheme = "https" if context is not None else "http"
        paths = ", ".join(options.stream_by_path())
        logger.info(
            "webhook: listening on %s://%s:%s, paths %s", scheme, options.host, self.port, paths
        )

    def _start(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            import uvicorn

        except ModuleNotFoundError as exc:
            raise DependencyError(
                f"source 'webhook' needs the package {exc.name}, which is not installed",
                todo="pip install 'icestream[webhook]'",
            ) from exc
        config = uvicorn.Config(
            Receiver(self._options, self._commit),
            http=timed_protocol(self._options.receive_timeout_secs),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECS,
            timeout_graceful_shutdown=SHUTDOWN_SECS,
        )
        config.load()
        config.ssl = context
        self._server = TimedServer(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="webhook server", daemon=True
        )
        self._thread.start()
        deadline = threading.Event()
        for _ in range(STARTUP_SECS * 100):
            if self._server.started or not self._thread.is_alive():
                break
            deadline.wait(0.01)
        self.raise_if_broken()

    def raise_if_broken(self) -> None:
        """Raise an error if the server no longer works.

        Raises:
            IcestreamError: it has stopped, or cannot write its spool.
        """
        fault: IcestreamError | None = self._commit.fault
        if fault is not None:
            raise fault.at(error_location(self._options))
        if self.spool.fault is not None:
            raise TransientError(
                f"cannot write to the spool {self.spool.folder}: {self.spool.fault}",
                where=error_location(self._options),
            )
        if self._thread is None or not self._thread.is_alive():
            raise TransientError(
                "the webhook server has stopped", where=error_location(self._options)
            )

    def close(self) -> None:
        """Answer the requests that arrived, then stop. May be called more than once."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._commit is not None:
            self._commit.close()
        self.spool.close()


def _open_spool(options: WebhookOptions, *, durable: bool) -> Spool:
    assert options.spool is not None  # noqa: S101 - the options set it
    try:
        return Spool(
            Path(options.spool),
            remember_days=options.remember_days,
            max_bytes=options.max_spool_mb << 20,
            durable=durable,
        )
    except IcestreamError as exc:
        raise exc.at(error_location(options)) from exc.__cause__
    except OSError as exc:
        raise spool_error(options, exc) from exc


def spool_error(options: WebhookOptions, exc: OSError) -> ConnectorError:
    """Return the error for a spool that cannot be opened."""
    return ConnectorError(
        f"cannot use the spool {options.spool}: {(exc.strerror or str(exc)).lower()}",
        where=error_location(options),
        todo="Give the user that runs icestream write access, or set `spool` to another folder.",
    )
