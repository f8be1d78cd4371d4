"""Options of `sql`, which queries the stream and Iceberg tables."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions


class SqlOptions(ShorthandOptions):
    """The query."""

    shorthand: ClassVar[str] = "query"

    query: str = Field(
        min_length=1,
        description="SQL query; the stream is `stream`, a table `catalog.namespace.table`.",
    )
