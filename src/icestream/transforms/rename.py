"""Renames columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.contracts.columns import ColumnType, OptionProblem, report_unknown
from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import Transform, require_columns
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from icestream.contracts.columns import Columns, Report


class RenameOptions(ShorthandOptions):
    """Which columns are renamed."""

    shorthand: ClassVar[str] = "columns"

    columns: dict[str, str] = Field(
        min_length=1,
        description="Old name to new name. All are renamed at once, so two may swap names.",
    )

    @field_validator("columns")
    @classmethod
    def _refuse_duplicates(cls, columns: dict[str, str]) -> dict[str, str]:
        for names, what in ((columns, "renamed twice"), (columns.values(), "given twice")):
            folded = [name.lower() for name in names]
            twice = next((name for name in names if folded.count(name.lower()) > 1), None)
            if twice is not None:
                raise ValueError(f"the name {twice!r} is {what}; Spark SQL ignores case")
        return columns

    @classmethod
    def is_full_form(cls, value: Any) -> bool:
        # A column may itself be called `columns`: then its new name is a string, not a mapping.
        return super().is_full_form(value) and not (
            isinstance(value, dict) and isinstance(value["columns"], str)
        )


class RenameTransform(Transform[RenameOptions]):
    """Renames columns; a missing column is an error."""

    options_type = RenameOptions
    passes_faults = True
    passes_unchanged_columns = True
    is_row_by_row = True

    def removes(self, name: str) -> bool:
        return name in self.options.columns and name not in self.options.columns.values()

    def new_name(self, name: str) -> str | None:
        new = {old.lower(): new for old, new in self.options.columns.items()}
        return new.get(name.lower(), name)

    def output_columns(self, columns: Columns, report: Report) -> Columns:
        report_unknown(columns, self.options.columns, report, "columns")
        for problem in self._clashes(columns.names):
            report(problem)
        new = {old.lower(): name for old, name in self.options.columns.items()}
        renamed = [
            ColumnType(new.get(column.name.lower(), column.name), column.type)
            for column in columns.known
        ]
        # A column that is missing counts as renamed, so that its new name is not reported as well.
        missing = [
            ColumnType(name)
            for old, name in self.options.columns.items()
            if columns.find(old) is None
        ]
        return columns.replace([*renamed, *missing])

    def _clashes(self, columns: Iterable[str]) -> Iterator[OptionProblem]:
        """Yield the new names that columns have which are not renamed themselves."""
        renamed = {old.lower() for old in self.options.columns}
        kept = {name.lower() for name in columns if name.lower() not in renamed}
        for old, name in self.options.columns.items():
            if name.lower() in kept:
                yield OptionProblem(
                    ("columns", old),
                    f"column {old!r} can't be renamed to {name!r}: that column already exists",
                    "Rename that column too, or drop it first.",
                )

    def apply(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        require_columns(rows, self.options.columns, "rename")
        # `withColumnsRenamed` renames one by one, so two columns can't swap names.
        new = {old.lower(): name for old, name in self.options.columns.items()}
        for problem in self._clashes(rows.columns):
            where = "transform 'rename'"
            raise SchemaMismatchError(problem.what, where=where, todo=problem.todo)
        columns = [(name, new.get(name.lower(), name)) for name in rows.columns]
        # A column without a new name stays the same expression.
        selected = ((F.col(quote_for_spark(old)), old, name) for old, name in columns)
        renamed = rows.select(
            *(column if old == name else column.alias(name) for column, old, name in selected)
        )
        if UNCHANGED_COLUMNS not in rows.columns:
            return renamed
        names = F.create_map(
            *(F.lit(text) for pair in self.options.columns.items() for text in pair)
        )
        unchanged = F.transform(UNCHANGED_COLUMNS, lambda name: F.coalesce(names[name], name))
        return renamed.withColumn(UNCHANGED_COLUMNS, unchanged)
