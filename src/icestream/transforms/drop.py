"""Drops columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from icestream.contracts.columns import report_unknown
from icestream.contracts.options import ShorthandOptions
from icestream.contracts.transform import Transform, require_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

    from icestream.contracts.columns import Columns, Report


class DropOptions(ShorthandOptions):
    """Which columns are dropped."""

    shorthand: ClassVar[str] = "columns"

    columns: tuple[str, ...] = Field(min_length=1, description="Columns to drop.")


class DropTransform(Transform[DropOptions]):
    """Drops columns; a missing column is an error."""

    options_type = DropOptions
    passes_faults = True
    passes_unchanged_columns = True
    is_row_by_row = True

    def removes(self, name: str) -> bool:
        return name in self.options.columns

    def new_name(self, name: str) -> str | None:
        return None if name.lower() in _folded(self.options.columns) else name

    def fit(self, columns: Sequence[str]) -> DropTransform | None:
        present = _folded(columns)
        kept = tuple(name for name in self.options.columns if name.lower() in present)
        return DropTransform(DropOptions(columns=kept)) if kept else None

    def output_columns(self, columns: Columns, report: Report) -> Columns:
        report_unknown(columns, self.options.columns, report, "columns")
        dropped = {name.lower() for name in self.options.columns}
        kept = [column for column in columns.known if column.name.lower() not in dropped]
        return columns.replace(kept)

    def apply(self, rows: DataFrame) -> DataFrame:
        require_columns(rows, self.options.columns, "drop")
        return rows.drop(*self.options.columns)


def _folded(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}
