"""Keeps the rows for which a SQL condition holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from icestream.contracts.columns import OptionProblem
from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import ABSENT, FAULT, Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icestream.contracts.columns import Columns, Report


class FilterOptions(ShorthandOptions):
    """Which rows are kept."""

    shorthand: ClassVar[str] = "expr"

    expr: str = Field(min_length=1, description="SQL condition, e.g. `amount > 0`.")


class FilterTransform(Transform[FilterOptions]):
    """Keeps the rows for which a SQL condition holds."""

    options_type = FilterOptions
    passes_faults = True
    passes_unchanged_columns = True
    is_row_by_row = True

    def new_name(self, name: str) -> str | None:
        return name

    def output_columns(self, columns: Columns, report: Report) -> Columns:
        from icestream.schemas.expressions import bind_filter

        for problem in bind_filter(self.options.expr, columns):
            report(OptionProblem(("expr",), *problem))
        return columns

    def apply(self, rows: DataFrame) -> DataFrame:
        if FAULT not in rows.columns:
            return rows.where(self.options.expr)
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        if ABSENT in rows.columns:
            is_kept = F.coalesce(F.expr(self.options.expr).cast("boolean"), F.lit(False))
            return rows.withColumn(ABSENT, rows[ABSENT] | ~is_kept)
        # A faulty row must be reported, whether or not its other values meet the condition.
        return rows.where(rows[FAULT].isNotNull() | F.expr(self.options.expr))
