"""Adds columns, or replaces them, by SQL expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from icestream.contracts.columns import ColumnType, OptionProblem
from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import ABSENT, FAULT, Transform

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from icestream.contracts.columns import Columns, Report


class ComputeOptions(ShorthandOptions):
    """Which columns are computed."""

    shorthand: ClassVar[str] = "columns"

    columns: dict[str, str] = Field(
        min_length=1,
        description="Column to SQL expression, e.g. `{email: 'sha2(email, 256)'}`. A column that "
        "exists is replaced; the others stay. An expression can use a new column that is listed "
        "before it; of a replaced column, it uses the old value.",
    )

    @field_validator("columns")
    @classmethod
    def _refuse_duplicates(cls, columns: dict[str, str]) -> dict[str, str]:
        folded = [name.lower() for name in columns]
        twice = next((name for name in columns if folded.count(name.lower()) > 1), None)
        if twice is not None:
            raise ValueError(f"the name {twice!r} is given twice; Spark SQL ignores case")
        return columns

    @classmethod
    def is_full_form(cls, value: Any) -> bool:
        # A column may itself be called `columns`: then its expression is a string, not a mapping.
        return super().is_full_form(value) and not (
            isinstance(value, dict) and isinstance(value["columns"], str)
        )


class ComputeTransform(Transform[ComputeOptions]):
    """Adds or replaces columns.

    Each is computed from the columns before this step, and from new ones that are listed before it.
    """

    options_type = ComputeOptions
    passes_faults = True
    is_row_by_row = True

    def new_name(self, name: str) -> str | None:
        is_replaced = name.lower() in {column.lower() for column in self.options.columns}
        return None if is_replaced else name

    def output_columns(self, columns: Columns, report: Report) -> Columns:
        from icestream.schemas.expressions import bind_items

        computed: dict[str, ColumnType] = {}
        for name, expr in self.options.columns.items():
            problems, outputs = bind_items([expr], columns, tuple(computed.values()))
            for _, problem in problems:
                report(OptionProblem(("columns", name), *problem))
            kind = outputs.known[0].type if len(outputs.known) == 1 else None
            computed[name.lower()] = ColumnType(name, kind)
        kept = [computed.pop(column.name.lower(), column) for column in columns.known]
        return columns.replace([*kept, *computed.values()])

    def apply(self, rows: DataFrame) -> DataFrame:
        return rows.withColumns(
            {name: _unless_bad(rows, expr) for name, expr in self.options.columns.items()}
        )


def _unless_bad(rows: DataFrame, expr: str) -> Column:
    """Return an expression that is null where a row lacks the values that it needs."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    column = F.expr(expr)
    if ABSENT in rows.columns:
        column = F.when(~rows[ABSENT], column)
    return F.when(rows[FAULT].isNull(), column) if FAULT in rows.columns else column
