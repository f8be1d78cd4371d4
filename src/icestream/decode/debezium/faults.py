"""Values that are not what their schema says."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from icestream.decode.values import show


class OddValueError(ValueError):
    """A value does not have the form that its type promises."""

    def __init__(self, value: Any, form: str) -> None:
        super().__init__(f"{show(value)} is not {form}")


def from_base64(text: str | None) -> bytes | None:
    """Return bytes that were written in base64.

    Raises:
        OddValueError: the text is not base64.
    """
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise OddValueError(text, "base64") from None
