"""Options of `sql`: a query over the stream and over Iceberg tables."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions


class SqlOptions(ShorthandOptions):
    """The query."""

    shorthand: ClassVar[str] = "query"

    query: str = Field(
        min_length=1,
        description="SQL query; the stream goes by `stream`, tables by `catalog.namespace.table`.",
    )
