"""Removes what a run that was cut off had put aside."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)


def sweep(
    folder: str, io_properties: Mapping[str, str], *, older_than: timedelta = timedelta()
) -> None:
    """Empty the folder of one pipeline, which nobody else uses; no table is in it.

    Args:
        folder: the folder.
        io_properties: how PyIceberg reaches the store, secrets included.
        older_than: how old a file must be; a run that was only paused may still want young ones.
    """
    from pyarrow.fs import FileSelector
    from pyiceberg.io import load_file_io
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = load_file_io(dict(io_properties), folder)
    if not isinstance(io, PyArrowFileIO):
        return
    scheme, host, path = io.parse_location(folder)
    store = io.fs_by_scheme(scheme, host)
    newest = datetime.now(tz=timezone.utc) - older_than
    try:
        for found in store.get_file_info(FileSelector(path, allow_not_found=True)):
            if found.mtime is None or found.mtime <= newest:
                store.delete_file(found.path)
    except OSError as exc:
        logger.warning("%s: rows that were put aside stay behind: %s", folder, exc)
