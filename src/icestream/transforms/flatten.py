"""Options of `flatten`, which turns nested fields into columns."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions


class FlattenOptions(ShorthandOptions):
    """Which nested columns are flattened, and how the new columns are named."""

    shorthand: ClassVar[str] = "columns"

    columns: tuple[str, ...] = Field(
        (), description="Struct columns to flatten; all of them if empty."
    )
    separator: str = Field("_", description="Text between the names of the levels.")
    max_depth: int | None = Field(None, ge=1, description="Levels to flatten; all if absent.")
