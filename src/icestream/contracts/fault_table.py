"""Tables of what other people's faults mean: how each is recognised, and what is said of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.errors import IcestreamError


class Fault(NamedTuple):
    """How a fault is recognised, and what is said of it."""

    pattern: str
    kind: type[IcestreamError]
    what: str
    todo: str


def shows(said: str, pattern: str, endpoint: str | None = None) -> bool:
    """Tell whether a text is of the one whose words, or whose address, a pattern describes.

    Args:
        said: what a library says.
        pattern: words that only the clients of that one use.
        endpoint: its address, where the file names one.
    """
    place = urlsplit(endpoint or "").netloc
    return bool(re.search(pattern, said)) or (":" in place and place in said)


def first_match(faults: Iterable[Fault], said: str, where: str) -> IcestreamError | None:
    """Return the error of the first fault that a text shows; None if it shows none of them."""
    for fault in faults:
        if re.search(fault.pattern, said):
            return fault.kind(fault.what, where=where, todo=fault.todo)
    return None
