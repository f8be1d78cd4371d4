"""Options of `window`, which aggregates over windows of event time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from icestream.contracts.options import EXPRESSIONS, Options


class WindowOptions(Options):
    """The windows, their watermark and their aggregates."""

    type: Literal["tumbling", "sliding", "session"] = Field(
        "tumbling", description="Kind of window."
    )
    time_field: str = Field(min_length=1, description="Column with the event time.")
    size: str = Field(min_length=1, description="Length, or gap of a session, e.g. `5 minutes`.")
    slide: str | None = Field(None, description="Step of a sliding window, e.g. `1 minute`.")
    watermark: str = Field(
        min_length=1, description="How late a row may arrive, e.g. `10 minutes`."
    )
    group_by: tuple[str, ...] = Field(
        (),
        description="Columns to group by in addition to the window.",
        json_schema_extra=EXPRESSIONS,
    )
    aggregates: dict[str, str] = Field(
        min_length=1, description="New column to SQL aggregate, e.g. `{total: sum(amount)}`."
    )
