"""The key of a service account as a file that Google's libraries can open.

Java, C++ and Python have one way of being told of a key alike: a variable with the path of a file.
A key that was given as text is therefore put into a file in memory, which no disk ever sees.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from functools import cache
from pathlib import Path

LONGEST_PATH = 4096
KIND = "service_account"


def is_text(key: str) -> bool:
    """Tell whether a key is the JSON itself, and not the path of a file that holds it."""
    return key.lstrip().startswith("{")


def check_key(key: str) -> None:
    """Refuse what is neither a path nor the JSON of a service account.

    Raises:
        ValueError: with the reason, which never quotes the key.
    """
    if is_text(key):
        check_json(key)
    elif not key.strip() or "\n" in key.strip() or len(key) > LONGEST_PATH:
        raise ValueError("is neither the path of a file nor JSON text")


def check_json(text: str) -> None:
    """Refuse a text that is not the key of a service account.

    Raises:
        ValueError: with the reason, which never quotes the key.
    """
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError("begins like JSON and is not: was it cut off?") from None
    kind = found.get("type") if isinstance(found, dict) else None
    if kind != KIND:
        raise ValueError(f"is JSON of the type {kind!r}, and must be of the type {KIND!r}")
    missing = [name for name in ("client_email", "private_key") if not found.get(name)]
    if missing:
        raise ValueError(f"is the key of a service account without {' and '.join(missing)}")


def key_file(key: str) -> str:
    """Return the path of a key's file; the text of a key gets one that lives with this process."""
    return _file_of(key) if is_text(key) else str(Path(key.strip()).expanduser().absolute())


@cache
def _file_of(text: str) -> str:
    """Write a text to a file once, so that equal keys have equal paths."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("icestream-gcs-key")
        os.write(descriptor, text.encode())
        # Named by process: Java and Python's workers open it too, as the same user.
        return f"/proc/{os.getpid()}/fd/{descriptor}"
    descriptor, path = tempfile.mkstemp(prefix="icestream-gcs-key-", suffix=".json")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    atexit.register(_forget, path, os.getpid())
    return path


def _forget(path: str, owner: int) -> None:
    # A forked child inherits the registration, but not the right to remove the file.
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
