"""Group commit: one write and one fsync for all waiting requests."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from icestream.errors import IcestreamError, TransientError
from icestream.sources.webhook.requests import Refusal
from icestream.sources.webhook.spool import SpoolFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icestream.sources.webhook.segments import Arrival
    from icestream.sources.webhook.spool import Spool

logger = logging.getLogger(__name__)

GROUP_BYTES = 16 << 20
RETRY_SECS = 10
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class _PendingAppend:
    arrivals: Sequence[Arrival]
    future: asyncio.Future[list[bool]]
    loop: asyncio.AbstractEventLoop


_Answer: TypeAlias = list[bool] | Refusal


class GroupCommit:
    """A thread that writes the events that arrived during the previous write."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        # Small enough that several groups fit into a small spool.
        self._group_bytes = min(GROUP_BYTES, spool.segment_bytes)
        self._waiting: queue.SimpleQueue[_PendingAppend | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="webhook spool", daemon=True)
        self._is_refusing = False
        self.fault: IcestreamError | None = None
        self._thread.start()

    async def append(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """Wait until the arrivals are durable, and return for each whether it is new.

        Raises:
            Refusal: they cannot be written now.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[bool]] = loop.create_future()
        self._waiting.put(_PendingAppend(arrivals, future, loop))
        return await future

    def close(self) -> None:
        """Write what is queued, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        has_ended = False
        try:
            self._write_groups()
            has_ended = True
        finally:
            if not has_ended:
                # Pending requests would wait forever: the error restarts the server.
                self.fault = TransientError("the thread that writes the spool has stopped")

    def _write_groups(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            if not group:
                continue
            arrivals = [arrival for waiting in group for arrival in waiting.arrivals]
            try:
                results = iter(self._spool.append(arrivals))
            except (SpoolFullError, OSError, IcestreamError) as exc:
                self._record_failure(exc)
                # One exception object per request, since awaiting it changes its traceback.
                answers: list[_Answer] = [_refusal(exc) for _ in group]
            else:
                self._record_success()
                answers = [[next(results) for _ in waiting.arrivals] for waiting in group]
            _resolve(group, answers)

    def _next_group(self) -> tuple[list[_PendingAppend], bool]:
        group: list[_PendingAppend] = []
        size = 0
        pending = self._waiting.get()
        while pending is not None:
            group.append(pending)
            size += sum(arrival.size for arrival in pending.arrivals)
            if size > self._group_bytes:
                return group, True
            try:
                pending = self._waiting.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _record_failure(self, exc: Exception) -> None:
        if isinstance(exc, IcestreamError):
            self.fault = exc
        elif not self._is_refusing:
            # Log once, not per request: the log may be on the full disk.
            self._is_refusing = True
            reason = "it has reached `max_spool_mb`" if isinstance(exc, SpoolFullError) else exc
            logger.warning(
                "rejecting events with 503, since the spool cannot be written: %s", reason
            )

    def _record_success(self) -> None:
        if self._is_refusing:
            self._is_refusing = False
            logger.warning("accepting events again")


def _resolve(group: list[_PendingAppend], outcomes: list[_Answer]) -> None:
    def resolve_all() -> None:
        for waiting, outcome in zip(group, outcomes, strict=True):
            if waiting.future.done():  # cancelled
                continue
            if isinstance(outcome, Refusal):
                waiting.future.set_exception(outcome)
            else:
                waiting.future.set_result(outcome)

    try:
        group[0].loop.call_soon_threadsafe(resolve_all)
    except RuntimeError:
        # The server has stopped, and with it all requests.
        logger.debug("%s requests were not answered", len(group))


def _refusal(exc: Exception) -> Refusal:
    if isinstance(exc, SpoolFullError):
        reason = "too many events are waiting for their commit"
    elif isinstance(exc, OSError) and exc.errno in _DISK_FULL:
        reason = "the disk is full"
    else:
        reason = "events cannot be stored now"
    return Refusal(503, reason, retry_after=RETRY_SECS)


class RateLimiter:
    """Token bucket: limits requests per second, with bursts after a pause."""

    def __init__(
        self, per_sec: float, burst: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_sec = per_sec
        self._burst = float(burst if burst is not None else max(1, math.ceil(per_sec)))
        self._tokens = self._burst
        self._clock = clock
        self._updated_at = clock()

    def acquire(self) -> None:
        """Count a request.

        Raises:
            Refusal: there were too many.
        """
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._updated_at) * self._per_sec)
        self._updated_at = now
        if self._tokens < 1:
            wait = math.ceil((1 - self._tokens) / self._per_sec)
            raise Refusal(
                429, f"more than {self._per_sec:g} requests per second", retry_after=max(1, wait)
            )
        self._tokens -= 1
