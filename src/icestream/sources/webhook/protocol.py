"""HTTP by uvicorn, with a deadline for receiving a request, which it lacks.

Without one, a sender that gives a byte now and then holds a connection for as long as it likes.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

MOST_HEADER_BYTES = 64 << 10
MOST_CONNECTIONS = 1_000


class TimedProtocol(HttpToolsProtocol):
    """One connection. The clock runs from its beginning, or from the first byte of a request."""

    receive_secs: ClassVar[float]

    _clock: asyncio.TimerHandle | None = None
    _in_head: bool = False
    _in_body: bool = False
    _head_bytes: int = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(503, "too many connections")
        else:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._clock is None:
            self._start_clock()
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Only pieces that follow the one a head began in are counted, for that one may hold
        # a whole request before it.
        if self._in_head and self._head_bytes > MOST_HEADER_BYTES:
            self._refuse(431, f"the headers are larger than {MOST_HEADER_BYTES >> 10} KiB")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if self._clock is None:
            self._start_clock()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_clock()
        self._in_body = False
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
            # The request before this one is still being answered; its answer is not cut off.
            self._start_clock()
            return
        if self._in_body and self.cycle.response_started:
            self.transport.close()
            return
        self._refuse(408, f"the request did not arrive within {self.receive_secs:g} s")

    def _refuse(self, status: int, reason: str) -> None:
        self._stop_clock()
        body = json.dumps({"error": reason}).encode()
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.close()


def _is_answered(cycle: Any) -> bool:
    return cycle is None or bool(cycle.response_complete)


def timed(receive_secs: float) -> type[TimedProtocol]:
    """Return the protocol with a deadline."""
    return type("Timed", (TimedProtocol,), {"receive_secs": receive_secs})
