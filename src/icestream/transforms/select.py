"""Keeps or computes columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from icestream.contracts.columns import Columns, ColumnType, OptionProblem
from icestream.contracts.options import EXPRESSIONS, ShorthandOptions
from icestream.contracts.transform import Transform, hidden_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icestream.contracts.columns import Report

ALL_MEMBERS = re.compile(r"\.\s*\*")
_TWICE = "Give it another name with AS. To replace a column and keep the others, use `compute`."
_PLAIN = re.compile(r"(\*|\w+|`[^`]+`)(?:\s+(?:as\s+)?(\w+|`[^`]+`))?", re.IGNORECASE)


class SelectOptions(ShorthandOptions):
    """Which columns are kept or computed."""

    shorthand: ClassVar[str] = "columns"

    columns: tuple[str, ...] = Field(
        min_length=1,
        description="SQL expressions, e.g. `[id, round(price, 2) AS price]`. Put one that contains "
        "quotes or brackets in quotes.",
        json_schema_extra=EXPRESSIONS,
    )


class SelectTransform(Transform[SelectOptions]):
    """Keeps or computes columns, in the order given."""

    options_type = SelectOptions
    passes_faults = True
    is_row_by_row = True

    def removes(self, name: str) -> bool:
        from icestream.schemas.expressions import bind_items

        column = Columns((ColumnType(name),))
        for item in self.options.columns:
            _, given = bind_items([item], column)
            # A struct may have a member of this name.
            if ALL_MEMBERS.search(item) or given.find(name) is not None:
                return False
        return True

    def output_columns(self, columns: Columns, report: Report) -> Columns:
        from icestream.schemas.expressions import bind_items

        problems, selected = bind_items(self.options.columns, columns)
        for number, problem in problems:
            report(OptionProblem(("columns", number), *problem))
        seen: set[str] = set()
        for number, item in enumerate(self.options.columns):
            names = bind_items([item], columns)[1].names
            twice = next((name for name in names if name.lower() in seen), None)
            if twice is not None:
                what = f"the name {twice!r} is given twice; Spark SQL ignores case"
                report(OptionProblem(("columns", number), what, _TWICE))
            seen |= {name.lower() for name in names}
        return selected

    def new_name(self, name: str) -> str | None:
        for column in self.options.columns:
            plain = _PLAIN.fullmatch(column.strip())
            if plain is None:
                continue
            old, new = (text.strip("`") for text in (plain[1], plain[2] or plain[1]))
            if old == "*":
                return name
            if old.lower() == name.lower():
                return new
        return None

    def apply(self, rows: DataFrame) -> DataFrame:
        selected = rows.selectExpr(*self.options.columns)
        # `*` already includes them.
        hidden = [name for name in hidden_columns(rows) if name not in selected.columns]
        return rows.selectExpr(*self.options.columns, *hidden) if hidden else selected
