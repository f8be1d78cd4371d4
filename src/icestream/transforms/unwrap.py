"""Options of `unwrap`, which extracts rows from change events."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from icestream.contracts.options import ShorthandOptions


class UnwrapOptions(ShorthandOptions):
    """The envelope that rows are in."""

    shorthand: ClassVar[str] = "envelope"

    envelope: Literal["debezium", "cdc"] = Field("debezium", description="Kind of envelope.")
