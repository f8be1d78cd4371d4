"""A lock that may be pickled with what it guards; what comes out has a new one."""

from __future__ import annotations

import threading
from typing import Any


class Connecting:
    """Held while a client is made: pipelines of one process ask for it at the same moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Connecting, ())
