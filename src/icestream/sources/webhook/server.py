"""The endpoint: a spool, and a server in a thread of its own that fills it."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.errors import ConnectorError, DependencyError, IcestreamError, TransientError
from icestream.sources.webhook.group_commit import GroupCommit
from icestream.sources.webhook.receiver import Receiver
from icestream.sources.webhook.spool import Spool

if TYPE_CHECKING:
    from icestream.sources.webhook.options import WebhookOptions

logger = logging.getLogger(__name__)

BACKLOG = 2_048
KEEP_ALIVE_SECS = 75
ENDING_SECS = 5
STARTING_SECS = 30


def where_is(options: WebhookOptions) -> str:
    """Return the place that messages about an endpoint name."""
    return f"source webhook {options.host}:{options.port}"


def bound(options: WebhookOptions) -> socket.socket:
    """Return a socket on the address of an endpoint, which does not listen yet.

    Raises:
        ConnectorError: the address can't be had.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
    except OSError as exc:
        raise _unbound(options, exc) from exc
    try:
        # Without it, a port stays taken for a minute after a process was killed.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as exc:
        found.close()
        raise _unbound(options, exc) from exc
    return found


def _unbound(options: WebhookOptions, exc: OSError) -> ConnectorError:
    reason = (exc.strerror or str(exc)).lower()
    return ConnectorError(
        f"can't listen there: {reason}",
        where=where_is(options),
        todo="Does another program, or another pipeline with this source, listen on it? Check "
        "`host` and `port`; ports below 1024 need a privilege.",
    )


def tls_context(options: WebhookOptions) -> ssl.SSLContext | None:
    """Return what HTTPS needs; None for HTTP.

    Raises:
        ConnectorError: the certificate or the key can't be used.
    """
    if options.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A password would be asked for on the terminal, and wait there for ever.
        context.load_cert_chain(options.tls.cert, options.tls.key, password="")
    except (OSError, ValueError) as exc:
        told = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or str(exc)
        raise ConnectorError(
            f"the certificate {options.tls.cert!r} with the key {options.tls.key!r} can't be "
            f"used: {str(told).lower().replace('_', ' ')}",
            where=where_is(options),
            todo="Both are PEM files, the key without a password, and belong together.",
        ) from exc
    return context


class Endpoint:
    """Listens from when it is built until `close`.

    Args:
        options: of the source.
        durable: False to measure what durability costs, and for nothing else.
    """

    def __init__(self, options: WebhookOptions, *, durable: bool = True) -> None:
        self._options = options
        context = tls_context(options)
        listening = bound(options)
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
        logger.info("webhook: %s://%s:%s listens on %s", scheme, options.host, self.port, paths)

    def _start(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            import uvicorn

            from icestream.sources.webhook.protocol import TimedServer, timed
        except ModuleNotFoundError as exc:
            raise DependencyError(
                f"source 'webhook' needs the package {exc.name}, which is not installed",
                todo="pip install 'icestream[webhook]'",
            ) from exc
        config = uvicorn.Config(
            Receiver(self._options, self._commit),
            http=timed(self._options.receive_timeout_secs),
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
            timeout_graceful_shutdown=ENDING_SECS,
        )
        config.load()
        config.ssl = context
        self._server = TimedServer(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="webhook server", daemon=True
        )
        self._thread.start()
        deadline = threading.Event()
        for _ in range(STARTING_SECS * 100):
            if self._server.started or not self._thread.is_alive():
                break
            deadline.wait(0.01)
        self.refuse_broken()

    def refuse_broken(self) -> None:
        """Refuse to go on with an endpoint that no longer does its work.

        Raises:
            IcestreamError: it has ended, or its spool can't be written.
        """
        fault: IcestreamError | None = self._commit.fault
        if fault is not None:
            raise fault.at(where_is(self._options))
        if self.spool.fault is not None:
            raise TransientError(
                f"the spool {self.spool.folder} can't be written: {self.spool.fault}",
                where=where_is(self._options),
            )
        if self._thread is None or not self._thread.is_alive():
            raise TransientError("the server has ended", where=where_is(self._options))

    def close(self) -> None:
        """Answer what has arrived, then end. May be called more than once."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._commit is not None:
            self._commit.close()
        self.spool.close()


def _open_spool(options: WebhookOptions, *, durable: bool) -> Spool:
    assert options.spool is not None  # noqa: S101 - given by the options themselves
    try:
        return Spool(
            Path(options.spool),
            remember_days=options.remember_days,
            max_bytes=options.max_spool_mb << 20,
            durable=durable,
        )
    except IcestreamError as exc:
        raise exc.at(where_is(options)) from exc.__cause__
    except OSError as exc:
        raise spool_fault(options, exc) from exc


def spool_fault(options: WebhookOptions, exc: OSError) -> ConnectorError:
    """Return the error for a spool that can't be opened."""
    return ConnectorError(
        f"the spool {options.spool} can't be used: {(exc.strerror or str(exc)).lower()}",
        where=where_is(options),
        todo="Let the user that runs icestream write there, or name another folder by `spool`.",
    )
