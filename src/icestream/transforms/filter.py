"""Keeps the rows for which a SQL condition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FilterOptions(ShorthandOptions):
    """Which rows are kept."""

    shorthand: ClassVar[str] = "expr"

    expr: str = Field(min_length=1, description="SQL condition, e.g. `amount > 0`.")


class FilterTransform(Transform[FilterOptions]):
    """Keeps the rows for which a SQL condition holds."""

    options_type = FilterOptions

    def apply(self, rows: DataFrame) -> DataFrame:
        return rows.where(self.options.expr)
