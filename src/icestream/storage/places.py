"""Addresses of places where files lie, spelt one way."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from icestream.contracts.catalog import BLOCK_OF_SCHEME
from icestream.errors import PlanError


def as_uri(warehouse: str) -> str:
    """Return a place as the URI that every reader understands alike.

    Iceberg takes locations letter by letter, so nothing in a path is percent-encoded.

    Raises:
        PlanError: it lies in an object store, and names no bucket.
    """
    parts = urlsplit(warehouse)
    scheme = parts.scheme
    if scheme in BLOCK_OF_SCHEME and not parts.netloc:
        raise PlanError(
            f"the warehouse {warehouse!r} names no bucket",
            todo=f"Write `warehouse: {scheme}://BUCKET/FOLDER`.",
        )
    if scheme == "gcs":  # PyIceberg knows it, and Java does not.
        return "gs" + warehouse[len(scheme) :].rstrip("/")
    if len(scheme) > 1 and scheme != "file":
        return warehouse.rstrip("/")
    path = warehouse.removeprefix("file:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return f"file://{Path(path).expanduser().absolute()}"
