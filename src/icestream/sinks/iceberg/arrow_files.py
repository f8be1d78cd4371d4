"""Files of a store: for Arrow to read by position, and many of them at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

# Requests to a store that wait for their answers together.
AT_ONCE = 8


def readable(stream: Any) -> pa.NativeFile:
    """Return an open file of PyIceberg's as one of Arrow's.

    One that is Arrow's already must not be wrapped: Arrow then looks for its end by moving there,
    which Google's store takes for a wrong range.
    """
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def for_each(items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Call `work` for each item in a few threads, for stores that answer slowly.

    Returns:
        The results in the order of the items. If one fails, the others are done all the same.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), "icestream-store") as pool:
        # Not `pool.map`, which cancels what has not begun when one fails.
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]
