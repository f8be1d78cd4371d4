"""The HTTP server, in its own thread, and the spool that it fills."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.errors import ConnectorError, IcestreamError, TransientError
from icestream.sources.webhook.group_commit import GroupCommit
from icestream.sources.webhook.receiver import Receiver
from icestream.sources.webhook.spool import Spool

if TYPE_CHECKING:
    from icestream.sources.webhook.options import WebhookOptions


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
        import uvicorn

        from icestream.sources.webhook.connections import TimedServer, timed_protocol

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
