"""Tells what must not be shown, by the name of a setting or by the look of its value."""

from __future__ import annotations

import re

SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|authorization|jaas|"
    r"(access|api|private|account|storage|service[-_.]?account)[-_.]?key|"
    r"connection[-_.]?string|\bsas\b|signature",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|[?&;](password|token|secret|sig)=|accountkey=", re.IGNORECASE
)
HIDDEN = "(hidden)"


def is_secret(key: str, value: str = "") -> bool:
    """Tell whether a setting's value must be hidden."""
    return bool(SECRET_KEY.search(key) or SECRET_VALUE.search(value))
