"""Addresses of places where files lie, spelt one way."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit


def as_uri(warehouse: str) -> str:
    """Return a place as the URI that every reader understands alike.

    Iceberg takes locations letter by letter, so nothing in a path is percent-encoded.
    """
    scheme = urlsplit(warehouse).scheme
    if len(scheme) > 1 and scheme != "file":
        return warehouse.rstrip("/")
    path = warehouse.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return f"file://{Path(path).expanduser().absolute()}"
