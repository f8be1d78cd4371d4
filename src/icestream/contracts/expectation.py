"""The options of an expectation, which a sink or a table of a change source has."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from icestream.contracts.options import Options

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


class Expectation(Options):
    """A condition that every row should meet."""

    name: Text = Field(description="Name of the expectation, shown in counters and dead letters.")
    expr: Text = Field(description="SQL condition that is true for a good row.")
    on_fail: Literal["drop", "dead_letter", "fail"] = Field(
        "fail", description="What to do with a row that does not meet it."
    )
