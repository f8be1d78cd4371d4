"""Waits for somebody else's library for so long and no longer, whatever its own patience."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_overdue: list[threading.Thread] = []


class OverdueError(Exception):
    """No answer came in time."""


def within(seconds: float, ask: Callable[[], str]) -> str:
    """Return an answer, or raise what asking raised.

    Raises:
        OverdueError: neither came in time; the question is left to itself.
    """
    outcome: dict[str, Any] = {}

    def body() -> None:
        try:
            outcome["answer"] = ask()
        except BaseException as exc:  # noqa: BLE001 - raised below, where it was asked
            outcome["fault"] = exc

    thread = threading.Thread(target=body, name="check step", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _overdue.append(thread)
        raise OverdueError
    if "fault" in outcome:
        raise outcome["fault"]
    answer: str = outcome["answer"]
    return answer


def end_process(code: int) -> NoReturn:
    """End the process, without waiting for questions that are overdue.

    The clean-up of some libraries waits until their last request has ended.
    """
    if any(thread.is_alive() for thread in _overdue):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
