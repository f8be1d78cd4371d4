"""Connections of the HTTP server: their deadlines, and how many there may be. Needs uvicorn."""

from __future__ import annotations

import asyncio
import json
import resource
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import socket

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
