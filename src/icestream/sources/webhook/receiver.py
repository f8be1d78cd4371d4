"""The ASGI application: from request to response."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icestream.sources.webhook.group_commit import RateLimiter
from icestream.sources.webhook.ids import id_key
from icestream.sources.webhook.requests import (
    ID_HEADER,
    Refusal,
    Verifier,
    decompress,
    is_gzip,
    is_ndjson,
    parse_events,
    too_large_refusal,
)
from icestream.sources.webhook.segments import MAX_ID_BYTES, NO_KEY, Arrival

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping

    from icestream.sources.webhook.group_commit import GroupCommit
    from icestream.sources.webhook.options import WebhookOptions

    Message = MutableMapping[str, Any]
    Headers = dict[bytes, bytes]

# Memory for all unanswered requests together, unless a single body may be larger.
IN_FLIGHT_BYTES = 256 << 20
BUSY_RETRY_SECS = 1
# Never stored, since they may contain credentials.
SECRET_HEADERS = re.compile(
    rb"authorization|\bauth\b|cookie|signature|token|secret|password|hmac|credential|(api|access)-?key"
)


class _DisconnectedError(Exception):
    """The sender disconnected; there is no one to answer."""


class InFlightBytes:
    """Bytes that requests hold in memory, from the first chunk to the response."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0

    @contextmanager
    def reserve(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for a request; `Refusal` above the limit."""
        reserved = 0

        def hold(size: int) -> None:
            nonlocal reserved
            reserved += size
            self._size += size
            if self._size > self._most:
                raise Refusal(503, "too many requests in progress", retry_after=BUSY_RETRY_SECS)

        try:
            yield hold
        finally:
            self._size -= reserved


class Receiver:
    """Handles the requests of one server. Runs on one event loop."""

    def __init__(
        self,
        options: WebhookOptions,
        commit: GroupCommit,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._commit = commit
        self._now = now
        self._streams = {path: name.encode() for path, name in options.stream_by_path().items()}
        self._verifier = Verifier(options.auth, now)
        self._max_body_bytes = options.max_body_kb * 1024
        self._id_field = "id" if self._verifier.type == "stripe" else options.id_field
        self._id_field = options.id_field or self._id_field
        self._keeps_headers = "headers" in options.include
        rate = options.rate_per_sec
        self._rate = RateLimiter(rate, options.burst) if rate is not None else None
        # A body is held as received, decompressed, and as parsed events.
        self._in_flight = InFlightBytes(max(IN_FLIGHT_BYTES, 4 * self._max_body_bytes))

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        more: list[tuple[bytes, bytes]] = []
        try:
            status, body = 200, _answer(*await self._receive(scope, receive))
        except Refusal as refusal:
            status, body = refusal.status, json.dumps({"error": refusal.reason}).encode()
            if refusal.retry_after is not None:
                more = [(b"retry-after", str(refusal.retry_after).encode())]
            if status == 405:
                more = [(b"allow", b"POST")]
        except _DisconnectedError:
            return
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *more,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _receive(
        self, scope: Message, receive: Callable[[], Awaitable[Message]]
    ) -> tuple[int, int]:
        """Return how many events were accepted, and how many were duplicates."""
        stream = self._streams.get(scope["path"])
        if stream is None:
            raise Refusal(404, "unknown path")
        if scope["method"] != "POST":
            raise Refusal(405, "use POST")
        headers: Headers = dict(scope["headers"])
        self._refuse_early(headers)
        zipped, lines = is_gzip(headers), is_ndjson(headers)
        with self._in_flight.reserve() as hold:
            body = await self._body(receive, hold)
            self._verifier.verify(headers, body)
            if self._rate is not None:
                # Only now, so that unauthenticated requests do not use up the sender's rate.
                self._rate.acquire()
            if zipped:
                body = decompress(body, self._max_body_bytes)
                hold(len(body))
            arrivals = self._arrivals(stream, headers, body, lines=lines)
            hold(sum(arrival.size for arrival in arrivals))
            new_flags = await self._commit.append(arrivals) if arrivals else []
        results = list(zip(arrivals, new_flags, strict=True))
        accepted = sum(len(arrival.events) for arrival, is_new in results if is_new)
        duplicates = sum(len(arrival.events) for arrival, is_new in results if not is_new)
        return accepted, duplicates

    def _refuse_early(self, headers: Headers) -> None:
        """Refuse a request by its headers, before reading the body."""
        self._verifier.check_headers(headers)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise too_large_refusal(self._max_body_bytes)

    async def _body(
        self, receive: Callable[[], Awaitable[Message]], hold: Callable[[int], None]
    ) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _DisconnectedError
            part = message.get("body", b"")
            if part:
                parts.append(part)
                size += len(part)
                hold(len(part))
            if size > self._max_body_bytes:
                raise too_large_refusal(self._max_body_bytes)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _arrivals(
        self, stream: bytes, headers: Headers, body: bytes, *, lines: bool
    ) -> list[Arrival]:
        received_us = int(self._now() * 1_000_000)
        stored_headers = _stored_headers(headers) if self._keeps_headers else b""
        # Drop parsed events at once: they take many times the size of the body.
        parsed = parse_events(body, lines=lines)
        if self._id_field is None:
            events = [raw for raw, _ in parsed]
            if not events:
                return []
            event_id = self._header_id(headers)
            key = id_key(stream, event_id) if event_id else NO_KEY
            return [Arrival(stream, received_us, key, event_id, stored_headers, events)]
        arrivals = []
        for number, (raw, event) in enumerate(parsed, 1):
            event_id = self._field_id(event, number)
            is_number = isinstance(event[self._id_field], int)
            key = id_key(stream, event_id, is_number=is_number)
            arrivals.append(Arrival(stream, received_us, key, event_id, stored_headers, [raw]))
        return arrivals

    def _header_id(self, headers: Headers) -> bytes:
        return _check_length(headers.get(ID_HEADER[self._verifier.type], b""))

    def _field_id(self, event: dict[str, Any], number: int) -> bytes:
        value = event.get(self._id_field or "")
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise Refusal(400, f"event {number} has no string or integer field {self._id_field!r}")
        return _check_length(str(value).encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=100)
def _answer(taken: int, already_had: int) -> bytes:
    return json.dumps({"taken": taken, "already_had": already_had}).encode()


def _check_length(event_id: bytes) -> bytes:
    if len(event_id) > MAX_ID_BYTES:
        raise Refusal(400, f"the id of the event is longer than {MAX_ID_BYTES} bytes")
    return event_id


def _stored_headers(headers: Headers) -> bytes:
    stored = [
        {"key": name.decode("latin-1"), "value": value.decode("latin-1")}
        for name, value in headers.items()
        if not SECRET_HEADERS.search(name)
    ]
    return json.dumps(stored).encode()
