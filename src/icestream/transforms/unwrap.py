"""Options of `unwrap`: rows out of a change envelope."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from icestream.contracts.options import ShorthandOptions


class UnwrapOptions(ShorthandOptions):
    """Which envelope the rows are in."""

    shorthand: ClassVar[str] = "envelope"

    envelope: Literal["debezium", "cdc"] = Field("debezium", description="Kind of envelope.")
