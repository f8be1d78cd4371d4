"""Tables of what other people's faults mean: how each is recognised, and what is said of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.errors import IcestreamError


class Fault(NamedTuple):
    """How a fault is recognised, and what is said of it."""

    pattern: str
    kind: type[IcestreamError]
    what: str
    todo: str


def first_match(faults: Iterable[Fault], said: str, where: str) -> IcestreamError | None:
    """Return the error of the first fault that a text shows; None if it shows none of them."""
    for fault in faults:
        if re.search(fault.pattern, said):
            return fault.kind(fault.what, where=where, todo=fault.todo)
    return None
