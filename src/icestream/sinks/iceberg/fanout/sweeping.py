"""Removes what a fan-out that was cut off had put aside."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)


def sweep(folder: str, io_properties: Mapping[str, str]) -> None:
    """Empty the folder of one pipeline, which nobody else uses; no table is in it."""
    from pyiceberg.io import load_file_io
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = load_file_io(dict(io_properties), folder)
    if not isinstance(io, PyArrowFileIO):
        return
    scheme, host, path = io.parse_location(folder)
    try:
        io.fs_by_scheme(scheme, host).delete_dir_contents(path, missing_dir_ok=True)
    except OSError as exc:
        logger.warning("%s: rows that were put aside stay behind: %s", folder, exc)
