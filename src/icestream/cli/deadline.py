"""Calls into client libraries with a deadline, whatever timeouts they have themselves."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_overdue_threads: list[threading.Thread] = []


class OverdueError(Exception):
    """The call did not return in time."""


def call_with_deadline(seconds: float, call: Callable[[], str]) -> str:
    """Return what `call` returns, or raise what it raises.

    Raises:
        OverdueError: it did neither in time; its thread is left running.
    """
    outcome: dict[str, Any] = {}

    def body() -> None:
        try:
            outcome["result"] = call()
        except BaseException as exc:  # noqa: BLE001 - raised below, in the caller's thread
            outcome["error"] = exc

    thread = threading.Thread(target=body, name="check step", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _overdue_threads.append(thread)
        raise OverdueError
    if "error" in outcome:
        raise outcome["error"]
    result: str = outcome["result"]
    return result


def exit_process(code: int) -> NoReturn:
    """End the process without waiting for overdue calls.

    Some libraries wait in their exit handlers until their last request has ended.
    """
    if any(thread.is_alive() for thread in _overdue_threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
