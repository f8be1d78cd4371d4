"""Options of `dedupe`, which keeps one row per key."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions


class DedupeOptions(ShorthandOptions):
    """Which columns identify a row, and how long keys are remembered."""

    shorthand: ClassVar[str] = "keys"

    keys: tuple[str, ...] = Field(min_length=1, description="Columns that identify a row.")
    watermark: str | None = Field(
        None, description="Event time column and delay, e.g. `ts, 10 minutes`."
    )
