"""Posts events as fast as they are answered, over a number of connections."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import cast

import uvloop

EVENT = json.dumps(
    {
        "id": 4711,
        "customer": "Ada Lovelace",
        "at": "2026-11-15T19:00:00Z",
        "amount": 19.9,
        "items": [{"sku": "mug-blue", "count": 2}, {"sku": "lamp", "count": 1}],
    }
).encode()
ANSWER = b'{"taken": 1, "already_had": 0}'


class NotTakenError(Exception):
    """An event was answered otherwise than by having been taken."""


class _Connection(asyncio.Protocol):
    """Sends an event once the one before it was answered."""

    def __init__(self, name: str, events: int) -> None:
        self._name = name
        self._left = events
        self._held = b""
        self._transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What uvloop gives is one without being of the class.
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._held.endswith(b"}"):
            return
        if not self._held.startswith(b"HTTP/1.1 200 ") or not self._held.endswith(ANSWER):
            self._end(NotTakenError(self._held.decode()))
            return
        self._held = b""
        self._left -= 1
        if self._left:
            self._send()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or NotTakenError("the connection was closed"))

    def _send(self) -> None:
        assert self._transport is not None  # noqa: S101 - sends once connected
        head = (
            "POST /events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"idempotency-key: {self._name}-{self._left}\r\ncontent-length: {len(EVENT)}\r\n\r\n"
        )
        self._transport.write(head.encode() + EVENT)

    def _end(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if exc is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(exc)
        if self._transport is not None:
            self._transport.close()


async def _post_all(port: int, connections: int, events: int, label: str) -> float:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    made = [
        await loop.create_connection(
            partial(_Connection, f"{label}-{number}", events // connections),
            "127.0.0.1",
            port,
        )
        for number in range(connections)
    ]
    await asyncio.gather(*(each.done for _, each in made))
    return time.monotonic() - began


def post(port: int, connections: int, events: int, label: str) -> float:
    """Post events with ids of their own, and return how many seconds it took.

    Each connection sends its share; `events` is a multiple of `connections`.

    Raises:
        NotTakenError: one of them was not taken.
    """
    return uvloop.run(_post_all(port, connections, events, label))
