"""Keeps or computes columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SelectOptions(ShorthandOptions):
    """Which columns come out."""

    shorthand: ClassVar[str] = "columns"

    columns: tuple[str, ...] = Field(
        min_length=1, description='SQL expressions, e.g. `[id, "price * 2 AS double_price"]`.'
    )


class SelectTransform(Transform[SelectOptions]):
    """Keeps or computes columns, in the order given."""

    options_type = SelectOptions

    def apply(self, rows: DataFrame) -> DataFrame:
        return rows.selectExpr(*self.options.columns)
