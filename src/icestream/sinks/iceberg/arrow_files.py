"""Files of a store, for Arrow to read by position."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def readable(stream: Any) -> pa.NativeFile:
    """Return an open file of PyIceberg's as one of Arrow's.

    One that is Arrow's already must not be wrapped: Arrow then looks for its end by moving there,
    which Google's store takes for a wrong range.
    """
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")
