"""Removes staged rows of interrupted runs, and temporary folders."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


logger = logging.getLogger(__name__)


def temporary_folder(owner: object) -> Path:
    """Create a folder that is removed with its owner, at the latest when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="icestream-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


def remove_staged_files(
    folder: str, io_properties: Mapping[str, str], *, older_than: timedelta = timedelta()
) -> None:
    """Delete the files in a pipeline's staging folder, which only that pipeline uses.

    Args:
        folder: the folder.
        io_properties: how PyIceberg reaches the store, secrets included.
        older_than: minimum age of a file; a run that was only paused may still need newer ones.
    """
    from pyiceberg.io import load_file_io

    io: Any = load_file_io(dict(io_properties), folder)
    newest = datetime.now(tz=timezone.utc) - older_than
    # PyArrowFileIO has an Arrow file system, FsspecFileIO one of fsspec.
    empty = _remove_by_arrow if hasattr(io, "fs_by_scheme") else _remove_by_fsspec
    try:
        empty(io, folder, newest)
    except _faults() as exc:
        logger.warning("%s: could not delete staged rows: %s", folder, exc)


def _remove_by_arrow(io: Any, folder: str, newest: datetime) -> None:
    from pyarrow.fs import FileSelector

    scheme, host, path = io.parse_location(folder)
    store = io.fs_by_scheme(scheme, host)
    for file in store.get_file_info(FileSelector(path, allow_not_found=True)):
        if file.mtime is None or file.mtime <= newest:
            store.delete_file(file.path)


def _remove_by_fsspec(io: Any, folder: str, newest: datetime) -> None:
    parts = urlsplit(folder)
    store = io.get_fs(parts.scheme or "file", parts.hostname)
    # The object is shared within the process and caches listings.
    store.invalidate_cache()
    try:
        listed = store.ls(folder, detail=True)
    except FileNotFoundError:
        return
    for entry in listed:
        name = entry["name"]
        # Azure's listing includes the time; other stores need a request per file.
        changed = entry.get("last_modified") or store.modified(name)
        if entry["type"] == "file" and changed <= newest:
            store.rm(name)


def _faults() -> tuple[type[Exception], ...]:
    """Return the exceptions of the stores' libraries; Azure's has its own classes."""
    try:
        from azure.core.exceptions import AzureError
    except ModuleNotFoundError:
        return (OSError,)
    return OSError, AzureError, RuntimeError
